"""Merge bursts of rings: the first is sent at once, those that follow closely are sent as one."""

from __future__ import annotations

from typing import Final, NamedTuple

from cqueue.doorbell.datagram import Ring
from cqueue.doorbell.directory import Target

GAP_S: Final = 0.001
"""Seconds after a ring in which further rings of the same place are merged: far below a poll's latency."""
LONGEST_GAP_S: Final = 0.008
"""Seconds up to which the gap doubles while rings keep coming: a busy listener polls anyway."""
REMEMBERED: Final = 1000
"""Places whose last ring is remembered; beyond that all are forgotten, and the next ring is sent at once."""
MAX_WAITING: Final = 1000
"""Places whose ring waits at most. Rings of others are dropped: polling finds their messages."""


class _Rung(NamedTuple):
    """When a place last rang, and the gap until its next ring."""

    at_s: float
    gap_s: float


class RingCoalescer:
    """Decides whether a ring is sent now, later, or merged with one of the same place. Not thread-safe."""

    def __init__(self) -> None:
        self._rung: dict[Target, _Rung] = {}
        self._waiting: dict[Target, tuple[float, Ring]] = {}  # when the ring is due

    def offer(self, place: Target, ring: Ring, now_s: float) -> bool:
        """Return whether to send a ring now; otherwise it waits."""
        rung = self._rung.get(place)
        if rung is not None and now_s < rung.at_s + rung.gap_s:
            self.delay(place, ring, rung.at_s + rung.gap_s)
            return False
        if place in self._waiting:
            self.delay(place, ring)
            return False
        self._remember(place, _Rung(now_s, GAP_S))
        return True

    def delay(self, place: Target, ring: Ring, until_s: float = float("inf")) -> None:
        """Let a ring wait, merged with a waiting ring of its place; by default until `release`."""
        waiting = self._waiting.get(place)
        if waiting is not None:
            self._waiting[place] = (waiting[0], waiting[1] | ring)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting[place] = (until_s, ring)

    def release(self, now_s: float) -> None:
        """Make the rings due that wait for this call."""
        for place, (due_s, ring) in self._waiting.items():
            if due_s == float("inf"):
                self._waiting[place] = (now_s, ring)

    def due(self, now_s: float, *, at_once: bool = False) -> list[tuple[Target, Ring]]:
        """Take the rings that are due, or all of them."""
        waiting = self._waiting.items()
        due = [(place, ring) for place, (due_s, ring) in waiting if at_once or due_s <= now_s]
        for place, _ in due:
            del self._waiting[place]
            rung = self._rung.get(place)
            gap_s = GAP_S if rung is None else min(LONGEST_GAP_S, 2 * rung.gap_s)
            self._remember(place, _Rung(now_s, gap_s))
        return due

    @property
    def next_s(self) -> float:
        """Return when the next ring is due; infinite if none waits, or all wait for `release`."""
        return min((due_s for due_s, _ in self._waiting.values()), default=float("inf"))

    def _remember(self, place: Target, rung: _Rung) -> None:
        if len(self._rung) >= REMEMBERED:
            self._rung.clear()
        self._rung[place] = rung
