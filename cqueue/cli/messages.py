"""`cqueue peek`, `list` and `find`: messages as they stand in queues, and what is shown of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.dead import print_letter
from cqueue.cli.failures import ExitCode
from cqueue.cli.opening import find_queue, open_client, open_queue, say_left_out
from cqueue.cli.options import InQueue, OfKey, QueueName, SomeMessage, given, number
from cqueue.cli.render import emit_one, header_pairs, print_list
from cqueue.cli.short_ids import is_short, message_ids
from cqueue.cli.values import body_text, counted, parse_pairs, show_moment
from cqueue.errors import BadInput, LetterNotFound
from cqueue.message import MessageId, queue_of, short
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dead_letters import DeadLetter
    from cqueue.queue import Queue, StoredMessage, TaskResult
    from cqueue.received import ReceivedMessage
    from cqueue.where import Where

app = typer.Typer()

DEFAULT_LIMIT = 50
MAX_ROWS = 100_000
"""Messages that `list` reads, if the user does not say: some ten seconds' work."""
MOST_LISTED = 1000
"""Messages with a key that are shown."""


@command(app)
def peek(cli: CliContext, name: QueueName, *, limit: Annotated[int, "How many, 1 to 10,000."] = 10) -> None:
    """Look at the first messages, about in order of due times. Nothing is claimed or counted.

    Messages that consumers hold are shown too; their state is `claimed`. With --json an object a line.
    """
    with open_queue(cli, name) as queue:
        with cli.status("Looking…"):
            messages = queue.peek(limit)
        print_stored(cli, messages, none=f"Queue {name} is empty.")


@dataclass(frozen=True, slots=True)
class Predicates:
    """What messages have to be like."""

    header: Annotated[list[str] | None, "NAME=VALUE", "With this header; may be repeated."] = None
    state: Annotated[
        list[str] | None,
        "STATE",
        "ready, claimed, waiting, delayed, expired or quarantined; may be repeated.",
    ] = None
    task: Annotated[str | None, "--task NAME", "Messages of this task."] = None
    priority: Annotated[list[int] | None, "Of this priority, 0 to 9; may be repeated."] = None
    older_than: Annotated[timedelta | None, "Sent this long ago or longer."] = None
    younger_than: Annotated[timedelta | None, "Sent less than this long ago."] = None

    def where(self) -> Where:
        """Return them as the library takes them.

        Raises:
            BadInput, BadParameter: one means nothing.
        """
        from cqueue.where import Where  # noqa: PLC0415 - not needed for --help

        said = given(
            headers=parse_pairs(self.header),
            state=self.state or None,
            task=self.task,
            priority=self.priority or None,
            older_than=self.older_than,
            younger_than=self.younger_than,
        )
        return Where(**said)


@command(app, "list")
def list_messages(
    cli: CliContext,
    name: QueueName,
    which: Predicates,
    *,
    limit: Annotated[int, "How many to show, 1 to 1,000."] = DEFAULT_LIMIT,
    max_rows: Annotated[int, number("How many to read for that, about.", 1)] = MAX_ROWS,
    token: Annotated[str | None, "TOKEN", "Go on where an earlier command stopped."] = None,
) -> None:
    """List the messages of a queue that are like this, about in order of due times, without receiving them.

    All that is given has to be true of a message. If more may follow, the command says with which --token to
    go on. With --json one object: messages, token (null at the end) and rows_read.
    """
    where = which.where()
    with open_queue(cli, name) as queue:
        with cli.status("Looking…"):
            found, token, rows = _read(queue, where, limit, max_rows, token)
        if cli.json:
            told = [stored_fields(message) for message in found]
            cli.emit({"messages": told, "token": token, "rows_read": rows})
        else:
            print_stored(cli, found, none=f"Queue {name}: none of {counted(rows, 'message')} read fits.")
    if token is not None:
        cli.remark(f"{counted(rows, 'message')} read. Go on with --token {token}")


def _read(
    queue: Queue, where: Where, limit: int, max_rows: int, token: str | None
) -> tuple[list[StoredMessage], str | None, int]:
    """Read pages until there are enough messages, or enough was read, or the queue ends."""
    page = queue.list(where, limit=limit, token=token)
    found, rows = list(page.messages), page.rows_read
    while page.token is not None and len(found) < limit and rows < max_rows:
        page = queue.list(where, limit=limit - len(found), token=page.token)
        found, rows = [*found, *page.messages], rows + page.rows_read
    return found, page.token, rows


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
        BadInput: ids are named, or no key, or no queue, or a dead-letter queue.
    """
    if named or key is None or queue is None:
        raise BadInput("Give an ID, or --key with --queue.")
    if queue.endswith(DEAD_SUFFIX):
        own = queue.removesuffix(DEAD_SUFFIX)
        raise BadInput(
            f"{queue} has no keys of its own: `cqueue find --key {key} --queue {own}` shows its letters."
        )
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
    if not name.endswith(DEAD_SUFFIX) and (message := find_queue(client, name).find(id_)) is not None:
        return message
    with suppress(LetterNotFound):
        return find_queue(client, name.removesuffix(DEAD_SUFFIX)).dead_letters.get(id_)
    return None


def _result(client: Client, text: str) -> TaskResult | None:
    """Return what became of the message of a whole id, if its task keeps results."""
    if is_short(text):
        return None
    with suppress(BadInput):  # of a queue that was deleted and made again
        return find_queue(client, queue_of(text)).result(text)
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
    cli.emit(value)
    cli.remark(f"There is no message {text}. It may have been acked or cancelled, or have expired.")


def print_stored(cli: CliContext, messages: Sequence[StoredMessage], *, none: str) -> None:
    """Print messages that were looked at: a line of JSON each, or a table."""
    columns = dict(_COLUMNS)
    if not any(message.priority for message in messages):
        del columns["priority"]
    print_list(cli, messages, stored_fields, columns, none=none, lines=True, spare=("attempts",), cut=True)


def print_one(cli: CliContext, message: StoredMessage, *, queue: str) -> None:
    """Print all that is known of a message."""
    until = ", unless it is acked" if message.state == "claimed" else ""
    told = {
        "id": f"{message.id} ({short(message.id)})",
        "next_at": show_moment(message.next_at) + until,
        "headers": ", ".join(header_pairs(message.headers)),
        "encoding": None,
    }
    fields = {"queue": queue, **stored_fields(message)}
    fields["body"] = fields.pop("body")  # long, so the last
    emit_one(cli, fields, told)


def stored_fields(message: StoredMessage) -> dict[str, Any]:
    """Return what --json shows of a message that was looked at."""
    return {
        **message_fields(message),
        "state": message.state,
        "task": message.task,
        "key": message.key,
        "attempts": message.attempts,
        "next_at": message.next_at,
    }


_COLUMNS: Mapping[str, Callable[[StoredMessage], Any]] = {
    "id": lambda message: short(message.id),
    "state": attrgetter("state"),
    "next": attrgetter("next_at"),
    "attempts": attrgetter("attempts"),
    "priority": attrgetter("priority"),
    "task": attrgetter("task"),
    "body": lambda message: body_text(message.body)[0],
}


def message_fields(message: ReceivedMessage | StoredMessage) -> dict[str, Any]:
    """Return what --json shows of any message."""
    text, encoding = body_text(message.body)
    return {
        "id": message.id,
        "body": text,
        "encoding": encoding,
        "headers": dict(message.headers),
        "priority": message.priority,
        "due": message.due,
        "sent_at": message.sent_at,
    }
