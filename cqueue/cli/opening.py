"""Clients, queues and logs for commands: opened, closed, and with a hint when a name is mistyped."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from cqueue.cli.context import CliContext
from cqueue.errors import CqueueError, LogNotFound, NotDone, QueueNotFound
from cqueue.runtime.suggestions import suggest

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.log.log import Log
    from cqueue.queue import Queue


NO_QUEUE = "There is no queue yet. `cqueue queue create NAME` makes one."


@contextmanager
def open_client(cli: CliContext) -> Iterator[Client]:
    """Connect a client, closed at the end of the block.

    Raises:
        ConfigError, Unavailable, SchemaMismatch: as `cqueue.connect`.
    """
    from cqueue.client import connect  # noqa: PLC0415 - the driver takes long to import

    with cli.status("Connecting…"):
        client = connect(cli.url)
    with client:
        yield client


@contextmanager
def open_queue(cli: CliContext, name: str) -> Iterator[Queue]:
    """Open a queue, with a client of its own; at the end, say which messages could not be read.

    Raises:
        QueueNotFound: there is none of that name; the message suggests the nearest.
    """
    with open_client(cli) as client:
        yield find_queue(client, name)
        say_left_out(cli, client, "messages", "message_keys")


def find_queue(client: Client, name: str) -> Queue:
    """Return the queue, or raise an error that suggests the nearest name."""
    with _suggesting("queue", name, client.queues):
        return client.queue(name)


@contextmanager
def open_log(cli: CliContext, name: str) -> Iterator[Log]:
    """Open a log, with a client of its own.

    Raises:
        LogNotFound: there is none of that name; the message suggests the nearest.
    """
    with open_client(cli) as client:
        yield find_log(client, name)


def find_log(client: Client, name: str) -> Log:
    """Return the log, or raise an error that suggests the nearest name."""
    with _suggesting("log", name, client.logs):
        return client.log(name)


def check_deletable(client: Client, kind: Literal["queue", "log"], name: str) -> None:
    """Refuse a name that nothing has, before the user is asked and the deletion is written down.

    A queue or log that is damaged, or deleted in part, can be deleted.

    Raises:
        QueueNotFound, LogNotFound: there is none of that name; the message suggests the nearest.
    """
    from cqueue.client import inside  # noqa: PLC0415 - the driver takes long to import

    if kind == "queue":
        if inside(client).catalog.find(name) is None:
            raise QueueNotFound(_hint(kind, name, client.queues))
    elif inside(client).logs.find(name) is None:
        raise LogNotFound(_hint(kind, name, client.logs))


@contextmanager
def _suggesting(kind: str, name: str, names_of: Callable[[], list[str]]) -> Iterator[None]:
    """Suggest the nearest of these names where a queue or a log of this one is not found, or to create it."""
    try:
        yield
    except (QueueNotFound, LogNotFound) as exc:
        create = f", and `cqueue {kind} create {name}` makes one"
        raise type(exc)(_hint(kind, name, names_of, create)) from exc


@contextmanager
def audited(cli: CliContext, client: Client, what: str, **about: Any) -> Iterator[dict[str, Any]]:
    """Write down what the user of this process changes, before and after; see `Trail.action`.

    Where that fails, say so and go on: the role may not make the log, or the log itself is in trouble, and
    `queue pause` has to work in an emergency.

    what: `pause_queue` and so on. about: what it is done to.
    """
    from cqueue.audit import LOG, Trail  # noqa: PLC0415 - as above

    with ExitStack() as stack:
        more: dict[str, Any] = {}
        try:
            more = stack.enter_context(Trail(client).action(_user(), socket.gethostname(), what, **about))
        except CqueueError as exc:
            cli.warn(f"The log {LOG} may not have this change: {exc}")
        yield more


def _user() -> str:
    """Return the name of the user whose process this is; in a container it may be a number alone."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def say_left_out(cli: CliContext, client: Client, *tables: str) -> None:
    """Say, below a list, how many rows of these tables are not in it because they cannot be read."""
    from cqueue.client import inside  # noqa: PLC0415 - as above

    left_out = inside(client).quarantine.of(*tables)
    if left_out:
        rows = f"{len(left_out)} damaged {'row is' if len(left_out) == 1 else 'rows are'}"
        cli.warn(
            f"{rows} left out: {left_out[0].address}: {left_out[0].reason}"
            f"{', …' if len(left_out) > 1 else ''}. `cqueue quarantine list` shows all."
        )


def _hint(kind: str, name: str, names_of: Callable[[], list[str]], create: str = "") -> str:
    try:
        names = names_of()
    except NotDone:  # the hint is not worth another error
        names = []
    if near := suggest(name, names):
        return f"There is no {kind} {name!r}.{near}"
    hint = f"`cqueue {kind} list` shows what there is" if names else "there is none yet"
    return f"There is no {kind} {name!r}: {hint}{create}."
