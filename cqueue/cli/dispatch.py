"""`cqueue dispatch`: run the handlers of an application, for as long as the machine runs."""

from __future__ import annotations

import os
import queue
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli import log_lines
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.log_lines import LogFormat
from cqueue.cli.options import AppDir, directory, given, number
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from cqueue.dispatcher.service.daemon import DaemonSettings

app = typer.Typer()

DEFAULT_GRACE = timedelta(seconds=30)


@command(app)
def dispatch(
    cli: CliContext,
    target: Annotated[
        str,
        "MODULE:APP",
        "A cqueue.App or Dispatcher; a function that makes one; or a handler, with --queues.",
    ],
    *,
    app_dir: AppDir = None,
    queues: Annotated[str | None, "A,B", "Only these queues; by default those of all tasks."] = None,
    threads: Annotated[int | None, number("Threads that run handlers; by default 8.", 1)] = None,
    consumers: Annotated[int | None, number("Threads that receive; by default 2.", 1)] = None,
    batch_size: Annotated[int | None, number("Messages to receive at once; by default 100.", 1)] = None,
    processes: Annotated[
        int | None, number("Run N processes, and replace any that dies; by default just this one.", 1, 256)
    ] = None,
    one_core: Annotated[bool, "Keep each process to one core: for very quick handlers."] = False,
    drain: Annotated[bool, "Stop when no message is due."] = False,
    watch: Annotated[
        Path | None,
        directory("Restart when a .py file under DIR changes; implies --processes 1."),
    ] = None,
    grace: Annotated[timedelta | None, "How long handlers may run on after a signal; by default 30s."] = None,
    health_port: Annotated[
        int | None, number("Answer /livez, /readyz and /metrics there; 0 takes any free port.", 0, 65535)
    ] = None,
    health_host: Annotated[
        str, "HOST", "Address to listen on; by default only for this machine."
    ] = "127.0.0.1",
    log: LogFormat = None,
) -> None:
    """Run the handlers of an application until a signal comes.

    SIGTERM, SIGINT (Ctrl-C) and SIGHUP end it: it receives no more, gives back what was not started, and
    waits for running handlers up to --grace. A second signal ends it at once. With --processes, SIGHUP
    replaces the processes one after the other instead.

    Exit code 0: drained. 1: the grace passed with handlers running. 2: there is nothing to run. 128 and the
    signal's number: a second signal.
    """
    if cli.url is not None:
        os.environ["CQUEUE_URL"] = cli.url  # for applications, and children, that name no URL themselves
    from cqueue.dispatcher.service.daemon import DaemonSettings, leave  # noqa: PLC0415 - as above
    from cqueue.runtime import process  # noqa: PLC0415 - keeps `cqueue --help` quick

    settings = DaemonSettings(
        target=target,
        queues=_names(queues),
        options=given(threads=threads, consumers=consumers, batch_size=batch_size),
        grace_s=(DEFAULT_GRACE if grace is None else grace).total_seconds(),
        drain=drain,
        core=process.any_core() if one_core else None,
        log=log_lines.configure(cli, log).value,
        verbose=cli.verbose,
        app_dir="" if app_dir is None else str(app_dir),
    )
    address = None if health_port is None else (health_host, health_port)
    code = _run(settings, processes or (1 if watch else None), watch, address)
    if code:  # a handler that cannot be ended must not keep the process
        leave(code)


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BadInput("--queues names no queue. Write --queues mail,invoices, or leave it out.")
    return names


def _run(
    settings: DaemonSettings, processes: int | None, watch: Path | None, address: tuple[str, int] | None
) -> int:
    from cqueue.dispatcher.service import daemon, parent  # noqa: PLC0415 - as above
    from cqueue.dispatcher.service.systemd import Notifier  # noqa: PLC0415 - as above

    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    told: dict[str, Any] = {"notifier": Notifier.from_environment(), "health_address": address}
    with daemon.signals_to(inbox):
        if processes is None:
            return daemon.Daemon(settings, inbox, **told).run()
        return parent.ParentProcess(settings, processes, inbox, watch=watch, **told).run()
