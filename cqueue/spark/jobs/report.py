"""What a queue or a log holds, in tables: how much, how old, how evenly spread, and of what.

Spark counts all of it, from columns without bodies that are kept on disk while the report is made; only the
tables' rows come to the driver. So millions of messages need no more memory than thousands.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cqueue.spark.jobs import report_history, report_log, report_queue
from cqueue.spark.jobs.failures import reading
from cqueue.spark.jobs.report_tables import MAX_TOP, TOP, Report, Table
from cqueue.spark.jobs.summary import Summary, timed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MAX_TOP", "TOP", "Report", "Reported", "Table", "run"]


@dataclass(frozen=True, slots=True)
class Reported(Summary):
    """A summary with the tables of a report."""

    title: str = ""
    tables: tuple[Table, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the summary, and the tables."""
        return {**Summary.to_dict(self), "tables": [table.to_dict() for table in self.tables]}


@timed
def run(spark: SparkSession, job: Report) -> Reported:
    """Count all messages or records. Nothing is changed, nothing claimed.

    Raises:
        QueueNotFound, LogNotFound: the queue or log does not exist.
        BadInput: a latency that is no SQL, or no number.
        NotDone: the queue or log could not be read to the end.
    """
    subjects = [
        ("queue", job.queue, report_queue.tables),
        ("log", job.log, report_log.tables),
        ("history", ", ".join(job.history), report_history.tables),
    ]
    kind, name, make = next(subject for subject in subjects if subject[1])
    with reading("the report cannot be made"):
        total, tables = make(spark, job)
    return Reported(
        job="report",
        dry_run=False,
        read=total,
        details={kind: name},
        title=f"Report on {kind} {name}, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        tables=tuple(table for table in tables if table.rows),
    )
