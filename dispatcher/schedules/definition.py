"""The stored definition of a schedule, and how a firing's message relates to the schedule's row.

The row is the authority. A message may come late, twice, or after its schedule was changed. Generation and
time tell whether the message is the firing that the row waits for, a repeat of an earlier one, or obsolete:
within a generation the row goes from time to time and never back. The number does not tell it, because a
time that is left out has no number.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from cqueue.dispatcher.schedules import triggers
from cqueue.dispatcher.schedules.triggers import Timetable, Trigger
from cqueue.errors import BadInput, BodyTooLarge, ConfigError
from cqueue.runtime.firing_id import FiringId as FiringId  # noqa: PLC0414 - the dispatcher takes it from here
from cqueue.runtime.texts import quoted
from cqueue.store.control import ScheduleRow
from cqueue.store.decode import LAST_MS

MAX_BODY = 64 << 10
"""Bytes of a scheduled message's body; 64 KiB, because every firing rewrites the row that holds the body."""
MAX_KEY = 200
"""Characters of a schedule's key; short enough for a log line."""
MOST_LATE = 20
"""Late times that a row remembers; more than are delivered again before their acks: each costs 30 bytes."""
_TEXTS = ("task", "codec", "message_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """When a schedule fires, and the message that it sends.

    Attributes:
        trigger: when the schedule fires.
        start_ms: when the schedule was made, in ms since 1970; triggers without a date count from it.
        body: body of the messages, at most 64 KiB.
        task, codec, message_key, headers, priority: of the messages, as in `Message`.
        due_ms: when the next firing is due, in ms since 1970, if its own time had passed when the row moved
            to it; else 0.
        late: the last 20 times that were not fired as themselves, in order: each with the time that was
            fired in its place, or 0 if none was; all in ms since 1970.
    """

    trigger: Trigger
    start_ms: int
    body: bytes = field(default=b"", repr=False)
    task: str | None = None
    codec: str | None = None
    message_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    priority: int = 0
    due_ms: int = 0
    late: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Check what `Message` does not check itself.

        Raises:
            BadInput: the trigger or the body has a wrong type.
            BodyTooLarge: the body exceeds 64 KiB.
        """
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
        """The times at which the schedule fires."""
        return Timetable(self.trigger, self.start_ms)

    def is_same_as(self, other: ScheduleDefinition) -> bool:
        """Return whether both definitions fire the same message at the same times, whenever each was made."""
        return self._values() == other._values()

    def to_json(self) -> str:
        """Return the text that the row stores."""
        due = {"due": self.due_ms} if self.due_ms else {}
        late = {"late": self.late} if self.late else {}
        return json.dumps({"start": self.start_ms, **due, **late, **self._values()}, sort_keys=True)

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: getattr(self, name) for name in _TEXTS}
        values["trigger"] = triggers.to_values(self.trigger)
        values["body"] = base64.b64encode(self.body).decode() or None
        values["headers"] = dict(self.headers) or None
        values["priority"] = self.priority or None
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, text: str) -> ScheduleDefinition:
        """Read a text that `to_json` wrote.

        Raises:
            ConfigError: a newer version wrote the text, or not this library.
        """
        try:
            values = json.loads(text)
            values["trigger"] = triggers.from_values(values["trigger"])
            values["body"] = base64.b64decode(values.get("body", ""))
            start_ms, due_ms = _moment_ms(values.pop("start")), _moment_ms(values.pop("due", 0))
            late = tuple((_moment_ms(time), _moment_ms(fired)) for time, fired in values.pop("late", ()))
            return cls(start_ms=start_ms, due_ms=due_ms, late=late, **values)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
            # The message leaves the text out: it holds the messages' body, and errors are logged
            raise ConfigError(
                f"this version of cqueue cannot read the schedule's definition: {type(exc).__name__}: {exc}"
            ) from exc


def _moment_ms(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LAST_MS:
        raise ValueError(f"{value!r} is not a time in ms since 1970")
    return value


def check_key(key: str) -> str:
    """Return the key of a schedule, if it is valid.

    Raises:
        BadInput: the key is not 1 to 200 printable characters.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or not key.isprintable():
        raise BadInput(f"{quoted(key)} is not a key of a schedule: use 1 to {MAX_KEY} printable characters")
    return key


ACTIVE, PAUSED, DONE = "active", "paused", "done"
OVERDUE_MS = 15_000
"""ms after its time at which a schedule counts as overdue: a running handler fires it when it ends."""


class FiringState(Enum):
    """How a firing's message relates to the row of its schedule."""

    CURRENT = "current"  # the row waits for this firing
    REPEAT = "repeat"  # the firing has moved the row on before: a retry, or its consumer died
    OVER = "over"  # the schedule has skipped the firing, or was paused, replaced or removed


def next_firing(row: ScheduleRow) -> FiringId | None:
    """Return the firing that the row waits for; None if it waits for none."""
    if row.state != ACTIVE or not row.next_at:
        return None
    return FiringId(row.key, row.generation, row.fired + 1, row.next_at, row.previous)


def waiting_for(next_ms: int | None, row: ScheduleRow) -> ScheduleRow:
    """Return the row as it waits for the firing of that time (ms since 1970); no time makes it done."""
    return row._replace(state=ACTIVE if next_ms else DONE, next_at=next_ms or 0)


def moved_on(row: ScheduleRow, fired_ms: int | None, next_ms: int | None) -> ScheduleRow:
    """Return the row after the firing that it waits for.

    Args:
        row: the row before.
        fired_ms: the time that was fired, in ms since 1970: a misfire may choose a later one than the row's.
            None if the time was left out.
        next_ms: the next time; None if there is none.
    """
    moved = waiting_for(next_ms, row)
    if fired_ms != row.next_at:
        definition = ScheduleDefinition.from_json(row.definition)
        late = (*definition.late, (row.next_at, fired_ms or 0))[-MOST_LATE:]
        moved = moved._replace(definition=replace(definition, late=late).to_json())
    return moved if fired_ms is None else moved._replace(fired=row.fired + 1, previous=fired_ms)


def fired_for(time_ms: int, row: ScheduleRow) -> int | None:
    """Return the time that was fired for one that the row has left behind; None if that was left out."""
    late = dict(ScheduleDefinition.from_json(row.definition).late)
    return late.get(time_ms, time_ms) or None


def firing_state(firing_id: FiringId, row: ScheduleRow | None) -> FiringState:
    """Return how the message of a firing relates to the row; None for a row that is gone."""
    if row is None or firing_id.generation != row.generation:
        return FiringState.OVER
    if firing_id.time_ms == row.next_at:
        return FiringState.CURRENT if row.state == ACTIVE else FiringState.OVER
    is_behind = firing_id.time_ms < row.next_at or row.state == DONE
    return FiringState.REPEAT if is_behind and fired_for(firing_id.time_ms, row) else FiringState.OVER
