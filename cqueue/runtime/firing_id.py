"""`FiringId`: which firing of which schedule a message is, as the message's `trigger` says it.

Schedules belong to the dispatcher. But a call that copies messages has to tell firings from others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FiringId:
    """One firing of one schedule, as its message carries it in `trigger`. Times: ms since 1970, 0 for none.

    Attributes:
        key: key of the schedule.
        generation: generation of the row when the message was sent; 0 for a firing that `run_now` asked for.
        number: number of the firing, from 1.
        time_ms: the time that is fired.
        previous_ms: the time fired before.
        is_redriven: a dead letter of the firing was sent back.
    """

    key: str
    generation: int
    number: int
    time_ms: int
    previous_ms: int = 0
    is_redriven: bool = False

    @property
    def is_manual(self) -> bool:
        """Whether `run_now` asked for the firing."""
        return self.generation == 0

    @property
    def runs_on_its_own(self) -> bool:
        """Whether somebody asked for the firing, so that it runs though its schedule waits for another."""
        return self.is_manual or self.is_redriven

    def to_json(self) -> str:
        """Return the text that the message carries."""
        values = [self.generation, self.number, self.time_ms, self.previous_ms]
        redriven = {"redriven": True} if self.is_redriven else {}
        return json.dumps({"schedule": self.key, "firing": values, **redriven}, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str | None) -> FiringId | None:
        """Return the firing in a message's `trigger`; None if the message is no firing, whatever stands
        there.
        """
        if text is None or not text.startswith('{"schedule"'):
            return None
        try:
            values: dict[str, Any] = json.loads(text)
            generation, number, time_ms, previous_ms = (int(value) for value in values["firing"])
            is_redriven = bool(values.get("redriven"))
            return cls(str(values["schedule"]), generation, number, time_ms, previous_ms, is_redriven)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
