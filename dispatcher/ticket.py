"""What a firing's message says about itself, and what it is worth beside the schedule's row.

The row is the authority. A message may come late, twice, or after its schedule was changed; by generation,
number and time it is either the firing that the row waits for, a repeat of one that has been, or over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cqueue.store.control import ScheduleRow

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


def standing(ticket: Ticket, row: ScheduleRow | None) -> Standing:
    """What a message with this ticket is worth beside the row."""
    if row is None or ticket.generation != row.generation:
        return Standing.OVER
    if ticket.number > row.fired:
        waited_for = ticket.time_ms == row.next_at and row.state == ACTIVE and ticket.number == row.fired + 1
        return Standing.CURRENT if waited_for else Standing.OVER
    ahead = ticket.number == row.fired and ticket.time_ms > row.previous  # one that was passed over
    return Standing.OVER if ahead else Standing.REPEAT
