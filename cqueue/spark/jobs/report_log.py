"""A log: how much there is of which topic and key, when it came, and how evenly partitions are filled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.errors import BadInput
from cqueue.settings import load as load_settings
from cqueue.spark import session
from cqueue.spark.jobs.failures import reading
from cqueue.spark.jobs.report_tables import (
    Report,
    Table,
    over_time,
    percentiles,
    plain,
    share,
    spread,
    top,
    view,
)
from cqueue.spark.jobs.source import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = ("partition", "time", "topic", "key")


def tables(spark: SparkSession, job: Report) -> tuple[int, list[Table]]:
    """Return the number of records, and all tables of the report."""
    with kept(_records(spark, job)) as records:
        total, partitions = _partitions(records)
        spec = session.session(load_settings(job.url)).logs.entry(str(job.log)).spec
        counts = dict.fromkeys(range(spec.partitions), 0) | {row[0]: row[4] for row in partitions.rows}
        found = [
            partitions,
            spread(counts, "partition", "How evenly records lie in partitions"),
            over_time(records, "time", "Records by time"),
            top(records, "topic", "Top topics", job.top),
            top(records, "key", "Top keys", job.top),
        ]
        if job.latency is not None:
            found.append(percentiles(records, F.col("latency"), f"Latency: {job.latency}"))
    return total, found


def _records(spark: SparkSession, job: Report) -> DataFrame:
    bounds = {"since": job.since and job.since.isoformat(), "until": job.until and job.until.isoformat()}
    rows = view(spark, job, **bounds)
    if job.latency is None:
        return rows.select(*_COLUMNS)
    with reading(f"latency {job.latency!r} cannot be used"):
        found = rows.select(*_COLUMNS, F.expr(job.latency).alias("latency"))
        kind = found.schema["latency"].dataType.typeName()
    if kind not in {"double", "float", "decimal", "long", "integer", "short"}:
        raise BadInput(f"latency {job.latency!r} is a {kind}; it must give seconds")
    return found.withColumn("latency", F.col("latency").cast("double"))


def _partitions(records: DataFrame) -> tuple[int, Table]:
    rows = (
        records.groupBy("partition")
        .agg(F.min("time"), F.max("time"), F.count(F.lit(1)))
        .orderBy("partition")
        .collect()
    )
    total = sum(row[3] for row in rows)
    found = tuple((row[0], plain(row[1]), plain(row[2]), share(row[3], total), row[3]) for row in rows)
    return total, Table("Partitions", ("partition", "first", "last", "%", "records"), found, chart=True)
