"""Clients and queues for commands: opened, closed, and with a hint when a queue's name is mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cqueue.cli.context import CliContext
from cqueue.errors import NotDone, QueueNotFound

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.queue import Queue


@contextmanager
def open_client(cli: CliContext) -> Iterator[Client]:
    """A client for as long as the command needs it.

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
    """A queue, with a client of its own.

    Raises:
        QueueNotFound: there is none of that name; the message suggests the nearest.
    """
    with open_client(cli) as client:
        yield find_queue(client, name)


def find_queue(client: Client, name: str) -> Queue:
    """The queue, or an error that suggests the nearest name."""
    try:
        return client.queue(name)
    except QueueNotFound as exc:
        raise not_found(client, name) from exc


def not_found(client: Client, name: str) -> QueueNotFound:
    """What to tell somebody who named a queue that does not exist."""
    try:
        names = client.queues()
    except NotDone:  # the hint is not worth another error
        names = []
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return QueueNotFound(f"There is no queue {name!r}. Did you mean {near[0]!r}?")
    hint = "`cqueue queue list` shows what there is" if names else "there is none yet"
    return QueueNotFound(f"There is no queue {name!r}: {hint}, and `cqueue queue create {name}` makes one.")
