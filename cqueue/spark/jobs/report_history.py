"""Histories that `cqueue.testing` recorded: how long calls took, and messages from send to delivery to ack.

Times are those of the monotonic clock, which all processes of a machine share, so the files of one machine
are looked at together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from cqueue.errors import BadInput
from cqueue.spark.jobs.report_tables import Report, Table, percentiles, plain
from cqueue.spark.jobs.source import kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = """
    operation string, phase string, call bigint, process string, mono_ns bigint,
    messages array<struct<id: string, ids: array<string>>>
"""
_CALL = ["process", "call"]


def tables(spark: SparkSession, job: Report) -> tuple[int, list[Table]]:
    """Return the number of lines, and all tables of the report.

    Raises:
        BadInput: a file that is not there, or is no history.
    """
    with kept(spark.read.schema(_SCHEMA).json(list(job.history)).where("operation is not null")) as lines:
        total = lines.count()
        if not total:
            raise BadInput(f"{', '.join(job.history)} holds no history")
        sent, delivered, acked = _sent(lines), _times(lines, "receive", "ok"), _times(lines, "ack", "invoke")
        return total, [
            _durations(_calls(lines)),
            percentiles(
                delivered.join(sent, "id"),
                _seconds("sent_ns", "receive_ns"),
                "From the send's answer to the first delivery, delays included",
            ),
            percentiles(
                delivered.join(acked, "id"),
                _seconds("receive_ns", "ack_ns"),
                "From delivery to the first ack",
            ),
        ]


def _calls(lines: DataFrame) -> DataFrame:
    """Join the beginnings of calls with their ends; a call of a killed process has none."""
    begun = lines.where("phase = 'invoke'").select(*_CALL, "operation", F.col("mono_ns").alias("began_ns"))
    ended = lines.where("phase != 'invoke'").select(*_CALL, "phase", F.col("mono_ns").alias("ended_ns"))
    return begun.join(ended, _CALL, "left")


def _durations(calls: DataFrame) -> Table:
    took = _seconds("began_ns", "ended_ns") * 1000
    rows = (
        calls.groupBy("operation", F.coalesce("phase", F.lit("cut off")).alias("outcome"))
        .agg(F.percentile_approx(took, [0.5, 0.99]).alias("ms"), F.max(took), F.count(F.lit(1)))
        .orderBy("operation", "outcome")
        .collect()
    )
    found = tuple(
        (row[0], row[1], *(plain(each) for each in (row[2] or (None, None))), plain(row[3]), row[4])
        for row in rows
    )
    return Table("Calls", ("operation", "outcome", "p50 ms", "p99 ms", "max ms", "calls"), found)


def _sent(lines: DataFrame) -> DataFrame:
    """Return when each message's first send was answered."""
    each = lines.where("operation = 'send' and phase = 'ok'").select(
        "mono_ns", F.explode("messages").alias("m")
    )
    ids = each.select("mono_ns", F.explode("m.ids").alias("id"))
    return ids.groupBy("id").agg(F.min("mono_ns").alias("sent_ns"))


def _times(lines: DataFrame, operation: str, phase: str) -> DataFrame:
    """Return when each message was first in a call of this kind."""
    wanted = lines.where((F.col("operation") == operation) & (F.col("phase") == phase))
    each = wanted.select("mono_ns", F.explode("messages.id").alias("id"))
    return each.groupBy("id").agg(F.min("mono_ns").alias(f"{operation}_ns"))


def _seconds(start: str, end: str) -> Column:
    return (F.col(end) - F.col(start)) / F.lit(1e9)
