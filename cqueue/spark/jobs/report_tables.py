"""Tables that queues and logs have alike: frequent values, spread, percentiles, counts over time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.spark.jobs.report import Table, plain, share

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BARS = 60
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
ACCURACY = 10_000
"""Percentiles are wrong by less than 1 / 10,000 of the rows."""
_WIDTHS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)


def top(rows: DataFrame, column: str, title: str, limit: int) -> Table:
    """The most frequent values of a column, with their share of all rows that have one."""
    known = rows.where(F.col(column).isNotNull())
    counts = known.groupBy(column).count()
    first = counts.orderBy(F.desc("count"), column).limit(limit).collect()
    total = known.count() if first else 0
    found = tuple((row[0], share(row["count"], total), row["count"]) for row in first)
    return Table(title, (column, "%", "rows"), found, chart=True)


def spread(counts: dict[int, int], what: str, title: str) -> Table:
    """How evenly rows lie in shards or partitions, in one line: 1 is even."""
    if not counts or not sum(counts.values()):
        return Table(title, (), ())
    mean = sum(counts.values()) / len(counts)
    worst = max(counts, key=lambda place: (counts[place], -place))
    row = (len(counts), plain(mean), min(counts.values()), counts[worst], worst, plain(counts[worst] / mean))
    return Table(title, (f"{what}s", "mean", "least", "most", f"{what} with most", "most / mean"), (row,))


def percentiles(rows: DataFrame, seconds: Column, title: str) -> Table:
    """Percentiles of a number of seconds, without rows that have none."""
    aggregates = [F.percentile_approx(seconds, list(QUANTILES), ACCURACY), F.max(seconds), F.count(seconds)]
    values, highest, count = rows.agg(*aggregates).collect()[0]
    if not count:
        return Table(title, (), ())
    names = [f"p{100 * each:g}" for each in QUANTILES]
    found = [(name, plain(float(value))) for name, value in zip(names, values, strict=True)]
    return Table(title, ("percentile", "seconds"), (*found, ("max", plain(float(highest)))))


def over_time(rows: DataFrame, column: str, title: str) -> Table:
    """How many rows a stretch of time has, in at most 60 stretches of a round length."""
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
