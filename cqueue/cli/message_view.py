"""What a message shows: the fields for `--json`, the columns of a table, the lines of a sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.render import BodyPrinter, header_pairs, print_each
from cqueue.cli.short_ids import short
from cqueue.cli.table import print_sheet
from cqueue.cli.values import NONE, body_text, show_moment

if TYPE_CHECKING:
    from cqueue.queue import StoredMessage
    from cqueue.received import ReceivedMessage


def received_printer(cli: CliContext) -> BodyPrinter[ReceivedMessage]:
    """Make a printer of received messages."""
    return BodyPrinter(cli, received_fields, _about)


def received_fields(message: ReceivedMessage) -> dict[str, Any]:
    """Return what --json shows of a message that was received."""
    return {
        **_common_fields(message),
        "attempt": message.attempt,
        "visible_again": message.visible_again.isoformat(),
    }


def _about(message: ReceivedMessage) -> list[str]:
    priority = [f"priority {message.priority}"] if message.priority else []
    return [f"sent {show_moment(message.sent_at)}", f"attempt {message.attempt}", *priority]


def print_stored(cli: CliContext, messages: Sequence[StoredMessage]) -> None:
    """Print messages that were looked at: a line of JSON each, or a table."""
    columns = dict(_COLUMNS)
    if not any(message.priority for message in messages):
        del columns["priority"]
    right = ("attempts", "priority")
    print_each(cli, messages, stored_fields, columns, right=right, spare=("attempts",), cut=True)


def print_one(cli: CliContext, message: StoredMessage, *, queue: str) -> None:
    """Print all that is known of a message."""
    if cli.json:
        cli.emit({"queue": queue, **stored_fields(message)})
        return
    until = ", unless it is acked" if message.state == "claimed" else ""
    print_sheet(
        cli,
        {
            "queue": queue,
            "id": f"{message.id} ({short(message.id)})",
            "state": message.state,
            "task": message.task,
            "key": message.key,
            "attempts": message.attempts,
            "next": show_moment(message.next_at) + until,
            "due": show_moment(message.due),
            "sent": show_moment(message.sent_at),
            "priority": message.priority,
            "headers": ", ".join(header_pairs(message.headers)),
            "body": body_text(message.body)[0],
        },
    )


def stored_fields(message: StoredMessage) -> dict[str, Any]:
    """Return what --json shows of a message that was looked at."""
    return {
        **_common_fields(message),
        "state": message.state,
        "task": message.task,
        "key": message.key,
        "attempts": message.attempts,
        "next": message.next_at.isoformat(),
    }


_COLUMNS: Mapping[str, Callable[[StoredMessage], str]] = {
    "id": lambda message: short(message.id),
    "state": lambda message: message.state,
    "next": lambda message: show_moment(message.next_at),
    "attempts": lambda message: str(message.attempts),
    "priority": lambda message: str(message.priority),
    "task": lambda message: message.task or NONE,
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
        "due": message.due.isoformat(),
        "sent_at": message.sent_at.isoformat(),
    }
