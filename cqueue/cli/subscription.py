"""`cqueue subscription`: list, show, seek, pause, resume, delete, and run listeners of a module."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.confirm import confirm
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import after_ctrl_c, held_back
from cqueue.cli.log_read import Partitions, Topics, parse_position
from cqueue.cli.opening import find_log, open_client, say_left_out
from cqueue.cli.options import AppDir, Json, LogFormat, LogName, Yes, log_format
from cqueue.cli.subscription_view import described, print_subscription
from cqueue.errors import BadInput, Closed

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.log.subscription import Subscription

app = typer.Typer(help="Look at and move subscriptions to logs; run listeners.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name.", show_default=False)]
LOOK_S = 0.2


@app.command("list")
def list_subscriptions(ctx: typer.Context, log: LogName, *, _json: Json = False) -> None:
    """List the subscriptions of a log."""
    cli: CliContext = ctx.obj
    with open_client(cli) as client:
        find_log(client, log)
        names = client.subscriptions(log)
    if names or cli.json:
        cli.emit(names, "\n".join(names))
    else:
        cli.remark(f"Log {log} has no subscription yet. `cqueue subscription run {log} NAME …` makes one.")


@app.command()
def show(ctx: typer.Context, log: LogName, name: Name, *, _json: Json = False) -> None:
    """Show a subscription: its members, and for each partition who reads it, how far, and its lag.

    Counting the lag reads records, so it takes a while.
    """
    with open_client(ctx.obj) as client:
        _emit(ctx.obj, _opened(client, log, name))
        say_left_out(ctx.obj, client, "subscriptions")


@app.command()
def seek(
    ctx: typer.Context,
    log: LogName,
    name: Name,
    position: Annotated[
        str,
        typer.Argument(
            metavar="POSITION",
            parser=parse_position,
            help="earliest, latest, a time, a duration before now (10m), or after a record's id.",
            show_default=False,
        ),
    ],
    *,
    partition: Partitions = None,
    or_earliest: Annotated[
        bool, typer.Option("--or-earliest", help="Go to earliest if the log no longer has the position.")
    ] = False,
    _json: Json = False,
) -> None:
    """Move a subscription back or on, in all partitions or in some. Members follow within two seconds."""
    on_expired = "earliest" if or_earliest else "error"
    with _existing(ctx, log, name) as subscription:
        subscription.seek(
            dict.fromkeys(partition, position) if partition else position, on_expired=on_expired
        )
        _emit(ctx.obj, subscription, f"Subscription {name} of {log} has been moved.")


@app.command()
def pause(ctx: typer.Context, log: LogName, name: Name, *, _json: Json = False) -> None:
    """Let no member call listeners until `resume`. Positions stay. Obeyed within two seconds."""
    with _existing(ctx, log, name) as subscription:
        subscription.pause()
        _emit(ctx.obj, subscription, f"Subscription {name} of {log} is paused.")


@app.command()
def resume(ctx: typer.Context, log: LogName, name: Name, *, _json: Json = False) -> None:
    """Undo `pause`."""
    with _existing(ctx, log, name) as subscription:
        subscription.resume()
        _emit(ctx.obj, subscription, f"Subscription {name} of {log} is active.")


@app.command()
def delete(ctx: typer.Context, log: LogName, name: Name, *, yes: Yes = False, _json: Json = False) -> None:
    """Forget a subscription with all its positions. Members that still run end with an error."""
    cli: CliContext = ctx.obj
    with open_client(cli) as client:
        find_log(client, log)
        _check_name(client, log, name)
        confirm(cli, f"Forget where subscription {name} of {log} stands?", yes=yes)
        client.delete_subscription(log, name)
    cli.emit({"log": log, "subscription": name, "deleted": True}, f"Subscription {name} of {log} is deleted.")


@app.command()
def run(
    ctx: typer.Context,
    log: LogName,
    name: Name,
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:LISTENER…",
            help="Functions that take a record, called in turn.",
            show_default=False,
        ),
    ],
    *,
    app_dir: AppDir = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            parser=parse_position,
            help="Where a new subscription begins; by default earliest.",
            show_default=False,
        ),
    ] = None,
    topic: Topics = None,
    partition: Partitions = None,
    max_attempts: Annotated[
        int, typer.Option(metavar="N", help="Calls of a record before it goes to LOG.dead; 0: no limit.")
    ] = 5,
    or_earliest: Annotated[
        bool, typer.Option("--or-earliest", help="Go on at earliest if the log no longer has a position.")
    ] = False,
    log_lines: LogFormat = None,
) -> None:
    """Be a member of a subscription, which is made if it does not exist, until Ctrl-C or SIGTERM.

    Either ends it after the call under way: positions are written down, and other members go on at once.
    A second one ends the process; what was done since the last checkpoint is then done again.
    """
    from cqueue.dispatcher import logs  # noqa: PLC0415 - not for --help
    from cqueue.dispatcher.target import load  # noqa: PLC0415 - as above

    cli: CliContext = ctx.obj
    logs.configure(logs.Format(log_format(cli, log_lines).value), verbose=cli.verbose)
    listeners = [_listener(target, load(target, app_dir)) for target in targets]
    with open_client(cli) as client:
        find_log(client, log)
        subscription = client.subscribe(
            log,
            name=name,
            listeners=listeners,
            start=start or "earliest",
            topics=topic or None,
            partitions=partition or None,
            max_attempts=max_attempts,
            on_expired="earliest" if or_earliest else "error",
        )
        _run(cli, subscription)


def _listener(target: str, found: Any) -> Any:
    if not callable(found):
        raise BadInput(f"{target} is not a function but a {type(found).__name__}; a listener takes a record.")
    return found


def _run(cli: CliContext, subscription: Subscription) -> None:
    """Run it on a thread of its own: this one waits for signals."""
    failed: list[BaseException] = []
    ended = Event()

    def work() -> None:
        try:
            subscription.run()
        except BaseException as exc:  # noqa: BLE001 - raised again below
            failed.append(exc)
        finally:
            ended.set()

    thread, stopped = Thread(target=work, name="cqueue-subscription", daemon=True), False
    with held_back(signal.SIGINT, signal.SIGTERM) as interrupts:
        try:
            with interrupts.step():  # a listener's first call may already be the one that ends it
                thread.start()
            _await(ended)
        except KeyboardInterrupt:
            if thread.ident is None:
                raise  # nothing was begun
            stopped = True
            after_ctrl_c(cli.err_console)
            cli.remark("Stopping after the call under way; once more ends it at once.")
            subscription.stop()
            _await(ended)
    if failed and not (stopped and isinstance(failed[0], Closed)):  # by a stop before it had begun
        raise failed[0]


def _await(ended: Event) -> None:
    """In pieces, so that signals are seen. A `join` that is interrupted would take the thread for ended."""
    while not ended.wait(LOOK_S):
        pass


@contextmanager
def _existing(ctx: typer.Context, log: str, name: str) -> Iterator[Subscription]:
    """A subscription that is there; looking at one must not make it.

    Raises:
        BadInput: there is none of that name; the message suggests the nearest.
    """
    with open_client(ctx.obj) as client:
        yield _opened(client, log, name)


def _opened(client: Client, log: str, name: str) -> Subscription:
    find_log(client, log)
    _check_name(client, log, name)
    return client.subscribe(log, name=name, listeners=[_nobody])


def _check_name(client: Client, log: str, name: str) -> None:
    names = client.subscriptions(log)
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"`cqueue subscription list {log}` shows what there is."
    raise BadInput(f"Log {log} has no subscription {name!r}. {hint}")


def _nobody(_record: Any) -> None:
    """The listener of a member that never starts."""


def _emit(cli: CliContext, subscription: Subscription, text: str | None = None) -> None:
    if text is not None and not cli.json:
        cli.emit(None, text)
        return
    with cli.status("Counting…"):
        description = described(subscription)
    cli.emit(description, lambda: print_subscription(cli, description))
