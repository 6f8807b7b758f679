"""`cqueue demo`: the whole library at work, and an account of every message."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext, on_stderr
from cqueue.cli.failures import ExitCode
from cqueue.cli.interrupts import Interrupts, held_back
from cqueue.cli.options import number
from cqueue.errors import BadInput, NotDone, OutcomeUnknown, QueueNotFound

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.demo import Options, Report
    from cqueue.queue import Queue

app = typer.Typer()


@command(app)
def demo(
    cli: CliContext,
    *,
    messages: Annotated[int, number("How many messages.", 1)] = 10_000,
    consumers: Annotated[int, number("Threads that handle them.", 1, 64)] = 4,
    producers: Annotated[int, number("Producer threads.", 1, 64)] = 2,
    rate: Annotated[float, number("Messages sent per second; 0 means as fast as it goes.", 0)] = 500,
    keep: Annotated[bool, "Leave the queue, and the Cassandra that was started."] = False,
    directory: Annotated[
        Path | None, "--dir DIR", "Where the embedded Cassandra lives, as for `cqueue dev start`."
    ] = None,
) -> None:
    """Send lines of a text through a fresh queue, handle them, and account for every one.

    Without a URL it runs on the embedded Cassandra, which it starts if it is not running and stops at
    the end. One message in a hundred fails twice; a handful always fail and end as dead letters. A cron
    ticks meanwhile, and every second is accounted for as well.
    Exit code 1: the account does not balance. Ctrl-C stops it and prints the account so far.
    """
    from cqueue.demo import Options  # noqa: PLC0415 - keeps `cqueue --help` quick

    options = Options(messages=messages, consumers=consumers, producers=producers, rate=rate)
    with held_back() as interrupts:
        report = _run_somewhere(cli, options, directory, interrupts, keep=keep)
    if report.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not report.balanced:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _run_somewhere(
    cli: CliContext, options: Options, directory: Path | None, interrupts: Interrupts, *, keep: bool
) -> Report:
    from cqueue.client import connect  # noqa: PLC0415 - as above
    from cqueue.demo import cassandra  # noqa: PLC0415 - as above
    from cqueue.settings import named_url  # noqa: PLC0415 - as above

    url = named_url(cli.given_url)
    if url is not None and directory is not None:
        raise BadInput("--dir is of the embedded Cassandra, and a URL names another one: give one of them.")
    with ExitStack() as stack:
        if url is None:
            told = cli.status, cli.remark
            url = stack.enter_context(cassandra.embedded(directory, *told, interrupts.step, keep=keep))
        with cli.status("Preparing the keyspace") as say:
            cassandra.apply_schema(url, say)
            client = stack.enter_context(connect(url))
        return _run(cli, client, options, interrupts, keep=keep)


def _run(cli: CliContext, client: Client, options: Options, interrupts: Interrupts, *, keep: bool) -> Report:
    from cqueue.client import inside  # noqa: PLC0415 - as above
    from cqueue.demo import Demo, display  # noqa: PLC0415 - as above

    interrupted = False
    inside(client).is_alone()
    # Refusals are what the account is about; as log lines they would only hide it.
    logging.getLogger("cqueue").addHandler(logging.NullHandler())
    with (
        _fresh_queue(cli, client, interrupts) as (queue, kept),
        _fresh_queue(cli, client, interrupts) as (ticks, _),
    ):
        demo = Demo(client, queue, ticks, options)
        try:
            with display.live(cli.err_console, silent=cli.json) as watch:
                demo.run(on_stderr()(watch))
        except KeyboardInterrupt:
            interrupted = True
            cli.remark("Interrupted. Letting what is under way come to its end.")
        with interrupts.step():
            report = demo.report(interrupted=interrupted)
            shown = {"queue": queue.name, **asdict(report), "balanced": report.balanced}
            cli.emit(shown, lambda: display.summary(report))
        if keep or not (report.balanced or report.interrupted):
            cli.remark(f"Queue {queue.name} is kept.")
            kept.pop_all()
    return report


@contextmanager
def _fresh_queue(
    cli: CliContext, client: Client, interrupts: Interrupts
) -> Iterator[tuple[Queue, ExitStack]]:
    """Make a queue that is deleted at the end, unless the stack that comes with it is emptied."""
    from cqueue.demo.runner import CONFIG  # noqa: PLC0415 - as above

    name = f"demo-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        stack.callback(_delete, cli, client, name, interrupts)
        with interrupts.step():
            queue = client.create_queue(name, CONFIG)
        yield queue, stack


def _delete(cli: CliContext, client: Client, name: str, interrupts: Interrupts) -> None:
    try:
        with interrupts.step(), suppress(QueueNotFound):
            client.delete_queue(name)
    except (NotDone, OutcomeUnknown) as exc:
        cli.warn(f"Queue {name} could not be deleted: {exc}. `cqueue queue delete {name}` does that later.")
