"""The doorbell of one client: it rings listeners in other processes, and listens for their rings."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, current_thread
from typing import Any, Final

from cqueue.doorbell.coalescer import RingCoalescer
from cqueue.doorbell.datagram import HintCounts, Ring, short_name
from cqueue.doorbell.directory import Directory, Target
from cqueue.doorbell.listener import Address
from cqueue.doorbell.presence import NEVER, OnRing, Presence
from cqueue.doorbell.sender import Sender
from cqueue.errors import CqueueError, Refused
from cqueue.runtime import waiting
from cqueue.runtime.logs import logger
from cqueue.runtime.rendezvous import own_name

REFRESH_S: Final = 3.0
"""Age in s from which a ring has the directory read again, while it still uses the old one."""
STALE_S: Final = 10.0
"""Age in s from which a ring waits until the directory was read again. Listeners change seldom, and polling
finds what a stale directory misses."""
UNANSWERED_PAUSE_S: Final = 5.0
"""Seconds to wait after Cassandra did not answer."""
BROKEN_PAUSE_S: Final = 60.0
"""Seconds to wait if the table or a grant is missing, or no socket opens: an operator has to mend it."""
CLOSE_WAIT_S: Final = 0.2
"""Seconds that `close` waits for pending rings, and for the listener's row to be removed."""

_made = itertools.count()


def _new_name() -> str:
    """Return a name for this client: the process's own name for the first one, a numbered one for others."""
    number = next(_made)
    return f"{own_name()}+{number}" if number else own_name()


