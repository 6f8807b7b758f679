"""How many messages may wait to be started: as many as will be, well before their timeout.

What is claimed and not started keeps others from it. So the room for waiting messages follows from how
long handlers take, those that run at the moment included: when they become slow, the next receive
asks for less, and in the end only for what an idle thread can start at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

STARTED_WITHIN: Final = 0.25
"""The part of the timeout in which what waits should be started."""
WEIGHT: Final = 0.05
UNKNOWN_BACKLOG: Final = 2
"""Messages a thread, before any handler has returned."""


class Pace:
    """How long handlers take, and what follows from it.

    Args:
        slots: handlers that can run at a time.
        most: messages that may wait, however quick handlers are.
        ages: seconds that each running handler has been at it.
    """

    def __init__(self, slots: int, most: int, ages: Callable[[], Sequence[float]]) -> None:
        self._slots = slots
        self._most = most
        self._ages = ages
        self._mean_s: float | None = None

    def observe(self, seconds: float) -> None:
        """A handler took so long. Two threads at once may lose one of two observations: no harm."""
        mean_s = self._mean_s
        self._mean_s = seconds if mean_s is None else mean_s + WEIGHT * (seconds - mean_s)

    def capacity(self, visibility_s: float, idle: int) -> int:
        """How many messages may wait: at least one for each idle slot."""
        if self._mean_s is None and not self._ages():
            return min(self._most, UNKNOWN_BACKLOG * self._slots)
        mean_s = max(self._mean_s or 0.0, sum(self._ages()) / self._slots, 1e-6)
        startable = int(self._slots * visibility_s * STARTED_WITHIN / mean_s)
        if self._mean_s is None:
            startable = min(startable, UNKNOWN_BACKLOG * self._slots)
        return min(self._most, max(idle, startable))
