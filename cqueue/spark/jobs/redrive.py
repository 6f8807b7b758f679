"""Send dead letters back to their queue: those that a SQL predicate picks.

Each is sent first, under an id derived from its own, and deleted only then: it is never in neither queue,
and a run that broke off is run again without making copies. That holds for half of gc_grace from the letter's
death on, and for such periods after it: a message that was sent just before a period's end, and whose letter
could not be deleted until after it, is sent a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.client import connect
from cqueue.errors import BadInput, NotDone
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.sending import redriving
from cqueue.settings import load as load_settings
from cqueue.spark import session
from cqueue.spark.jobs.checks import check_count
from cqueue.spark.jobs.enqueue import filtered
from cqueue.spark.jobs.failures import reading, writing
from cqueue.spark.jobs.source import kept, source
from cqueue.spark.jobs.summary import Summary, timed
from cqueue.spark.jobs.target import take_derived

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cqueue.settings import Settings
    from cqueue.spark.session import SparkSide

COLUMNS = "error string, letters bigint"
_SCHEMA = pa.schema([("error", pa.string()), ("letters", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """The options of a redrive job: which letters go where.

    Attributes:
        queue: the queue whose letters they are, without `.dead`.
        url: of the cluster; None takes `CQUEUE_URL`.
        where: a SQL predicate over the columns of the view `dead`, such as `reason like 'Timeout%'`.
        to: another queue to send them to.
        limit: letters at most, the oldest first; from 1 on.
        rate: letters a second at most, by a single task; None: as fast as all tasks can.
        max_redrives: leave letters that were redriven this often already; None: no limit.

    Raises:
        BadInput: the name of a dead-letter queue, or a number out of its range.
    """

    queue: str
    url: str | None = None
    where: str | None = None
    to: str | None = None
    limit: int | None = None
    rate: float | None = None
    max_redrives: int | None = None

    def __post_init__(self) -> None:
        """Check each field."""
        for name in (self.queue, self.to):
            if name is not None and name.endswith(DEAD_SUFFIX):
                raise BadInput(f"{name} is a dead-letter queue; name the queue that its messages came from")
        check_count("limit", self.limit)
        redriving.check_limits(self.rate, self.max_redrives)


@timed
def run(spark: SparkSession, job: Redrive, *, dry_run: bool = False) -> Summary:
    """Send the letters and delete them. Those that a consumer of the dead-letter queue holds stay.

    `details`: queue, to, held, and failed: how many letters stay where they are, by error.

    Raises:
        QueueNotFound: there is no such queue.
        BadInput: a predicate that means nothing.
        NotDone: the letters cannot be read; nothing was sent.
        OutcomeUnknown: it ended in the middle; run it again.
    """
    to = job.to or job.queue
    _ready(job, to, dry_run=dry_run)
    with kept(_judged(spark, job)) as letters:
        wanted = letters.where("wanted")
        held = source(spark, queue=job.queue + DEAD_SUFFIX, view="inflight", url=job.url)
        held = held.select("id").distinct()
        free = wanted.join(F.broadcast(held), "id", "left_anti")
        picked = (free if job.limit is None else free.orderBy("due").limit(job.limit)).select("id")
        with reading("dead letters cannot be read"):
            total, matching = letters.count(), wanted.count()
            staying = held.count()
        paced = picked if job.rate is None else picked.coalesce(1)
        done = {None: picked.count()} if dry_run else _redrive(paced, _redriver(job, to))
    sent = done.pop(None, 0)
    return Summary(
        job="redrive",
        dry_run=dry_run,
        read=total,
        written=sent,
        skipped=total - matching,
        details={"queue": job.queue, "to": to, "held": staying, "failed": done},
    )


def _ready(job: Redrive, to: str, *, dry_run: bool) -> None:
    with connect(job.url) as client:
        client.queue(job.queue)
        queue = client.queue(to)
        if not dry_run:
            take_derived(queue)


def _judged(spark: SparkSession, job: Redrive) -> DataFrame:
    """Return ids and times of all letters, and whether each is wanted; only a predicate needs the rest."""
    if job.where is None:
        return _letters(spark, job, columns="id,due").withColumn("wanted", F.lit(True))
    letters = _letters(spark, job)
    filtered(letters, job.where)  # refuses what is no predicate
    return letters.select("id", "due", F.coalesce(F.expr(job.where), F.lit(False)).alias("wanted"))


def _letters(spark: SparkSession, job: Redrive, columns: str | None = None) -> DataFrame:
    return source(spark, queue=job.queue, view="dead", columns=columns, url=job.url)


def _redriver(job: Redrive, to: str) -> Redriver:
    settings = load_settings(job.url)
    side = session.session(settings)
    now_us, period_us = side.driver.clock.now_us(), side.queues.entry(to).spec.gc_grace_us // 2
    return Redriver(settings, job.queue, to, now_us, period_us, job.rate, job.max_redrives)


def _redrive(picked: DataFrame, redriver: Redriver) -> dict[str | None, int]:
    """Redrive the letters; count them by error, those that were sent under None."""
    with writing("the redrive", "Run it again: nothing is sent twice, and nothing is lost."):
        rows = picked.mapInArrow(redriver, COLUMNS).groupBy("error").sum("letters").collect()
    return dict(map(tuple, rows))


# ── where tasks run ──


@dataclass(frozen=True, slots=True)
class Redriver:
    """Redrives letters by their ids, in a task. Goes to other processes, so it holds values only.

    source: the queue whose letters they are. queue: where to. now_us: when the job began, µs since 1970.
        period_us: half of gc_grace; see `redriving.due_us`. rate: letters a second in this task.
        max_redrives: see `DeadLetters.redrive`.
    """

    settings: Settings
    source: str
    queue: str
    now_us: int
    period_us: int
    rate: float | None = None
    max_redrives: int | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Redrive the letters whose ids stand in the first column; count the outcomes, by error."""
        side = session.session(self.settings)
        counts: Counter[str | None] = Counter()
        for batch in batches:
            for chunk in redriving.chunks(batch.column(0).to_pylist(), self.rate):
                errors = [one.error for one in self.redrive(side, chunk)]
                counts.update(None if one is None else f"{type(one).__name__}: {one}" for one in errors)
        yield pa.RecordBatch.from_arrays([list(counts), list(counts.values())], schema=_SCHEMA)

    def redrive(self, side: SparkSide, wanted: Sequence[str]) -> list[redriving.LetterOutcome]:
        """Redrive those letters that are still there; return their outcomes."""
        dead = side.queues.entry(self.source + DEAD_SUFFIX).spec
        found = redriving.look(side.driver, wanted)
        now_us = side.driver.clock.now_us()  # a consumer may have received some since the job began
        held = [one for one in found if redriving.is_held(one, now_us, dead.skew_us)]
        stays = NotDone("a consumer of the dead-letter queue holds it; it stays")
        sent = redriving.send_back(
            side.driver,
            side.producer(self.queue),
            [one for one in found if one not in held],
            dead=dead,
            now_us=self.now_us,
            period_us=self.period_us,
            max_redrives=self.max_redrives,
        )
        return [redriving.LetterOutcome(redriving.id_of(one), None, stays) for one in held] + sent
