"""Shared by all commands of `cqueue spark`: options, a session of Spark, and the summary."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cqueue.cli.context import CliContext
from cqueue.cli.table import print_sheet
from cqueue.cli.values import parse_pairs, shown
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cqueue.spark.jobs.summary import Summary
    from cqueue.spark.jobs.target import Target

Done = TypeVar("Done", bound="Summary")

Queue = Annotated[str | None, "NAME", "A queue."]
Log = Annotated[str | None, "NAME", "A log."]
Where = Annotated[str | None, "SQL", "Only rows that this holds for."]
Format = Annotated[str | None, "--format NAME", "parquet, csv, json, text or orc; else by the file's name."]
ReaderOptions = Annotated[list[str] | None, "--option NAME=VALUE", "Of Spark's reader, such as sep=;"]
DryRun = Annotated[bool, "Check and count; write nothing."]


@dataclass(frozen=True, slots=True)
class Into:
    """Options of the queue or the log that rows go to."""

    queue: Queue = None
    log: Log = None
    columns: Annotated[
        list[str] | None, "--set COLUMN=SQL", "What a column of the target takes; else its namesake."
    ] = None
    rate: Annotated[float | None, "Rows a second, over all tasks."] = None

    def target(self, cli: CliContext, *, id_: str | None = None, at: datetime | None = None) -> Target:
        """Make the target.

        Raises:
            BadInput: PySpark is not installed; neither a queue nor a log is named, or both are.
        """
        need_spark()
        from cqueue.spark.jobs.target import Target  # noqa: PLC0415 - PySpark is an extra

        return Target(
            queue=self.queue,
            log=self.log,
            url=cli.url,
            columns=parse_pairs(self.columns, "--set"),
            id=id_,
            at=at,
            rate=self.rate,
        )


@dataclass(frozen=True, slots=True)
class Session:
    """Options of the session of Spark that a command runs its job in."""

    master: Annotated[str | None, "URL", "Spark's master; by default spark-submit's, or local[*]."] = None
    conf: Annotated[list[str] | None, "NAME=VALUE", "A setting of Spark."] = None

    def run(self, cli: CliContext, name: str, job: Callable[[SparkSession], Done]) -> Done:
        """Run the job, with a progress bar on a terminal, and print its summary.

        Raises:
            BadInput: the extra `spark` is not installed.
            CqueueError: as the job.
        """
        from cqueue.spark.jobs.opening import opened, watched  # noqa: PLC0415 - PySpark is an extra

        with (
            cli.bar(name) as tell,
            opened(name, self.master, parse_pairs(self.conf, "--conf")) as spark,
            watched(spark, tell),
        ):
            summary = job(spark)
        cli.emit(summary.to_dict(), lambda: print_summary(cli, summary))
        return summary


def need_spark() -> None:
    """Look whether PySpark is installed, without importing it.

    Raises:
        BadInput: PySpark is not installed.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise BadInput("This needs PySpark and Java 17: pip install 'cassandra-cqueue[spark]'")


def print_summary(cli: CliContext, summary: Summary) -> None:
    """Print a job's summary for people."""
    figures = {
        name.replace("_", " "): _text(value)
        for name, value in summary.to_dict().items()
        if name not in {"job", "dry_run", "tables"}
    }
    print_sheet(cli, {"job": f"{summary.job}{' (dry run)' if summary.dry_run else ''}", **figures})


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return shown(value)
