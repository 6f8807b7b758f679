"""What a process waits for, and the row that says so to others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from cqueue.doorbell.counts import HintCounts
from cqueue.doorbell.datagram import Ring, short_name
from cqueue.doorbell.directory import listing
from cqueue.doorbell.listener import Address, Listener
from cqueue.store.control import Listen, ListenerRow

TTL_S: Final = 30
"""Time to live of a listener's row. Rings to a process that has died are lost until then."""
BEAT_S: Final = 10.0
"""How often the row is written."""
HASTE_S: Final = 0.1
"""Pause before the row is written again, so that consumers that join one after the other share a write."""
FORGET_S: Final = 1.0
"""The same pause after a consumer has left. Rings that come meanwhile do no harm."""
NEVER: Final = float("inf")

Heard = Callable[[bytes, int], None]
"""Told of a place and its flags, on the listener's thread. It must return at once."""


class Presence:
    """One process among those that wait. The caller serialises `listen`, `forget` and `beat`.

    beat_s: when the row is to be written next.
    """

    def __init__(self, name: str, address: Address, counts: HintCounts, now_us: Callable[[], int]) -> None:
        self.name = name
        self.beat_s = NEVER
        self._address = address
        self._counts = counts
        self._now_us = now_us
        self._heard: dict[bytes, tuple[Heard, ...]] = {}
        self._listener: Listener | None = None
        self._is_closed = False

    def listen(self, name: str, heard: Heard, now_s: float) -> None:
        """Call `heard` as well when others ring at this name."""
        short = short_name(name)
        self._heard[short] = (*self._heard.get(short, ()), heard)
        self.beat_s = min(self.beat_s, now_s + (HASTE_S if self._listener else 0.0))

    def forget(self, name: str, heard: Heard, now_s: float) -> None:
        """Call it no more."""
        short = short_name(name)
        left = tuple(one for one in self._heard.pop(short, ()) if one != heard)
        if left:
            self._heard[short] = left
        self.beat_s = min(self.beat_s, now_s + FORGET_S)

    def open(self) -> Listener:
        """The listener, which the first call makes. It may have to look up a name.

        Raises:
            OSError: no socket can be opened.
        """
        if self._listener is None:
            self._listener = Listener(self._address, self._take, self._counts, self._now_us)
            if self._is_closed:  # while a name was looked up
                self._listener.close()
        return self._listener

    def beat(self, listener: Listener, now_s: float) -> Listen:
        """What to write now: the row, for the next half minute, or for a moment if nobody waits any more."""
        self.beat_s = now_s + BEAT_S * random.uniform(0.8, 1.0) if self._heard else NEVER
        return Listen(self._row(listener), TTL_S if self._heard else 1)

    def farewell(self) -> Listen | None:
        """What to write at the end; None if nothing was ever written."""
        return None if self._listener is None else Listen(self._row(self._listener), 1)

    def close(self) -> None:
        """Listen no more."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()

    def _row(self, listener: Listener) -> ListenerRow:
        return ListenerRow(self.name, listener.host, listener.port, listener.key, listing(self._heard))

    def _take(self, ring: Ring) -> None:
        waiting = self._heard.get(ring.name, ())
        for heard in waiting:
            heard(ring.place, ring.flags)
        if not waiting:
            self._counts.misdirected += 1
