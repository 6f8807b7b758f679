"""How dead letters look: a line each, one with all that is known of it, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.short_ids import short
from cqueue.cli.table import print_sheet, print_table
from cqueue.cli.values import body_text, show_moment
from cqueue.errors import NotDone

if TYPE_CHECKING:
    from cqueue.dead_letters import DeadLetter

_COLUMNS = ("id", "died", "task", "attempts", "reason")


def described(letter: DeadLetter) -> dict[str, Any]:
    """What --json shows of a letter in a list."""
    return {
        "id": letter.id,
        "original_id": letter.original_id,
        "state": "dead",
        "task": letter.task,
        "key": letter.key,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "died_at": letter.died_at.isoformat(),
        "held": letter.held,
        "priority": letter.priority,
        "headers": dict(letter.headers),
        "size": letter.size,
    }


def print_letters(cli: CliContext, letters: Sequence[DeadLetter]) -> None:
    """A line of JSON each, or a table."""
    if cli.json:
        for letter in letters:
            sys.stdout.write(json.dumps(described(letter), ensure_ascii=False) + "\n")
        sys.stdout.flush()
    elif letters:
        print_table(cli, _COLUMNS, map(_row, letters), right=("attempts",), spare=("attempts",), cut=True)


def _row(letter: DeadLetter) -> tuple[str, ...]:
    attempts = "–" if letter.attempts is None else str(letter.attempts)
    return short(letter.id), show_moment(letter.died_at), letter.task or "–", attempts, letter.reason


def print_letter(cli: CliContext, letter: DeadLetter, *, queue: str) -> None:
    """All that is known of it, with its traceback and its body."""
    text, encoding, trouble = _body(letter)
    if cli.json:
        more = {"traceback": letter.traceback, "codec": letter.codec, "body": text, "encoding": encoding}
        cli.emit({"queue": queue, **described(letter), **more})
        return
    held = ", held by a consumer of the dead-letter queue" if letter.held else ""
    headers = [f"{name}={value}" for name, value in sorted(letter.headers.items())]
    print_sheet(
        cli,
        {
            "queue": queue,
            "id": f"{letter.id} ({short(letter.id)})",
            "was": letter.original_id,
            "state": f"dead{held}",
            "task": letter.task,
            "key": letter.key,
            "attempts": letter.attempts,
            "died": show_moment(letter.died_at),
            "reason": letter.reason,
            "priority": letter.priority or None,
            "headers": ", ".join(headers),
            "traceback": letter.traceback,
            "body": trouble or text,
        },
    )


def _body(letter: DeadLetter) -> tuple[str | None, str | None, str | None]:
    """The body as text and its encoding, or why there is none: all the rest is shown in any case."""
    if letter.body_lost:
        return None, None, "lost: no replica had it"
    try:
        return *body_text(letter.body), None
    except NotDone as exc:
        return None, None, str(exc)
