"""`cqueue spark stream`: a log to Parquet, a queue or another log, as it grows."""

from __future__ import annotations

import signal
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli import spark_run
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import handled_by
from cqueue.cli.options import LogName, number
from cqueue.cli.spark_run import Columns, DryRun, Rate, Session, Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cqueue.spark.jobs.summary import Summary


def stream(
    cli: CliContext,
    name: LogName,
    *,
    checkpoint: Annotated[str, "DIR", "Remembers how far the stream is."],
    parquet: Annotated[str | None, "DIR", "Write Parquet files there."] = None,
    queue: Annotated[str | None, "NAME", "Or send to this queue."] = None,
    log: Annotated[str | None, "NAME", "Or append to this log."] = None,
    since: Annotated[str, "TIME", "Where a new stream begins: earliest, latest, or a time."] = "earliest",
    topic: Annotated[list[str] | None, "NAME", "Of this topic only."] = None,
    where: Where = None,
    columns: Columns = None,
    every: Annotated[timedelta | None, "Go on for ever, and look so often, such as 10s."] = None,
    batch_rows: Annotated[int | None, number("Records of a batch.", 1)] = None,
    ignore_loss: Annotated[bool, "Go on where the log has forgotten records."] = False,
    rate: Rate = None,
    session: Session,
    dry_run: DryRun = False,
) -> None:
    """Stream a log to Parquet files, a queue or another log, each record once, whatever breaks.

    Without --every it ends when all is done that was there when it began. Ctrl-C ends it; the next run with
    the same checkpoint goes on where it was.
    """
    spark_run.need_spark()
    from cqueue.spark.jobs import stream as module  # noqa: PLC0415 - PySpark is an extra

    goes_to = None
    if parquet is None:
        goes_to = spark_run.target(cli, queue, log, columns=columns, rate=rate)
    elif queue is not None or log is not None:
        raise typer.BadParameter("give one of --parquet, --queue and --log.")
    job = module.Stream(
        log=name,
        checkpoint=checkpoint,
        target=goes_to,
        path=parquet,
        url=cli.url,
        since=since,
        topics=tuple(topic or ()),
        where=where,
        every_s=None if every is None else every.total_seconds(),
        batch_rows=batch_rows,
        fail_on_loss=not ignore_loss,
    )

    def until_asked(spark: SparkSession) -> Summary:
        asked = Event()
        # Spark's own handler, which this replaces, would cancel all jobs.
        with handled_by(lambda *_: asked.set(), signal.SIGINT, signal.SIGTERM):
            return module.run(spark, job, dry_run=dry_run, stopped=asked.is_set)

    session.run(cli, "stream", until_asked)
