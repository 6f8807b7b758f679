"""How messages look: a body a line for pipes, what is known of it beside it for people, objects for JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.values import body_text, safe_for_terminal, show_moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from cqueue.consumer import ReceivedMessage
    from cqueue.queue import StoredMessage


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
            sys.stdout.write(_json({**_common_fields(message), "state": message.state}))
        sys.stdout.flush()
    elif messages:
        cli.console.print(_table(messages))


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


def _table(messages: Sequence[StoredMessage]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - not needed for --help
    from rich.text import Text  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False)
    for column in ("state", "priority", "due", "sent"):
        table.add_column(column, no_wrap=True, justify="right" if column == "priority" else "left")
    table.add_column("body", overflow="ellipsis", no_wrap=True)
    for message in messages:
        text, _ = body_text(message.body)
        table.add_row(
            message.state,
            str(message.priority),
            show_moment(message.due),
            show_moment(message.sent_at),
            Text(safe_for_terminal(text.replace("\n", " "))),
        )
    return table
