"""`cqueue metrics`: what queues hold, for Prometheus, also where no daemon serves them."""

from __future__ import annotations

import queue
from typing import Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.options import LogFormat, log_format

app = typer.Typer()

LOOPBACK = "127.0.0.1"


@command(app, json=False)
def metrics(
    cli: CliContext,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUEUE]…", help="Only these queues; by default all.", show_default=False),
    ] = None,
    *,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, metavar="N", help="Answer /metrics there; 0 takes any free port."),
    ] = 9101,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on; by default only for this machine.")
    ] = LOOPBACK,
    log: LogFormat = None,
) -> None:
    """Answer Prometheus's scrapes with depth, age and dead letters of queues, until a signal comes.

    The figures are those of `cqueue stats`, at most five seconds old. While Cassandra is away, `cqueue_up` is
    0, and no queue is shown.
    """
    from cqueue.client import connect  # noqa: PLC0415 - keeps `cqueue --help` quick
    from cqueue.dispatcher.service import daemon, health, logs  # noqa: PLC0415 - as above
    from cqueue.dispatcher.service.exporter import Exporter  # noqa: PLC0415 - as above

    logs.configure(logs.Format(log_format(cli, log).value), verbose=cli.verbose)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with connect(cli.url, lazy=True) as client, daemon.signals_to(inbox):
        exporter = Exporter(client, names or ())
        with health.serving((host, port), exporter.health, exporter.exposition):
            inbox.get()
