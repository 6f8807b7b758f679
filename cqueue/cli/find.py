"""`cqueue find`: one message, in any queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.letter_view import print_letter
from cqueue.cli.message_view import print_one, print_stored
from cqueue.cli.opening import find_queue, open_client, open_queue, say_left_out
from cqueue.cli.options import InQueue, OfKey, SomeMessage
from cqueue.cli.render import emit_one
from cqueue.cli.short_ids import is_short, message_ids, queue_of
from cqueue.cli.values import body_text
from cqueue.errors import BadInput, LetterNotFound
from cqueue.message import MessageId
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dead_letters import DeadLetter
    from cqueue.queue import StoredMessage, TaskResult

app = typer.Typer()
MOST_LISTED = 1000
"""Messages with a key that are shown."""


@command(app)
def find(cli: CliContext, text: SomeMessage = None, *, key: OfKey = None, queue: InQueue = None) -> None:
    """Show where a message stands: its state, its attempts, when it may come next, and the message.

    A whole id says its queue, and of a task that keeps results shows what it returned, too. A short one is
    looked for among all messages of all queues, or of --queue.

    With --key: up to 1,000 messages with this key, and its dead letters, whose state is `dead`.

    Exit code 1: there is no such message (any more).
    """
    from cqueue.dead_letters import DeadLetter  # noqa: PLC0415 - not needed for --help

    if text is None or key is not None:
        _find_key(cli, *check_key(text, key, queue))
        return
    with open_client(cli) as client:
        with cli.status("Looking…"):
            found = look(client, [text], queue)[text]
            ended = _result(client, text) if found is None else None
        if ended is not None:
            emit_one(cli, _result_fields(ended), {"id": ended.id, "encoding": None})
        elif found is None:
            say_left_out(cli, client, "messages")
            missing(cli, text)
            raise typer.Exit(ExitCode.CHECK_FAILED)
        elif isinstance(found, DeadLetter):
            print_letter(cli, found, queue=queue_of(found.id).removesuffix(DEAD_SUFFIX))
        else:
            print_one(cli, found, queue=queue_of(found.id))


def _find_key(cli: CliContext, key: str, queue: str) -> None:
    with open_queue(cli, queue) as opened:
        with cli.status("Looking…"):
            found = opened.list_by_key(key, limit=MOST_LISTED)
        print_stored(cli, found, none=f"Queue {queue} has no message with the key {key}.")
    if not found:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def check_key(named: str | Sequence[str] | None, key: str | None, queue: str | None) -> tuple[str, str]:
    """Return the key and the queue of a command that takes ids, or a key with a queue.

    Raises:
        BadInput: ids are named, or no key, or no queue.
    """
    if named or key is None or queue is None:
        raise BadInput("Give an ID, or --key with --queue.")
    return key, queue


def look(
    client: Client, texts: Iterable[str], queue: str | None
) -> dict[str, StoredMessage | DeadLetter | None]:
    """Find messages by ids, or the dead letters that they are or have become; None where there is neither."""
    if queue is not None:
        find_queue(client, queue)
    ids = message_ids(client, texts, None if queue is None else queue.removesuffix(DEAD_SUFFIX))
    return {text: None if id_ is None else _message(client, id_) for text, id_ in ids.items()}


def _message(client: Client, id_: MessageId) -> StoredMessage | DeadLetter | None:
    name = queue_of(id_)
    message = None if name.endswith(DEAD_SUFFIX) else find_queue(client, name).find(id_)
    return message or _letter(client, name.removesuffix(DEAD_SUFFIX), id_)


def _letter(client: Client, queue: str, id_: MessageId) -> DeadLetter | None:
    try:
        return find_queue(client, queue).dead_letters.get(id_)
    except LetterNotFound:
        return None


def _result(client: Client, text: str) -> TaskResult | None:
    """Return what became of the message of a whole id, if its task keeps results."""
    if is_short(text):
        return None
    with suppress(BadInput):  # of a queue that was deleted and made again
        return find_queue(client, queue_of(MessageId(text))).result(text)
    return None


def _result_fields(ended: TaskResult) -> dict[str, Any]:
    value, encoding = body_text(ended.value) if ended.value is not None else (None, None)
    return {
        "queue": queue_of(ended.id),
        "id": ended.id,
        "state": ended.state,
        "at": ended.at,
        "error": ended.error,
        "reason": ended.reason,
        "result": value,
        "encoding": encoding,
    }


def missing(cli: CliContext, text: str, value: Mapping[str, Any] | None = None) -> None:
    """Say that there is no such message. value: what --json says."""
    if cli.json:
        cli.emit(value)
    cli.remark(f"There is no message {text}. It may have been acked or cancelled, or have expired.")
