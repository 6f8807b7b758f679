"""A queue: its backlog, how old it is, its shards, what is held, what died, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.settings import load as load_settings
from cqueue.spark import session
from cqueue.spark.jobs.report_tables import (
    Report,
    Table,
    over_time,
    percentiles,
    plain,
    spread,
    top,
    view,
)
from cqueue.spark.jobs.source import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "priority,due,sent_at,task,key"
_REASON = 100
"""Characters by which reasons are compared; what follows often differs in each letter."""


def tables(spark: SparkSession, job: Report) -> tuple[int, list[Table]]:
    """Return the number of messages, and all tables of the report."""
    now_us = session.session(load_settings(job.url)).driver.clock.now_us()
    with kept(view(spark, job, columns=_COLUMNS)) as messages:
        aged = messages.withColumn("age", (F.lit(now_us) - F.unix_micros("due")) / F.lit(1e6))
        total, backlog = _backlog(aged)
        found = [
            backlog,
            percentiles(
                aged.where("age >= 0"), F.col("age"), "Age of ready messages: seconds since they were due"
            ),
            over_time(messages, "due", "Due times"),
            top(messages, "task", "Top tasks", job.top),
            top(messages, "key", "Top keys", job.top),
        ]
    found += _shards(spark, job)
    found.append(_in_flight(spark, job))
    return total, found + _dead(spark, job)


def _backlog(messages: DataFrame) -> tuple[int, Table]:
    rows = (
        messages.groupBy("priority")
        .agg(
            F.count_if(F.col("age") >= 0).alias("ready"),
            F.count_if(F.col("age") < 0).alias("delayed"),
            F.min("due").alias("oldest"),
            F.count(F.lit(1)).alias("total"),
        )
        .orderBy("priority")
        .collect()
    )
    found = [
        (row["priority"], row["ready"], row["delayed"], plain(row["oldest"]), row["total"]) for row in rows
    ]
    total = sum(row[4] for row in found)
    if found:
        oldest = min(row[3] for row in found)
        found.append(("all", sum(row[1] for row in found), sum(row[2] for row in found), oldest, total))
    return total, Table("Backlog", ("priority", "ready", "delayed", "oldest due", "messages"), tuple(found))


def _shards(spark: SparkSession, job: Report) -> list[Table]:
    """Count the messages of each shard over all time shards, and how even they are."""
    rows = (
        view(spark, job, view="shards")
        .groupBy("open", "shard")
        .agg(
            F.count(F.lit(1)).alias("wide_rows"),
            F.sum("in_flight").alias("in_flight"),
            F.min("oldest_due").alias("oldest"),
            F.sum("messages").alias("messages"),
        )
        .orderBy("open", "shard")
        .collect()
    )
    found = tuple(
        (
            row["shard"],
            "open" if row["open"] else "normal",
            row["wide_rows"],
            row["in_flight"] or 0,
            plain(row["oldest"]),
            row["messages"] or 0,
        )
        for row in rows
    )
    columns = ("shard", "kind", "wide rows", "in flight", "oldest due", "messages")
    spec = session.session(load_settings(job.url)).queues.entry(str(job.queue)).spec
    counts = dict.fromkeys(range(spec.shards), 0)
    counts |= {row[0]: row[5] for row in found if row[1] == "normal"}
    return [
        Table("Shards", columns, found, chart=True),
        spread(counts, "shard", "How evenly messages lie in shards"),
    ]


def _in_flight(spark: SparkSession, job: Report) -> Table:
    rows = view(spark, job, view="inflight").groupBy("state", "attempt").count()
    found = tuple(tuple(row) for row in rows.orderBy("state", "attempt").collect())
    return Table("In flight", ("state", "attempt", "messages"), found)


def _dead(spark: SparkSession, job: Report) -> list[Table]:
    if str(job.queue).endswith(DEAD_SUFFIX):
        return []
    with kept(view(spark, job, view="dead", columns="due,reason")) as letters:
        reasons = letters.withColumn("reason", F.substring("reason", 1, _REASON))
        return [
            top(reasons, "reason", "Dead letters by reason", job.top),
            over_time(letters, "due", "Dead letters by the time of death"),
        ]
