"""What a queue or a log holds, in tables: how much, how old, how evenly spread, and of what.

All of it is counted by Spark, from columns without bodies that are kept on disk while the report is made;
what comes to the driver are the tables' rows. So millions of messages need no more memory than thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel

from cqueue.errors import BadInput
from cqueue.spark.jobs.failures import reading
from cqueue.spark.jobs.summary import Summary, timed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP = 10
MAX_TOP = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What to look at.

    Attributes:
        queue, log: the name of the one or the other; or
        history: files that `cqueue.testing` recorded on one machine.
        url: of the cluster; None takes `CQUEUE_URL`.
        since, until: of a log, records of this time only; aware.
        latency: a SQL expression over a log's columns that gives seconds, such as
            `unix_micros(time) / 1e6 - double(headers['sent'])`: its percentiles are reported.
        top: how many topics, tasks, keys and reasons, 1 to 1,000.

    Raises:
        BadInput: not exactly one of queue, log and history, or what does not belong to it.
    """

    queue: str | None = None
    log: str | None = None
    history: tuple[str, ...] = ()
    url: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    latency: str | None = None
    top: int = TOP

    def __post_init__(self) -> None:
        """Check what fits together."""
        if [self.queue is not None, self.log is not None, bool(self.history)].count(True) != 1:
            raise BadInput("give a queue, a log or histories to report on, one of them")
        if self.log is None and (self.since or self.until or self.latency):
            raise BadInput("since, until and latency are for a log")
        for bound in (self.since, self.until):
            if bound is not None and bound.tzinfo is None:
                raise BadInput(f"{bound} has no time zone; give an aware datetime")
        if not isinstance(self.top, int) or not 1 <= self.top <= MAX_TOP:
            raise BadInput(f"top is {self.top!r}; it goes from 1 to {MAX_TOP:,}")


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a report. chart: draw the last column over the first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    chart: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it: each row an object."""
        return {
            "title": self.title,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Reported(Summary):
    """A summary with the tables of a report."""

    title: str = ""
    tables: tuple[Table, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The tables as well."""
        return {**Summary.to_dict(self), "tables": [table.to_dict() for table in self.tables]}


def run(spark: SparkSession, job: Report) -> Reported:
    """Look at all messages or records, and count. Nothing is changed, nothing claimed.

    Raises:
        QueueNotFound, LogNotFound: it does not exist.
        BadInput: a latency that is no SQL, or no number.
        NotDone: it could not be read to the end.
    """
    # They take Table from here.
    from cqueue.spark.jobs import report_history, report_log, report_queue  # noqa: PLC0415

    kind, name = next((kind, name) for kind, name in _subjects(job) if name)
    make = {"queue": report_queue.tables, "log": report_log.tables}.get(kind, report_history.tables)
    with timed() as watch, reading("the report cannot be made"):
        total, tables = make(spark, job)
    return Reported(
        job="report",
        dry_run=False,
        read=total,
        seconds=watch.seconds,
        details={kind: name},
        title=f"Report on {kind} {name}, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        tables=tuple(table for table in tables if table.rows),
    )


def _subjects(job: Report) -> tuple[tuple[str, str | None], ...]:
    return ("queue", job.queue), ("log", job.log), ("history", ", ".join(job.history))


# ── what all kinds need ──


def source(spark: SparkSession, job: Report, **options: Any) -> DataFrame:
    """A view of the queue or log."""
    given = {"queue": job.queue, "log": job.log, "url": job.url, **options}
    texts = {key: str(value) for key, value in given.items() if value is not None}
    return spark.read.format("cqueue").options(**texts).load()


def kept(rows: DataFrame) -> DataFrame:
    """The same rows, read once: kept on disk for the tables that are made of them."""
    return rows.persist(StorageLevel.DISK_ONLY)


def share(count: int, total: int) -> float:
    """In percent."""
    return round(100 * count / total, 1) if total else 0.0


def plain(value: Any) -> Any:
    """What JSON and people can read: times in UTC to the second, numbers to three digits.

    A time without its zone is one of this process, as Spark gives them.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")
    return round(value, 3) if isinstance(value, float) else value
