"""How messages look: a body a line for pipes, what is known of it beside it for people, objects for JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.short_ids import short
from cqueue.cli.table import print_sheet, print_table
from cqueue.cli.values import body_text, safe_for_terminal, show_moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cqueue.queue import StoredMessage
    from cqueue.received import ReceivedMessage


class Printer:
    """Writes messages as they come."""

    def __init__(self, cli: CliContext) -> None:
        self._cli = cli
        self._to_terminal = cli.console.is_terminal

    def received(self, message: ReceivedMessage) -> None:
        """One line of JSON; or the body, after a dim line about it if people see both."""
        if self._cli.json:
            sys.stdout.write(_json(received_fields(message)))
            return
        text, encoding = body_text(message.body)
        if not self._to_terminal:
            sys.stdout.write(text + "\n")
            return
        self._cli.console.print(_about(message, encoding), style="dim", highlight=False, markup=False)
        self._cli.console.print(safe_for_terminal(text), highlight=False, markup=False, soft_wrap=True)


def received_fields(message: ReceivedMessage) -> dict[str, Any]:
    """What --json shows of a message that was received."""
    return {
        **_common_fields(message),
        "attempt": message.attempt,
        "visible_again": message.visible_again.isoformat(),
    }


def print_stored(cli: CliContext, messages: Sequence[StoredMessage]) -> None:
    """Messages looked at: a line of JSON each, or a table."""
    if cli.json:
        for message in messages:
            sys.stdout.write(_json(stored_fields(message)))
        sys.stdout.flush()
    elif messages:
        columns = {name: [text(message) for message in messages] for name, text in _COLUMNS.items()}
        if not any(message.priority for message in messages):
            del columns["priority"]
        print_table(
            cli,
            list(columns),
            zip(*columns.values(), strict=True),
            right=_RIGHT,
            spare=("attempts",),
            cut=True,
        )


def print_one(cli: CliContext, message: StoredMessage, *, queue: str) -> None:
    """All that is known of a message."""
    if cli.json:
        cli.emit({"queue": queue, **stored_fields(message)})
        return
    headers = [f"{name}={text}" for name, text in sorted(message.headers.items())]
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
            "headers": ", ".join(headers),
            "body": body_text(message.body)[0],
        },
    )


def stored_fields(message: StoredMessage) -> dict[str, Any]:
    """What --json shows of a message that was looked at."""
    return {
        **_common_fields(message),
        "state": message.state,
        "task": message.task,
        "key": message.key,
        "attempts": message.attempts,
        "next": message.next_at.isoformat(),
    }


_RIGHT = {"attempts", "priority"}
_COLUMNS: Mapping[str, Callable[[StoredMessage], str]] = {
    "id": lambda message: short(message.id),
    "state": lambda message: message.state,
    "next": lambda message: show_moment(message.next_at),
    "attempts": lambda message: str(message.attempts),
    "priority": lambda message: str(message.priority),
    "task": lambda message: message.task or "–",
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


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _about(message: ReceivedMessage, encoding: str) -> str:
    parts = [f"sent {show_moment(message.sent_at)}", f"attempt {message.attempt}"]
    if message.priority:
        parts.append(f"priority {message.priority}")
    parts += [safe_for_terminal(f"{name}={value}") for name, value in sorted(message.headers.items())]
    if encoding != "utf-8":
        parts.append(f"{len(message.body):,} bytes in {encoding}")
    return "  ".join(("──", *parts))
