"""`cqueue metrics`: what queues hold, for Prometheus, also where no daemon serves them."""

from __future__ import annotations

import queue
from typing import Annotated, Any

import typer

from cqueue.cli import log_lines
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.log_lines import LogFormat
from cqueue.cli.options import each_once, number

app = typer.Typer()


@command(app)
def metrics(
    cli: CliContext,
    names: Annotated[list[str] | None, "QUEUE", "Only these queues; by default all."] = None,
    *,
    port: Annotated[int, number("Answer /metrics there; 0 takes any free port.", 0, 65535)] = 9101,
    subscriptions: Annotated[
        bool, "Also count how far subscriptions are behind, which reads records."
    ] = False,
    host: Annotated[str, "HOST", "Address to listen on; by default only for this machine."] = "127.0.0.1",
    log: LogFormat = None,
) -> None:
    """Answer Prometheus's scrapes with depth, age and dead letters of queues, until a signal comes.

    The figures are those of `cqueue stats`, at most five seconds old. While no queue can be read, `cqueue_up`
    is 0, and none is shown.
    """
    from cqueue.client import connect  # noqa: PLC0415 - keeps `cqueue --help` quick
    from cqueue.dispatcher.service import daemon, health  # noqa: PLC0415 - as above
    from cqueue.dispatcher.service.exporter import Exporter  # noqa: PLC0415 - as above

    log_lines.configure(cli, log)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with connect(cli.url, lazy=True) as client, daemon.signals_to(inbox):
        exporter = Exporter(client, each_once(names), subscriptions=subscriptions)
        with health.serving((host, port), exporter.health, exporter.exposition, life=exporter.known_health):
            inbox.get()
            daemon.leave(ExitCode.DONE)  # a read that nodes keep waiting would keep the process
