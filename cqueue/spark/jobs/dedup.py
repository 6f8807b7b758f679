"""Write rows with new keys, once each: keys that neither a queue or a log nor another row has.

Keys of a queue are those of the messages that are in it now; whether a message was there and is done, no
queue remembers. Keys of a log are those of all records that it still has, or of those since a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.errors import BadInput
from cqueue.settings import load as load_settings
from cqueue.spark import ledger
from cqueue.spark.jobs import target as targets
from cqueue.spark.jobs.checks import check_aware
from cqueue.spark.jobs.failures import reading
from cqueue.spark.jobs.source import kept, source
from cqueue.spark.jobs.summary import Summary, timed
from cqueue.spark.jobs.target import Target
from cqueue.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "cqueue_job_key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup:
    """The options of a dedup job: whose keys count, and where new rows go.

    Attributes:
        target: the queue or log that new rows are written to; its column `key` says what a row's key is, so
            that the next run finds it.
        against: other queues or logs, as (`queue` or `log`, name), whose keys count as well as the target's.
        since: of logs, records of this time on only; aware.

    Raises:
        BadInput: no column for the key, or a time without a zone.
    """

    target: Target
    against: tuple[tuple[str, str], ...] = ()
    since: datetime | None = None

    def __post_init__(self) -> None:
        """Check what fits together."""
        check_aware("since", self.since)
        if any(kind not in {"queue", "log"} for kind, _ in self.against):
            raise BadInput(f"against is {self.against!r}; it takes ('queue' or 'log', name)")


@timed
def run(spark: SparkSession, rows: DataFrame, job: Dedup, *, dry_run: bool = False) -> Summary:
    """Write the rows whose key is new, the first of each key in no particular order.

    `details`: duplicates (rows whose key another row of the batch has), known (keys that were there already).

    Raises:
        BadInput: rows without a key, or that are no messages; no such column.
        QueueNotFound, LogNotFound: what does not exist.
        NotDone: the keys cannot be read; nothing was written.
        OutcomeUnknown: it ended in the middle; another run finds what is stored, save what was received from
            a queue and acked meanwhile.
    """
    targets.ready(job.target, dry_run=dry_run)
    shaped = targets.shaped(rows, job.target)
    if "key" not in shaped.columns:
        raise BadInput("the rows have no column key; say what a row's key is (--key)")
    with reading("the rows cannot be read"):
        total, missing = shaped.count(), shaped.where(F.col("key").isNull()).count()
    if missing:
        raise BadInput(f"{missing:,} rows have no key; nothing was written")
    once = shaped.dropDuplicates(["key"])
    unknown = once.join(known_keys(spark, job), once["key"] == F.col(KEY), "left_anti")
    # The new rows must not change between counting and writing.
    with kept(unknown) as rows_to_write:
        with reading("the keys cannot be read"):
            distinct = once.count()
        new = targets.check(rows_to_write, job.target)  # not of what is known: it may have expired since
        written = targets.write(rows_to_write, job.target, dry_run=dry_run)
    return Summary(
        job="dedup",
        dry_run=dry_run,
        read=total,
        written=written,
        skipped=total - written,
        details={
            job.target.kind: job.target.name,
            "duplicates": total - distinct,
            "known": distinct - new,
        },
    )


def known_keys(spark: SparkSession, job: Dedup) -> DataFrame:
    """Return the keys that the queues and logs have now, each once.

    A run that is repeated at once has to find its keys. So this waits until what a log has now can be read,
    and asks a queue for what writers whose clock is ahead have sent, too.
    """
    side = session(load_settings(job.target.url))
    now_us = side.driver.clock.now_us()
    places = dict.fromkeys([(job.target.kind, job.target.name), *job.against])
    for spec in [side.logs.entry(name).spec for kind, name in places if kind == "log"]:
        # A writer's clock may be ε ahead, and that of the process that plans the read ε behind.
        ledger.settle(side, spec, now_us + 2 * spec.skew_us)
    found = [_keys(spark, job, kind, name) for kind, name in places]
    keys = found[0]
    for more in found[1:]:
        keys = keys.unionAll(more)
    return keys.where(F.col(KEY).isNotNull()).distinct()


def _keys(spark: SparkSession, job: Dedup, kind: str, name: str) -> DataFrame:
    options: dict[str, Any] = {kind: name, "columns": "key", "url": job.target.url}
    if kind == "queue":
        options["asOf"] = datetime.max.replace(tzinfo=UTC).isoformat()  # whatever the sender's clock said
    elif job.since is not None:
        options["since"] = job.since.isoformat()
    return source(spark, **options).select(F.col("key").alias(KEY))
