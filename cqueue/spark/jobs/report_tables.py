"""The subject of a report, its tables, and those tables that queues and logs have alike."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.errors import BadInput
from cqueue.message import check_limit
from cqueue.spark.jobs.checks import check_aware
from cqueue.spark.jobs.source import source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP = 10
MAX_TOP = 1000
BARS = 60
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
ACCURACY = 10_000
"""Percentiles are wrong by less than 1 / 10,000 of the rows."""
_WIDTHS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The subject and the options of a report.

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
        check_aware("since", self.since)
        check_aware("until", self.until)
        check_limit(self.top, MAX_TOP, "top")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report. chart: draw the last column over the first."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    chart: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the table for JSON: each row an object."""
        return {
            "title": self.title,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }


def view(spark: SparkSession, job: Report, **options: Any) -> DataFrame:
    """Return a view of the queue or log."""
    return source(spark, queue=job.queue, log=job.log, url=job.url, **options)


def share(count: int, total: int) -> float:
    """Return the share in percent."""
    return round(100 * count / total, 1) if total else 0.0


def plain(value: Any) -> Any:
    """Return a value that JSON and people can read: times in UTC to the second, numbers to three digits.

    A time without its zone is one of this process, as Spark gives them.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec="seconds")
    return round(value, 3) if isinstance(value, float) else value


def top(rows: DataFrame, column: str, title: str, limit: int) -> Table:
    """Count the most frequent values of a column, with their share of all rows that have one."""
    known = rows.where(F.col(column).isNotNull())
    counts = known.groupBy(column).count()
    first = counts.orderBy(F.desc("count"), column).limit(limit).collect()
    total = known.count() if first else 0
    found = tuple((row[0], share(row["count"], total), row["count"]) for row in first)
    return Table(title, (column, "%", "rows"), found, chart=True)


def spread(counts: dict[int, int], what: str, title: str) -> Table:
    """Compare the rows of shards or partitions, in one line; most / mean of 1 is even."""
    if not counts or not sum(counts.values()):
        return Table(title, (), ())
    mean = sum(counts.values()) / len(counts)
    worst = max(counts, key=lambda place: (counts[place], -place))
    row = (len(counts), plain(mean), min(counts.values()), counts[worst], worst, plain(counts[worst] / mean))
    return Table(title, (f"{what}s", "mean", "least", "most", f"{what} with most", "most / mean"), (row,))


def percentiles(rows: DataFrame, seconds: Column, title: str) -> Table:
    """Compute percentiles of a number of seconds, without rows that have none."""
    aggregates = [F.percentile_approx(seconds, list(QUANTILES), ACCURACY), F.max(seconds), F.count(seconds)]
    values, highest, count = rows.agg(*aggregates).collect()[0]
    if not count:
        return Table(title, (), ())
    names = [f"p{100 * each:g}" for each in QUANTILES]
    found = [(name, plain(float(value))) for name, value in zip(names, values, strict=True)]
    return Table(title, ("percentile", "seconds"), (*found, ("max", plain(float(highest)))))


def over_time(rows: DataFrame, column: str, title: str) -> Table:
    """Count rows by time, in at most 60 stretches of a round length."""
    first, last = rows.agg(F.min(F.unix_micros(column)), F.max(F.unix_micros(column))).collect()[0]
    if first is None:
        return Table(title, (), ())
    width_us = 1_000_000 * next(
        (width for width in _WIDTHS_S if (last - first) / 1e6 / width < BARS - 1), _WIDTHS_S[-1]
    )
    stretch = F.floor(F.unix_micros(column) / F.lit(width_us)).alias("stretch")
    counts = rows.groupBy(stretch).count().orderBy("stretch").collect()
    found = tuple((_time(row["stretch"] * width_us), row["count"]) for row in counts)
    return Table(f"{title}, by {_length(width_us // 1_000_000)}", ("from", "rows"), found, chart=True)


def _time(us: int) -> Any:
    return plain(datetime.fromtimestamp(us / 1e6, UTC))


def _length(seconds: int) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            count = seconds // size
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if seconds == 1 else f"{seconds} seconds"
