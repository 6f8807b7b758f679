"""`cqueue spark stream`: a log to Parquet, a queue or another log, as it grows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli import spark_run
from cqueue.cli.context import CliContext
from cqueue.cli.options import LogName
from cqueue.cli.spark_run import Columns, DryRun, Rate, Session, Where
from cqueue.cli.values import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cqueue.spark.jobs.stream import Stream
    from cqueue.spark.jobs.summary import Summary


def stream(
    cli: CliContext,
    name: LogName,
    *,
    checkpoint: Annotated[str, typer.Option(metavar="DIR", help="Remembers how far the stream is.")],
    parquet: Annotated[str | None, typer.Option(metavar="DIR", help="Write Parquet files there.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Or send to this queue.")] = None,
    log: Annotated[str | None, typer.Option(metavar="NAME", help="Or append to this log.")] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Where a new stream begins: earliest, latest, or a time.")
    ] = "earliest",
    topic: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Of this topic only.")] = None,
    where: Where = None,
    columns: Columns = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Go on for ever, and look so often, such as 10s.")
    ] = None,
    batch_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help="Records of a batch.")] = None,
    ignore_loss: Annotated[
        bool, typer.Option("--ignore-loss", help="Go on where the log has forgotten records.")
    ] = False,
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
        every_s=None if every is None else parse_duration(every).total_seconds(),
        batch_rows=batch_rows,
        fail_on_loss=not ignore_loss,
    )
    session.run(cli, "stream", lambda spark: _until_asked(spark, job, dry_run=dry_run))


def _until_asked(spark: SparkSession, job: Stream, *, dry_run: bool) -> Summary:
    """Run the stream until it is done, or Ctrl-C or SIGTERM asks it to end."""
    from cqueue.spark.jobs import stream as module  # noqa: PLC0415 - as above

    with _asked_to_end() as asked:
        return module.run(spark, job, dry_run=dry_run, stopped=asked.is_set)


@contextmanager
def _asked_to_end() -> Iterator[Event]:
    """An event that a signal sets. Spark's own handler, which this replaces, would cancel all jobs."""
    asked = Event()
    before = {each: signal.signal(each, lambda *_: asked.set()) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
