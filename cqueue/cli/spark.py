"""`cqueue spark`: jobs over queues and logs that Spark runs, here or on a cluster."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli import spark_run
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.interrupts import handled_by
from cqueue.cli.options import LogName, MaxRedrives, QueueName, Rate, number
from cqueue.cli.spark_run import DryRun, Format, Into, Log, Queue, ReaderOptions, Session, Where
from cqueue.cli.table import print_table
from cqueue.cli.values import parse_pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cqueue.spark.jobs.summary import Summary

app = typer.Typer(
    no_args_is_help=True, help="Jobs that Spark runs: files, reports, archives (extra `spark`)."
)

Files = Annotated[list[str], "FILE", "Files or directories, as in Spark."]
Directory = Annotated[str, "DIR", "The archive, as Spark takes directories."]


@command(app)
def enqueue(
    cli: CliContext,
    files: Files,
    into: Into,
    *,
    file_format: Format = None,
    option: ReaderOptions = None,
    where: Where = None,
    row_id: Annotated[str | None, "--id SQL", "Rows of the same id are one message; needs --due."] = None,
    due: Annotated[datetime | None, "Of rows that have none; give it again when you run it again."] = None,
    session: Session,
    dry_run: DryRun = False,
) -> None:
    """Send a message, or append a record, for each row of files. All rows are checked first."""
    goes_to = into.target(cli, id_=row_id, at=due)
    from cqueue.spark.jobs import enqueue as module  # noqa: PLC0415 - PySpark is an extra

    job = module.Enqueue(
        paths=tuple(files),
        target=goes_to,
        format=file_format,
        options=parse_pairs(option, "--option"),
        where=where,
    )
    session.run(cli, "enqueue", lambda spark: module.run(spark, job, dry_run=dry_run))


@command(app)
def report(
    cli: CliContext,
    *,
    queue: Queue = None,
    log: Log = None,
    history: Annotated[list[str] | None, "FILE", "Or a history that cqueue.testing recorded."] = None,
    since: Annotated[datetime | None, "Of a log: records from this time on."] = None,
    until: Annotated[datetime | None, "Of a log: records before this time."] = None,
    latency: Annotated[str | None, "SQL", "Of a log: seconds, whose percentiles are shown."] = None,
    top: Annotated[int, number("Topics, tasks, keys, reasons.", 1, 1000)] = 10,
    html: Annotated[Path | None, "FILE", "Write a page with plots as well."] = None,
    session: Session,
) -> None:
    """Count what a queue or a log holds: backlog, ages, shards, dead letters; topics, keys, times."""
    spark_run.need_spark()
    from cqueue.spark.jobs import report as module  # noqa: PLC0415 - PySpark is an extra
    from cqueue.spark.jobs.report_page import shown, write  # noqa: PLC0415 - as above

    job = module.Report(
        queue=queue,
        log=log,
        history=tuple(history or ()),
        url=cli.url,
        since=since,
        until=until,
        latency=latency,
        top=top,
    )
    found = session.run(cli, "report", lambda spark: module.run(spark, job))
    if not cli.json:
        for each in found.tables:
            cli.line(f"\n{each.title}")
            print_table(cli, each.columns, [[shown(value) for value in row] for row in each.rows])
    if html is not None:
        plots = write(found, html)
        cli.remark(f"{html} is written{'' if plots else ', without plots: they need matplotlib'}.")


@command(app)
def archive(
    cli: CliContext,
    log: LogName,
    directory: Directory,
    *,
    until: Annotated[datetime | None, "Records before this time; by default all that is stable."] = None,
    file_rows: Annotated[int, number("At most this many in a file.", 1)] = 1_000_000,
    verify: Annotated[bool, "Then compare all files with their checksums."] = False,
    session: Session,
    dry_run: DryRun = False,
) -> None:
    """Add to Parquet files by day what became stable in a log since the last run.

    Exit code 1: with --verify, files are damaged or gone.
    """
    spark_run.need_spark()
    from cqueue.spark.jobs import archive as module  # noqa: PLC0415 - PySpark is an extra

    job = module.Archive(log=log, path=directory, url=cli.url, until=until, file_rows=file_rows)
    done = session.run(cli, "archive", lambda spark: module.run(spark, job, dry_run=dry_run, check=verify))
    if done.details.get("damaged"):
        raise typer.Exit(ExitCode.CHECK_FAILED)


@command(app)
def replay(
    cli: CliContext,
    directory: Directory,
    into: Into,
    *,
    where: Where = None,
    name: Annotated[str | None, "NAME", "Tells one replay from another."] = None,
    check: Annotated[bool, "Compare checksums first."] = False,
    session: Session,
    dry_run: DryRun = False,
) -> None:
    """Send records of an archive to a queue or a log. Run again, it makes no copies."""
    goes_to = into.target(cli)
    from cqueue.spark.jobs import replay as module  # noqa: PLC0415 - PySpark is an extra

    job = module.Replay(path=directory, target=goes_to, where=where, name=name, check=check)
    session.run(cli, "replay", lambda spark: module.run(spark, job, dry_run=dry_run))


@command(app)
def redrive(
    cli: CliContext,
    name: QueueName,
    *,
    where: Where = None,
    to: Annotated[str | None, "NAME", "Another queue to send them to."] = None,
    limit: Annotated[int | None, number("At most this many, oldest first.", 1)] = None,
    rate: Rate = None,
    max_redrives: MaxRedrives = None,
    session: Session,
    dry_run: DryRun = False,
) -> None:
    """Send dead letters back to their queue: each is stored there before it is deleted.

    Exit code 1: some could not be sent, and stay dead letters.
    """
    spark_run.need_spark()
    from cqueue.spark.jobs import redrive as module  # noqa: PLC0415 - PySpark is an extra

    job = module.Redrive(
        queue=name, url=cli.url, where=where, to=to, limit=limit, rate=rate, max_redrives=max_redrives
    )
    done = session.run(cli, "redrive", lambda spark: module.run(spark, job, dry_run=dry_run))
    if done.details["failed"]:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@command(app)
def dedup(
    cli: CliContext,
    files: Files,
    into: Into,
    *,
    against_queue: Annotated[list[str] | None, "NAME", "Its keys count too."] = None,
    against_log: Annotated[list[str] | None, "NAME", "Its keys count too."] = None,
    since: Annotated[datetime | None, "Of logs: keys of records from this time on."] = None,
    file_format: Format = None,
    option: ReaderOptions = None,
    session: Session,
    dry_run: DryRun = False,
) -> None:
    """Write those rows of files whose key neither the queue or log nor another row has."""
    goes_to = into.target(cli)
    from cqueue.spark.jobs import dedup as module  # noqa: PLC0415 - PySpark is an extra
    from cqueue.spark.jobs import enqueue as reading  # noqa: PLC0415 - as above

    others = [("queue", each) for each in against_queue or ()] + [("log", each) for each in against_log or ()]
    job = module.Dedup(target=goes_to, against=tuple(others), since=since)
    source = reading.Enqueue(
        paths=tuple(files), target=goes_to, format=file_format, options=parse_pairs(option, "--option")
    )
    session.run(
        cli, "dedup", lambda spark: module.run(spark, reading.read(spark, source), job, dry_run=dry_run)
    )


@command(app)
def stream(
    cli: CliContext,
    name: LogName,
    into: Into,
    *,
    checkpoint: Annotated[str, "DIR", "Remembers how far the stream is."],
    parquet: Annotated[str | None, "DIR", "Write Parquet files there."] = None,
    since: Annotated[str, "TIME", "Where a new stream begins: earliest, latest, or a time."] = "earliest",
    topic: Annotated[list[str] | None, "NAME", "Of this topic only."] = None,
    where: Where = None,
    every: Annotated[timedelta | None, "Go on for ever, and look so often, such as 10s."] = None,
    batch_rows: Annotated[int | None, number("Records of a batch.", 1)] = None,
    ignore_loss: Annotated[bool, "Go on where the log has forgotten records."] = False,
    resend_stale: Annotated[
        bool, "To a queue: repeat a batch that broke off over gc_grace ago; may make copies."
    ] = False,
    session: Session,
    dry_run: DryRun = False,
) -> None:
    """Stream a log to Parquet files, a queue or another log, each record once, whatever breaks.

    Without --every it ends when all is done that was there when it began. Ctrl-C ends it; the next run with
    the same checkpoint goes on where it was.
    """
    spark_run.need_spark()
    from cqueue.spark.jobs import stream as module  # noqa: PLC0415 - PySpark is an extra

    if parquet is not None and (into.queue is not None or into.log is not None):
        raise typer.BadParameter("give one of --parquet, --queue and --log.")
    job = module.Stream(
        log=name,
        checkpoint=checkpoint,
        target=into.target(cli) if parquet is None else None,
        path=parquet,
        url=cli.url,
        since=since,
        topics=tuple(topic or ()),
        where=where,
        every_s=None if every is None else every.total_seconds(),
        batch_rows=batch_rows,
        fail_on_loss=not ignore_loss,
        resend_stale=resend_stale,
    )

    def until_asked(spark: SparkSession) -> Summary:
        asked = Event()
        # Spark's own handler, which this replaces, would cancel all jobs.
        with handled_by(lambda *_: asked.set(), signal.SIGINT, signal.SIGTERM):
            return module.run(spark, job, dry_run=dry_run, stopped=asked.is_set)

    session.run(cli, "stream", until_asked)
