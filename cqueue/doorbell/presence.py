"""Publish the names that a process waits for, in a row that other processes read."""

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
"""Seconds until a listener's row expires: until then, rings to a process that died are lost."""
BEAT_S: Final = 10.0
"""Seconds between writes of the row: two writes may fail before the row expires."""
HASTE_S: Final = 0.1
"""Seconds before the row is written again after a consumer joins, so that several joins share a write."""
FORGET_S: Final = 1.0
"""Seconds before the row is written again after a consumer has left: rings that still come do no harm."""
NEVER: Final = float("inf")
"""A time that never comes."""

Heard = Callable[[bytes, int], None]
"""Called with a place and its flags on the listener's thread; it must return at once."""


class Presence:
    """One listening client. The caller serialises `listen`, `forget` and `beat`.

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
        """Begin to call `heard` when others ring for this name."""
        short = short_name(name)
        self._heard[short] = (*self._heard.get(short, ()), heard)
        self.beat_s = min(self.beat_s, now_s + (HASTE_S if self._listener else 0.0))

    def forget(self, name: str, heard: Heard, now_s: float) -> None:
        """Stop calling `heard`."""
        short = short_name(name)
        left = tuple(one for one in self._heard.pop(short, ()) if one != heard)
        if left:
            self._heard[short] = left
        self.beat_s = min(self.beat_s, now_s + FORGET_S)

    def open(self) -> Listener:
        """Return the listener; the first call makes it, and may have to resolve a host name.

        Raises:
            OSError: no socket can be opened.
        """
        if self._listener is None:
            self._listener = Listener(self._address, self._take, self._counts, self._now_us)
            if self._is_closed:  # closed while a host name was resolved
                self._listener.close()
        return self._listener

    def beat(self, listener: Listener, now_s: float) -> Listen:
        """Return the write of the row: with its full ttl, or with 1 s if nobody waits any more."""
        self.beat_s = now_s + BEAT_S * random.uniform(0.8, 1.0) if self._heard else NEVER
        return Listen(self._row(listener), TTL_S if self._heard else 1)

    def farewell(self) -> Listen | None:
        """Return the write that removes the row within 1 s; None if no row was ever written."""
        return None if self._listener is None else Listen(self._row(self._listener), 1)

    def close(self) -> None:
        """Stop listening."""
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
