"""What a schedule is to do, as it stands in its row, and what a firing's message is worth beside that row.

The row is the authority. A message may come late, twice, or after its schedule was changed; by generation,
number and time it is either the firing that the row waits for, a repeat of one that has been, or over.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from cqueue.dispatcher import triggers
from cqueue.dispatcher.triggers import Timetable, Trigger
from cqueue.errors import BadInput, BodyTooLarge, ConfigError
from cqueue.store.control import ScheduleRow
from cqueue.store.decode import LAST_MS

MAX_BODY = 64 << 10
"""Bytes. It is part of a row that every firing changes."""
MAX_KEY = 200
_TEXTS = ("task", "codec", "message_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """When to fire, and the message to fire.

    start_ms: when the schedule was made; times without a date of their own count from it. due_ms: when the
    next firing is due, where its time had passed already as the schedule moved on to it; else 0.
    """

    trigger: Trigger
    start_ms: int
    body: bytes = b""
    task: str | None = None
    codec: str | None = None
    message_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    due_ms: int = 0

    def __post_init__(self) -> None:
        """Check what the message's own checks do not."""
        if not isinstance(self.trigger, Trigger):
            raise BadInput(f"a trigger is RunOnce, Repeating or Cron, not {type(self.trigger).__name__}")
        if not isinstance(self.body, bytes):
            raise BadInput(f"a body is bytes, not {type(self.body).__name__}; encode it first")
        if len(self.body) > MAX_BODY:
            raise BodyTooLarge(
                f"the body has {len(self.body):,} bytes; a schedule's has at most {MAX_BODY:,}"
            )

    @property
    def timetable(self) -> Timetable:
        """Its times."""
        return Timetable(self.trigger, self.start_ms)

    def is_same_as(self, other: Definition) -> bool:
        """Whether both say the same, whenever they were made."""
        return self._values() == other._values()

    def to_json(self) -> str:
        """As stored in the row."""
        due = {"due": self.due_ms} if self.due_ms else {}
        return json.dumps({"start": self.start_ms, **due, **self._values()}, sort_keys=True)

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        values["trigger"] = triggers.to_values(self.trigger)
        values["body"] = base64.b64encode(self.body).decode() or None
        values["headers"] = dict(self.headers) or None
        values["priority"] = self.priority or None
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, text: str) -> Definition:
        """What `to_json` wrote.

        Raises:
            ConfigError: it is of a newer version, or was not written by this library.
        """
        try:
            values = json.loads(text)
            values["trigger"] = triggers.from_values(values["trigger"])
            values["body"] = base64.b64decode(values.get("body", ""))
            start_ms, due_ms = _moment_ms(values.pop("start")), _moment_ms(values.pop("due", 0))
            return cls(start_ms=start_ms, due_ms=due_ms, **values)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            # Without the text, which has the messages' body: this is logged
            raise ConfigError(
                f"this version of cqueue cannot read the schedule's definition: {type(exc).__name__}: {exc}"
            ) from exc


def _moment_ms(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LAST_MS:
        raise ValueError(f"{value!r} is not a time in ms since 1970")
    return value


def check_key(key: str) -> str:
    """The key of a schedule, if it is one.

    Raises:
        BadInput: not 1 to 200 printable characters.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise BadInput(f"{key!r} is not a key of a schedule: use 1 to {MAX_KEY} printable characters")
    return key


ACTIVE, PAUSED, DONE = "active", "paused", "done"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One firing of one schedule, as its message carries it in `trigger`. Times: ms since 1970, 0 for none.

    generation: of the row when it was sent; 0 for one asked for by `run_now`. number: which firing of the
    schedule it is, from 1. previous_ms: the time fired before.
    """

    key: str
    generation: int
    number: int
    time_ms: int
    previous_ms: int = 0

    @property
    def is_manual(self) -> bool:
        """Whether it was asked for by `run_now`."""
        return self.generation == 0

    def to_json(self) -> str:
        """As the message carries it."""
        values = [self.generation, self.number, self.time_ms, self.previous_ms]
        return json.dumps({"schedule": self.key, "firing": values}, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str | None) -> Ticket | None:
        """The ticket, or None for a message that is no firing, whatever its sender wrote there."""
        if text is None or not text.startswith('{"schedule"'):
            return None
        try:
            values: dict[str, Any] = json.loads(text)
            generation, number, time_ms, previous_ms = (int(value) for value in values["firing"])
            return cls(str(values["schedule"]), generation, number, time_ms, previous_ms)
        except (ValueError, KeyError, TypeError):
            return None


class Standing(Enum):
    """What a firing's message is worth."""

    CURRENT = "current"  # the one that the row waits for
    REPEAT = "repeat"  # of one that has moved the row on: a retry, or its holder died
    OVER = "over"  # passed over, paused, replaced, removed


def next_ticket(row: ScheduleRow) -> Ticket | None:
    """The ticket of the firing that the row waits for; None if it waits for none."""
    if row.state != ACTIVE or not row.next_at:
        return None
    return Ticket(row.key, row.generation, row.fired + 1, row.next_at, row.previous)


def waiting_for(next_ms: int | None, row: ScheduleRow) -> ScheduleRow:
    """The row, when it waits for the firing of that time; it is done if there is none."""
    return row._replace(state=ACTIVE if next_ms else DONE, next_at=next_ms or 0)


def standing(ticket: Ticket, row: ScheduleRow | None) -> Standing:
    """What a message with this ticket is worth beside the row."""
    if row is None or ticket.generation != row.generation:
        return Standing.OVER
    if ticket.number > row.fired:
        waited_for = ticket.time_ms == row.next_at and row.state == ACTIVE and ticket.number == row.fired + 1
        return Standing.CURRENT if waited_for else Standing.OVER
    ahead = ticket.number == row.fired and ticket.time_ms > row.previous  # one that was passed over
    return Standing.OVER if ahead else Standing.REPEAT
