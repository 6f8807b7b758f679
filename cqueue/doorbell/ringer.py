"""When rings go: the first of a burst at once, all that follow it closely as one, and none of them never."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)
S = TypeVar("S")

GAP_S: Final = 0.001
"""Within so long of a ring the next ones of the same place are merged."""
LONGEST_GAP_S: Final = 0.008
"""The gap doubles up to this while rings keep coming: whoever is told is busy then."""
REMEMBERED: Final = 1000
"""Places that are known to have rung lately."""
MOST_WAITING: Final = 1000
"""Places whose ring waits; what is beyond finds whoever polls."""


class _Rung(NamedTuple):
    at_s: float
    gap_s: float


class Ringer(Generic[T, S]):
    """Decides for each ring whether it goes now, later, or with another one of its place. Not thread-safe.

    merge: of what two rings of one place say.
    """

    def __init__(self, merge: Callable[[S, S], S]) -> None:
        self._merge = merge
        self._rung: dict[T, _Rung] = {}
        self._waiting: dict[T, tuple[float, S]] = {}  # when it goes, and what it says

    def offer(self, place: T, said: S, now_s: float) -> bool:
        """Whether it goes now; else it waits."""
        rung = self._rung.get(place)
        if rung is not None and now_s < rung.at_s + rung.gap_s:
            self.put_off(place, said, rung.at_s + rung.gap_s)
            return False
        if place in self._waiting:
            self.put_off(place, said)
            return False
        self._remember(place, _Rung(now_s, GAP_S))
        return True

    def put_off(self, place: T, said: S, until_s: float = float("inf")) -> None:
        """Let it wait, together with those of its place that wait already; by default until `release`."""
        waiting = self._waiting.get(place)
        if waiting is not None:
            self._waiting[place] = (waiting[0], self._merge(waiting[1], said))
        elif len(self._waiting) < MOST_WAITING:
            self._waiting[place] = (until_s, said)

    def release(self, now_s: float) -> None:
        """Whatever waits for it is due now."""
        for place, (due_s, said) in self._waiting.items():
            if due_s == float("inf"):
                self._waiting[place] = (now_s, said)

    def due(self, now_s: float, *, at_once: bool = False) -> list[tuple[T, S]]:
        """Take what has waited long enough, or all."""
        waiting = self._waiting.items()
        due = [(place, said) for place, (due_s, said) in waiting if at_once or due_s <= now_s]
        for place, _ in due:
            del self._waiting[place]
            rung = self._rung.get(place)
            gap_s = GAP_S if rung is None else min(LONGEST_GAP_S, 2 * rung.gap_s)
            self._remember(place, _Rung(now_s, gap_s))
        return due

    @property
    def next_s(self) -> float:
        """When the next one is due; infinite if that is not known, or none waits."""
        return min((due_s for due_s, _ in self._waiting.values()), default=float("inf"))

    def _remember(self, place: T, rung: _Rung) -> None:
        if len(self._rung) >= REMEMBERED:
            self._rung.clear()
        self._rung[place] = rung
