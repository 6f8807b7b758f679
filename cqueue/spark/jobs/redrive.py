"""Dead letters back to their queue: those that a SQL predicate picks.

Each is sent first, under an id derived from its own, and deleted only then: it is never in neither queue,
and a run that broke off is run again without making copies. That holds for half of gc_grace from the letter's
death on, and for such periods after it: a message that was sent just before a period's end, and whose letter
could not be deleted until after it, is sent a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.client import connect
from cqueue.errors import BadInput
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.settings import load as load_settings
from cqueue.spark import session
from cqueue.spark.jobs.enqueue import filtered
from cqueue.spark.jobs.failures import reading, writing
from cqueue.spark.jobs.letters import COLUMNS, Redriver
from cqueue.spark.jobs.summary import Summary, timed
from cqueue.spark.jobs.target import take_derived

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrive:
    """Which letters go where.

    Attributes:
        queue: the queue whose letters they are, without `.dead`.
        url: of the cluster; None takes `CQUEUE_URL`.
        where: a SQL predicate over the columns of the view `dead`, such as `reason like 'Timeout%'`.
        to: another queue to send them to.
        limit: at most so many, the oldest first; from 1 on.

    Raises:
        BadInput: the name of a dead-letter queue, or a limit below 1.
    """

    queue: str
    url: str | None = None
    where: str | None = None
    to: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        """Check each field."""
        for name in (self.queue, self.to):
            if name is not None and name.endswith(DEAD_SUFFIX):
                raise BadInput(f"{name} is a dead-letter queue; name the queue that its messages came from")
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            raise BadInput(f"limit is {self.limit!r}; it takes a whole number from 1 on")


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
    with timed() as watch:
        _ready(job, to, dry_run=dry_run)
        wanted = _wanted(spark, job).persist(StorageLevel.DISK_ONLY)
        held = _source(spark, job, "inflight", suffix=DEAD_SUFFIX).select("id").distinct()
        free = wanted.join(F.broadcast(held), "id", "left_anti")
        picked = (free if job.limit is None else free.orderBy("due").limit(job.limit)).select("id")
        try:
            with reading("dead letters cannot be read"):
                total, matching = _source(spark, job, "dead", columns="id").count(), wanted.count()
                kept = held.count()
            done = {"sent": picked.count()} if dry_run else _redrive(picked, _redriver(job, to))
        finally:
            wanted.unpersist()
    sent = int(done.pop("sent", 0))
    return Summary(
        job="redrive",
        dry_run=dry_run,
        read=total,
        written=sent,
        skipped=total - matching,
        seconds=watch.seconds,
        details={"queue": job.queue, "to": to, "held": kept, "failed": done},
    )


def _ready(job: Redrive, to: str, *, dry_run: bool) -> None:
    with connect(job.url) as client:
        client.queue(job.queue)
        queue = client.queue(to)
        if not dry_run:
            take_derived(queue)


def _wanted(spark: SparkSession, job: Redrive) -> DataFrame:
    """Ids and times of the letters that the predicate picks; only for a predicate the rest is read."""
    if job.where is None:
        return _source(spark, job, "dead", columns="id,due")
    return filtered(_source(spark, job, "dead"), job.where).select("id", "due")


def _source(
    spark: SparkSession, job: Redrive, view: str, *, suffix: str = "", columns: str | None = None
) -> DataFrame:
    options = {"queue": job.queue + suffix, "view": view}
    if columns is not None:
        options["columns"] = columns
    if job.url is not None:
        options["url"] = job.url
    return spark.read.format("cqueue").options(**options).load()


def _redriver(job: Redrive, to: str) -> Redriver:
    settings = load_settings(job.url)
    side = session.session(settings)
    return Redriver(settings, to, side.driver.clock.now_us(), side.queues.entry(to).spec.gc_grace_us // 2)


def _redrive(picked: DataFrame, redriver: Redriver) -> dict[str, int]:
    """How many were `sent`, and how many failed by error."""
    with writing("the redrive", "Run it again: nothing is sent twice, and nothing is lost."):
        rows = picked.mapInArrow(redriver, COLUMNS).groupBy("error").sum("sent", "failed").collect()
    return {"sent" if row[0] is None else row[0]: row[1] if row[0] is None else row[2] for row in rows}