class Doorbell:
    """Rings other processes, and is rung by them. Thread-safe; each client has one.

    No call fails or waits for Cassandra. A failure is logged once, and costs polls.

    Args:
        ask: performs one operation of the store; called on the doorbell's own thread.
        address: where this process receives datagrams.
        now_us: the cluster's time as far as it is known; asks nobody.

    Attributes:
        name: this client's name among listeners. Its dispatcher has the same name, so that the process that
            is notified of a wide row is the one that looks there first.
    """

    def __init__(self, ask: Callable[[Any], Any], address: Address, now_us: Callable[[], int]) -> None:
        self.counts = HintCounts()
        self.name = _new_name()
        self._ask = ask
        self._logged = set[str]()  # kinds of failure
        self._sender = Sender(self.counts, self._log_once)
        self._presence = Presence(self.name, address, self.counts, now_us)
        self._directory = Directory(me=self.name)
        self._coalescer = RingCoalescer()
        self._changed = waiting.Condition()
        self._is_read_due = self._has_work = self._closing = False
        self._thread: Thread | None = None

    # ── waiting ──

    def listen(self, name: str, on_ring: OnRing) -> None:
        """Begin, within moments, to call `on_ring` when others ring for this name."""
        with self._changed:
            self._presence.listen(name, on_ring, time.monotonic())
            self._wake()

    def forget(self, name: str, on_ring: OnRing) -> None:
        """Stop calling `on_ring`. Others learn within seconds if nobody here waits for the name any more."""
        with self._changed:
            self._presence.forget(name, on_ring, time.monotonic())
            self._wake()

    # ── ringing ──

    def ring(self, target: Target, flags: int = 0, due_us: int = 0, details: bytes = b"") -> bool:
        """Notify other processes; return whether the caller is to notify consumers of this process.

        due_us: cluster time before which there may be nothing to find. details: see `Ring`.

        While the directory is stale, this process is notified if it waits for the name. Otherwise the ring is
        sent once the directory was read.
        """
        now_s = time.monotonic()
        is_stale = self._refresh(now_s)
        if is_stale and target.here and not target.to_all:
            return True
        if not is_stale and not self._directory.others(target):
            return target.here
        self._offer(target, Ring(short_name(target.name), target.place, flags, due_us, details), now_s)
        return target.here and target.to_all

    def _refresh(self, now_s: float) -> bool:
        """Have the directory read again if it is old; return whether it is too stale to use."""
        age_s = now_s - self._directory.read_s
        if age_s > REFRESH_S and not (self._is_read_due and self._thread):  # it may have failed to start
            with self._changed:
                self._is_read_due = True
                self._wake()
        return age_s > STALE_S

    def _offer(self, target: Target, ring: Ring, now_s: float) -> None:
        """Send a ring now, or after its gap, or once the directory was read."""
        with self._changed:
            if self._is_read_due and now_s - self._directory.read_s > STALE_S:
                self._coalescer.delay(target, ring)
                return
            goes = self._coalescer.offer(target, ring, now_s)
            if not goes:
                self._wake()
        if goes:
            self._sender.send(ring, self._directory.others(target))

    # ── the thread ──

    def _wake(self) -> None:
        """Wake the thread, or start it. The caller holds the mutex."""
        self._has_work = True
        if self._thread is None and not self._closing:
            thread = waiting.Thread(target=self._run, name="cqueue-doorbell", daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:  # there are too many threads, or Python is shutting down
                self._log_once("doorbell_off", exc)
                return
            self._thread = thread
        self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            self._thread = self._thread or current_thread()  # a Ctrl-C may have kept `_wake` from noting it
            if self._thread is not current_thread():
                return
        while not self._closing:
            with self._changed:
                if not (self._has_work or self._closing):
                    self._changed.wait(self._rest_s())
                self._has_work = False
            self._work()
        self._work()
        if (removal := self._presence.removal()) is not None:
            with suppress(Exception):  # the client is closing; the row expires by itself
                self._ask(removal)

    def _rest_s(self) -> float | None:
        until_s = min(self._coalescer.next_s, self._presence.heartbeat_s)
        return None if until_s == NEVER else max(0.0, until_s - time.monotonic())

    def _work(self) -> None:
        self._send_due()
        if self._is_read_due:
            self._read()
            self._send_due()
        if time.monotonic() >= self._presence.heartbeat_s and not self._closing:
            self._heartbeat()

    def _send_due(self) -> None:
        with self._changed:
            at_once = self._closing and not self._is_read_due
            due = self._coalescer.due(time.monotonic(), at_once=at_once)
        for target, ring in due:
            self._sender.send(ring, self._directory.others(target))

    def _read(self) -> None:
        """Read the directory, and release rings that waited for it. If the read fails, keep the old one."""
        try:
            self._directory = self._directory.refreshed(self._ask)
        except Exception as exc:  # noqa: BLE001 - a thread that ends would be missed by nobody
            self._directory.read_s = time.monotonic() + self._pause_s(exc)
        with self._changed:
            self._is_read_due = False
            self._coalescer.release(time.monotonic())

    def _heartbeat(self) -> None:
        """Write this process's row: its address and names. The first call opens the socket."""
        try:
            listener = self._presence.open()
            with self._changed:
                heartbeat = self._presence.heartbeat(listener, time.monotonic())
            self._ask(heartbeat)
        except Exception as exc:  # noqa: BLE001 - a thread that ends would be missed by nobody
            with self._changed:
                self._presence.heartbeat_s = time.monotonic() + self._pause_s(exc)

    def _pause_s(self, error: Exception) -> float:
        """Return the seconds until the next try; log the error unless sends and receives report it."""
        if isinstance(error, CqueueError) and not isinstance(error, Refused):
            return UNANSWERED_PAUSE_S
        self._log_once("doorbell_deaf" if isinstance(error, OSError) else "doorbell_off", error)
        return BROKEN_PAUSE_S

    def _log_once(self, event: str, error: Exception) -> None:
        """Log a failure, if it is the first of its kind, because a failure costs only latency."""
        if event not in self._logged:
            self._logged.add(event)
            logger("cqueue.doorbell").warning(event, error=str(error), then="messages are found by polling")

    # ── the end ──

    def close(self) -> None:
        """Send pending rings, remove this process's row, and end; waits 0.2 s at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)
        self._presence.close()
        self._sender.close()
