"""How often datagrams may cause a poll: what comes too often is merged, and told at the next turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cqueue.doorbell.datagram import Ring

RATE: Final = 1000.0
"""Turns a second for each name: more polls than that find little more."""
BURST: Final = 100
"""Turns that may be taken at once."""
MOST_PLACES: Final = 1000
"""Places of one name that wait for a turn; whoever polls finds the others as well."""


class Limiter:
    """A token bucket for each name. Not thread-safe."""

    def __init__(self) -> None:
        self._next_s: dict[bytes, float] = {}  # when the bucket of a name will be full again
        self._waiting: dict[bytes, dict[bytes, Ring]] = {}  # by name and place
        self._until_s: dict[bytes, float] = {}  # what waits of a name may not be told before

    def offer(self, ring: Ring, now_s: float, until_s: float = 0.0) -> bool:
        """Whether to tell it at once; else it waits for the next turn, unless too much does.

        until_s: it is not to be told before.
        """
        places = self._waiting.get(ring.name)
        if places is None and until_s <= now_s and self._takes_turn(ring.name, now_s):
            return True
        places = self._waiting.setdefault(ring.name, {})
        self._until_s[ring.name] = max(until_s, self._until_s.get(ring.name, 0.0))
        if ring.place in places or len(places) < MOST_PLACES:
            places[ring.place] = ring | places.get(ring.place, ring)
        return False

    def due(self, now_s: float) -> Iterator[Ring]:
        """All that has waited for a turn which has come: one turn for all places of a name."""
        for name in list(self._waiting):
            if self._until_s[name] <= now_s and self._takes_turn(name, now_s):
                del self._until_s[name]
                yield from self._waiting.pop(name).values()

    def rest_s(self, now_s: float) -> float | None:
        """How long until the next turn of what waits; None: nothing does."""
        turns = [
            max(until_s, self._next_s.get(name, 0.0) - (BURST - 1) / RATE)
            for name, until_s in self._until_s.items()
        ]
        return max(0.0, min(turns) - now_s) if turns else None

    def _takes_turn(self, name: bytes, now_s: float) -> bool:
        full_s = max(now_s, self._next_s.get(name, 0.0))
        if full_s - now_s > (BURST - 1) / RATE:
            return False
        self._next_s[name] = full_s + 1 / RATE
        return True
