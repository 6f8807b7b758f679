"""What a dead letter shows: the fields for `--json`, the columns of a table, the lines of a sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.render import emit_one, header_pairs, print_list
from cqueue.cli.short_ids import short
from cqueue.cli.values import body_text
from cqueue.errors import NotDone

if TYPE_CHECKING:
    from cqueue.dead_letters import DeadLetter, LetterGroup

ABANDONED = "unknown: it was killed, it hung, or it lost its connection"
"""What the sheet of a letter says of a holder that let the message expire."""

_COLUMNS: Mapping[str, Callable[[DeadLetter], Any]] = {
    "id": lambda letter: short(letter.id),
    "died": attrgetter("died_at"),
    "task": attrgetter("task"),
    "attempts": attrgetter("attempts"),
    "reason": attrgetter("reason"),
}
_GROUP_COLUMNS: Mapping[str, Callable[[LetterGroup], Any]] = {
    "letters": attrgetter("count"),
    "task": attrgetter("task"),
    "last died": attrgetter("last"),
    "redriven": attrgetter("redriven"),
    "example": lambda group: short(group.example),
    "reason": attrgetter("reason"),
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
        "died_at": letter.died_at,
        "redrives": letter.redrives,
        "holder": letter.holder,
        "fence": letter.fence,
        "holder_lost": letter.holder_lost,
        "held": letter.held,
        "priority": letter.priority,
        "headers": dict(letter.headers),
        "size": letter.size,
    }


def print_letters(cli: CliContext, letters: Sequence[DeadLetter], *, none: str) -> None:
    """Print a line of JSON for each letter, or a table."""
    print_list(cli, letters, letter_fields, _COLUMNS, none=none, lines=True, spare=("attempts",), cut=True)


def print_groups(cli: CliContext, groups: Sequence[LetterGroup], *, none: str) -> None:
    """Print a line of JSON for each group of letters, or a table."""
    print_list(cli, groups, asdict, _GROUP_COLUMNS, none=none, lines=True, spare=("redriven",), cut=True)


def print_letter(cli: CliContext, letter: DeadLetter, *, queue: str) -> None:
    """Print all that is known of a letter, with its traceback and its body."""
    text, encoding, trouble = _body(letter)
    more = {"traceback": letter.traceback, "codec": letter.codec, "body": text, "encoding": encoding}
    held = ", held by a consumer of the dead-letter queue" if letter.held else ""
    told = {
        "id": f"{letter.id} ({short(letter.id)})",
        "state": f"dead{held}",
        "headers": ", ".join(header_pairs(letter.headers)),
        "holder": ABANDONED if letter.holder_lost else letter.holder,
        "fence": None if letter.fence is None else str(letter.fence),
        "redrives": letter.redrives or None,
        "body": trouble or text,
        **dict.fromkeys(("held", "holder_lost", "size", "codec", "encoding")),
    }
    emit_one(cli, {"queue": queue, **letter_fields(letter), **more}, told)


def _body(letter: DeadLetter) -> tuple[str | None, str | None, str | None]:
    """Return the body as text and its encoding, or why there is none: the rest is shown in any case."""
    if letter.body_lost:
        return None, None, "lost: no replica had it"
    try:
        return *body_text(letter.body), None
    except NotDone as exc:
        return None, None, str(exc)
