"""Publish the names that a process waits for, in a row that other processes read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from cqueue.doorbell.datagram import HintCounts, Ring, short_name
from cqueue.doorbell.directory import encode_names
from cqueue.doorbell.listener import Address, Listener
from cqueue.store.control import Listen, ListenerRow

TTL_S: Final = 30
"""Seconds until a listener's row expires: until then, rings to a process that died are lost."""
HEARTBEAT_S: Final = 10.0
"""Seconds between writes of the row: two writes may fail before the row expires."""
JOIN_PAUSE_S: Final = 0.1
"""Seconds before the row is written again after a consumer joins, so that several joins share a write."""
LEAVE_PAUSE_S: Final = 1.0
"""Seconds before the row is written again after a consumer has left: rings that still come do no harm."""
NEVER: Final = float("inf")
"""A time that never comes."""

OnRing = Callable[[Ring], None]
"""Called with each ring on the listener's thread; it must return at once."""


class Presence:
    """One listening client. The caller serialises `listen`, `forget` and `heartbeat`.

    heartbeat_s: when the row is to be written next.
    """

    def __init__(self, name: str, address: Address, counts: HintCounts, now_us: Callable[[], int]) -> None:
        self.name = name
        self.heartbeat_s = NEVER
        self._address = address
        self._counts = counts
        self._now_us = now_us
        self._handlers: dict[bytes, tuple[OnRing, ...]] = {}
        self._listener: Listener | None = None
        self._is_closed = False

    def listen(self, name: str, on_ring: OnRing, now_s: float) -> None:
        """Begin to call `on_ring` when others ring for this name."""
        short = short_name(name)
        self._handlers[short] = (*self._handlers.get(short, ()), on_ring)
        self.heartbeat_s = min(self.heartbeat_s, now_s + (JOIN_PAUSE_S if self._listener else 0.0))

    def forget(self, name: str, on_ring: OnRing, now_s: float) -> None:
        """Stop calling `on_ring`."""
        short = short_name(name)
        left = tuple(one for one in self._handlers.pop(short, ()) if one != on_ring)
        if left:
            self._handlers[short] = left
        self.heartbeat_s = min(self.heartbeat_s, now_s + LEAVE_PAUSE_S)

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

    def heartbeat(self, listener: Listener, now_s: float) -> Listen:
        """Return the write of the row: with its full ttl, or with 1 s if nobody waits any more."""
        self.heartbeat_s = now_s + HEARTBEAT_S * random.uniform(0.8, 1.0) if self._handlers else NEVER
        return Listen(self._row(listener), TTL_S if self._handlers else 1)

    def removal(self) -> Listen | None:
        """Return the write that removes the row within 1 s; None if no row was ever written."""
        return None if self._listener is None else Listen(self._row(self._listener), 1)

    def close(self) -> None:
        """Stop listening."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()

    def _row(self, listener: Listener) -> ListenerRow:
        return ListenerRow(
            self.name, listener.host, listener.port, listener.key, encode_names(self._handlers)
        )

    def _take(self, ring: Ring) -> None:
        waiting = self._handlers.get(ring.name, ())
        for on_ring in waiting:
            on_ring(ring)
        if not waiting:
            self._counts.misdirected += 1
