"""What a dead letter shows: the fields for `--json`, the columns of a table, the lines of a sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.render import header_pairs, print_each
from cqueue.cli.short_ids import short
from cqueue.cli.table import print_sheet
from cqueue.cli.values import NONE, body_text, show_moment
from cqueue.errors import NotDone

if TYPE_CHECKING:
    from cqueue.dead_letters import DeadLetter

_COLUMNS: Mapping[str, Callable[[DeadLetter], str]] = {
    "id": lambda letter: short(letter.id),
    "died": lambda letter: show_moment(letter.died_at),
    "task": lambda letter: letter.task or NONE,
    "attempts": lambda letter: NONE if letter.attempts is None else str(letter.attempts),
    "reason": lambda letter: letter.reason,
}


def letter_fields(letter: DeadLetter) -> dict[str, Any]:
    """Return what --json shows of a letter in a list."""
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
    """Print a line of JSON for each letter, or a table."""
    layout = {"right": ("attempts",), "spare": ("attempts",)}
    print_each(cli, letters, letter_fields, _COLUMNS, cut=True, **layout)


def print_letter(cli: CliContext, letter: DeadLetter, *, queue: str) -> None:
    """Print all that is known of a letter, with its traceback and its body."""
    text, encoding, trouble = _body(letter)
    if cli.json:
        more = {"traceback": letter.traceback, "codec": letter.codec, "body": text, "encoding": encoding}
        cli.emit({"queue": queue, **letter_fields(letter), **more})
        return
    held = ", held by a consumer of the dead-letter queue" if letter.held else ""
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
            "headers": ", ".join(header_pairs(letter.headers)),
            "traceback": letter.traceback,
            "body": trouble or text,
        },
    )


def _body(letter: DeadLetter) -> tuple[str | None, str | None, str | None]:
    """Return the body as text and its encoding, or why there is none: the rest is shown in any case."""
    if letter.body_lost:
        return None, None, "lost: no replica had it"
    try:
        return *body_text(letter.body), None
    except NotDone as exc:
        return None, None, str(exc)
