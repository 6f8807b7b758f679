"""What a message shows: the fields for `--json`, the columns of a table, the lines of a sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.render import BodyPrinter, emit_one, header_pairs, print_list
from cqueue.cli.short_ids import short
from cqueue.cli.values import body_text, show_moment

if TYPE_CHECKING:
    from cqueue.queue import StoredMessage
    from cqueue.received import ReceivedMessage


def received_printer(cli: CliContext) -> BodyPrinter[ReceivedMessage]:
    """Make a printer of received messages."""
    return BodyPrinter(cli, received_fields, _about)


def received_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Return what --json shows of a message that was received."""
    more = {"attempt": message.attempt, "visible_again": message.visible_again}
    return {**_common_fields(message), **more}


def _about(message: ReceivedMessage) -> list[str]:
    priority = [f"priority {message.priority}"] if message.priority else []
    return [f"sent {show_moment(message.sent_at)}", f"attempt {message.attempt}", *priority]


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
        **_common_fields(message),
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


def _common_fields(message: ReceivedMessage | StoredMessage) -> dict[str, Any]:
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
