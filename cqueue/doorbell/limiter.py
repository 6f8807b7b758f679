"""Limit how often datagrams cause polls: merge those that come too often, and report them later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from cqueue.doorbell.datagram import Ring

RATE: Final = 1000.0
"""Turns a second for each name: more polls than that find little more."""
BURST: Final = 100
"""Turns that may be taken at once: a tenth of a second's."""
MAX_PLACES: Final = 1000
"""Places of one name that wait for a turn at most. Other rings are dropped: polling finds their messages."""

REMEMBERED: Final = 10_000
"""Names whose buckets are remembered; beyond that those that are full are forgotten, as new ones are full."""


class _Waiting(NamedTuple):
    """A ring, or several of one place merged, with the earliest and the latest time to report it."""

    ring: Ring
    first_s: float
    last_s: float

    def __or__(self, other: _Waiting) -> _Waiting:
        first_s, last_s = min(self.first_s, other.first_s), max(self.last_s, other.last_s)
        return _Waiting(self.ring | other.ring, first_s, last_s)


class Limiter:
    """A token bucket for each name. Not thread-safe."""

    def __init__(self) -> None:
        self._next_s: dict[bytes, float] = {}  # by name: when its bucket will be full again
        self._waiting: dict[bytes, dict[bytes, _Waiting]] = {}  # by name and place
        self._until_s: dict[bytes, float] = {}  # by name: when its first waiting ring may be reported

    def offer(self, ring: Ring, now_s: float, until_s: float = 0.0) -> bool:
        """Return whether to report a ring at once; otherwise it waits for the next turn, if there is room.

        until_s: the earliest time to report this ring. It delays no other ring, not even one of its place.
        """
        places = self._waiting.get(ring.name)
        if places is None and until_s <= now_s and self._takes_turn(ring.name, now_s):
            return True
        places = self._waiting.setdefault(ring.name, {})
        if ring.place in places or len(places) < MAX_PLACES:
            before, waiting = places.get(ring.place), _Waiting(ring, until_s, until_s)
            places[ring.place] = waiting if before is None else before | waiting
            self._until_s[ring.name] = min(until_s, self._until_s.get(ring.name, until_s))
        return False

    def due(self, now_s: float) -> Iterator[Ring]:
        """Yield the rings whose turn has come; all places of a name share one turn."""
        for name in list(self._waiting):
            if self._until_s[name] <= now_s and self._takes_turn(name, now_s):
                yield from self._take(name, now_s)

    def _take(self, name: bytes, now_s: float) -> list[Ring]:
        """Remove and return the rings of a name that may be reported; keep a place that was rung later."""
        places, left = self._waiting.pop(name), dict[bytes, _Waiting]()
        for place, waiting in places.items():
            if waiting.last_s > now_s:
                is_told = waiting.first_s <= now_s
                left[place] = waiting._replace(first_s=waiting.last_s) if is_told else waiting
        del self._until_s[name]
        if left:
            self._waiting[name] = left
            self._until_s[name] = min(waiting.first_s for waiting in left.values())
        return [waiting.ring for waiting in places.values() if waiting.first_s <= now_s]

    def rest_s(self, now_s: float) -> float | None:
        """Return the seconds until the next turn of a waiting ring; None if no ring waits."""
        turns = [
            max(until_s, self._next_s.get(name, 0.0) - (BURST - 1) / RATE)
            for name, until_s in self._until_s.items()
        ]
        return max(0.0, min(turns) - now_s) if turns else None

    def _takes_turn(self, name: bytes, now_s: float) -> bool:
        if len(self._next_s) >= REMEMBERED:
            self._next_s = {each: full_s for each, full_s in self._next_s.items() if full_s > now_s}
        full_s = max(now_s, self._next_s.get(name, 0.0))
        if full_s - now_s > (BURST - 1) / RATE:
            return False
        self._next_s[name] = full_s + 1 / RATE
        return True
