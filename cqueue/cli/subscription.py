"""`cqueue subscription`: list, show, seek, pause, resume, delete, and run listeners of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli import log_lines
from cqueue.cli.commands import command
from cqueue.cli.confirm import Yes, confirm
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import held_back
from cqueue.cli.log_lines import LogFormat
from cqueue.cli.log_read import Partitions, Topics, parse_position
from cqueue.cli.opening import audited, find_log, open_client, say_left_out
from cqueue.cli.options import AppDir, LogName, given
from cqueue.cli.table import print_table
from cqueue.cli.values import counted
from cqueue.errors import BadInput, Closed
from cqueue.runtime.suggestions import suggest

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.log.subscription import ExistingSubscription, Subscription

app = typer.Typer(help="Look at and move subscriptions to logs; run listeners.", no_args_is_help=True)

Name = Annotated[str, "NAME", "The subscription's name."]
LOOK_S = 0.2


@command(app, "list")
def list_subscriptions(cli: CliContext, log: LogName) -> None:
    """List the subscriptions of a log."""
    with open_client(cli) as client:
        find_log(client, log)
        names = client.subscriptions(log)
    if names or cli.json:
        cli.emit(names, "\n".join(names))
    else:
        cli.remark(f"Log {log} has no subscription yet. `cqueue subscription run {log} NAME …` makes one.")


@command(app)
def show(cli: CliContext, log: LogName, name: Name) -> None:
    """Show a subscription: its members, and for each partition who reads it, how far, and its lag.

    Counting the lag reads records, so it takes a while.
    """
    with _existing(cli, log, name) as (_, subscription), cli.status("Counting…"):
        shown = subscription_fields(subscription)
    cli.emit(shown, lambda: _print(cli, shown))


@command(app)
def seek(
    cli: CliContext,
    log: LogName,
    name: Name,
    position: Annotated[
        str,
        parse_position,
        "POSITION",
        "earliest, latest, a time, a duration before now (10m), or after a record's id.",
    ],
    *,
    partition: Partitions = None,
    or_earliest: Annotated[bool, "Go to earliest if the log no longer has the position."] = False,
) -> None:
    """Move a subscription back or on, in all partitions or in some. Members follow within two seconds."""
    on_expired = "earliest" if or_earliest else "error"
    to = dict.fromkeys(partition, position) if partition else position
    with _existing(cli, log, name) as (client, subscription):
        where = given(position=str(position), partitions=partition)
        with audited(cli, client, "seek_subscription", log=log, subscription=name, **where):
            subscription.seek(to, on_expired=on_expired)
        _emit(cli, subscription, f"Subscription {name} of {log} has been moved.")


@command(app)
def pause(cli: CliContext, log: LogName, name: Name) -> None:
    """Let no member call listeners until `resume`. Positions stay. Obeyed within two seconds."""
    with _existing(cli, log, name) as (client, subscription):
        with audited(cli, client, "pause_subscription", log=log, subscription=name):
            subscription.pause()
        _emit(cli, subscription, f"Subscription {name} of {log} is paused.")


@command(app)
def resume(cli: CliContext, log: LogName, name: Name) -> None:
    """Undo `pause`."""
    with _existing(cli, log, name) as (client, subscription):
        with audited(cli, client, "resume_subscription", log=log, subscription=name):
            subscription.resume()
        _emit(cli, subscription, f"Subscription {name} of {log} is active.")


@command(app)
def delete(cli: CliContext, log: LogName, name: Name, *, yes: Yes = False) -> None:
    """Forget a subscription with all its positions. Members that still run end with an error."""
    with open_client(cli) as client:
        _check_name(client, log, name)
        confirm(cli, f"Forget where subscription {name} of {log} stands?", yes=yes)
        with audited(cli, client, "delete_subscription", log=log, subscription=name):
            client.delete_subscription(log, name)
    cli.emit({"log": log, "subscription": name, "deleted": True}, f"Subscription {name} of {log} is deleted.")


@command(app)
def run(
    cli: CliContext,
    log: LogName,
    name: Name,
    targets: Annotated[list[str], "MODULE:LISTENER", "Functions that take a record, called in turn."],
    *,
    app_dir: AppDir = None,
    start: Annotated[
        str | None,
        parse_position,
        "--from POSITION",
        "Where a new subscription begins; by default earliest.",
    ] = None,
    topic: Topics = None,
    partition: Partitions = None,
    max_attempts: Annotated[int, "Calls of a record before it goes to LOG.dead; 0: no limit."] = 5,
    or_earliest: Annotated[bool, "Go on at earliest if the log no longer has a position."] = False,
    log_format: LogFormat = None,
) -> None:
    """Be a member of a subscription, which is made if it does not exist, until Ctrl-C, SIGTERM or SIGHUP.

    Each ends it after the call under way: positions are written down, and other members go on at once.
    A second one ends the process; what was done since the last checkpoint is then done again.
    """
    from cqueue.dispatcher.application.import_string import load  # noqa: PLC0415 - not for --help

    log_lines.configure(cli, log_format)
    listeners = [_listener(target, load(target, app_dir, default=None)) for target in targets]
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
    """Run a subscription on a thread of its own; the calling thread waits for signals."""
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
    with held_back() as interrupts:
        try:
            with interrupts.step():  # a listener's first call may already be the one that ends it
                thread.start()
            _await(ended)
        except KeyboardInterrupt:
            if thread.ident is None:
                raise  # nothing was begun
            stopped = True
            cli.after_ctrl_c()
            cli.remark("Stopping after the call under way; once more ends it at once.")
            subscription.stop()
            _await(ended)
    if failed and not (stopped and isinstance(failed[0], Closed)):  # by a stop before it had begun
        raise failed[0]


def _await(ended: Event) -> None:
    """Wait in pieces, so that signals are seen; an interrupted `join` would take the thread for ended."""
    while not ended.wait(LOOK_S):
        pass


@contextmanager
def _existing(cli: CliContext, log: str, name: str) -> Iterator[tuple[Client, ExistingSubscription]]:
    """Open a subscription that exists, with a client.

    Raises:
        BadInput: there is none of that name; the message suggests the nearest.
    """
    from cqueue.client import inside  # noqa: PLC0415 - the driver takes long to import

    with open_client(cli) as client:
        _check_name(client, log, name)
        yield client, inside(client).subscription(log, name)
        say_left_out(cli, client, "subscriptions")


def _check_name(client: Client, log: str, name: str) -> None:
    find_log(client, log)
    names = client.subscriptions(log)
    if name not in names:
        hint = suggest(name, names, f"`cqueue subscription list {log}` shows what there is.")
        raise BadInput(f"Log {log} has no subscription {name!r}.{hint}")


def _emit(cli: CliContext, subscription: ExistingSubscription, text: str) -> None:
    cli.emit(subscription_fields(subscription) if cli.json else None, text)


def subscription_fields(subscription: ExistingSubscription) -> dict[str, Any]:
    """Return what --json shows of a subscription."""
    positions, owners = subscription.positions(), subscription.owners()
    return {
        "log": subscription.log,
        "subscription": subscription.name,
        "state": "paused" if subscription.paused else "active",
        "members": subscription.members(),
        "partitions": [
            {
                "partition": partition,
                "member": owners.get(partition),
                "position": positions.get(partition),
                "lag": lag.count,
                "lag_ms": int(lag.seconds * 1000),
            }
            for partition, lag in sorted(subscription.lag().items())
        ],
    }


def _print(cli: CliContext, shown: dict[str, Any]) -> None:
    """Print the state and the members, and a line for each partition."""
    members = counted(len(shown["members"]), "member")
    cli.line(f"{shown['subscription']} of {shown['log']}: {shown['state']}, {members}")
    rows = []
    for row in shown["partitions"]:
        behind = timedelta(milliseconds=row["lag_ms"]) if row["lag"] else None
        rows.append((row["partition"], row["lag"], behind, row["member"]))
    print_table(cli, ("partition", "lag", "behind", "member"), rows, right=("behind",))
