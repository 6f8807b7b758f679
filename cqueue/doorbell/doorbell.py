"""What senders and waiting consumers of one client share: who listens, and the thread that does the rest."""

from __future__ import annotations

import itertools
import os
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Any, Final

from cqueue.doorbell.counts import HintCounts
from cqueue.doorbell.datagram import Ring, encode, short_name
from cqueue.doorbell.directory import Directory, Target, listing
from cqueue.doorbell.listener import Address, Listener
from cqueue.doorbell.ringer import Ringer
from cqueue.errors import CqueueError, Refused
from cqueue.logs import logger
from cqueue.rendezvous import own_name
from cqueue.store.control import Listen, ListenerRow, ReadListeners

READ_AGAIN_S: Final = 3.0
"""A ring finds out who listens by rows that are older, and has them read anew."""
STALE_S: Final = 10.0
"""By rows that are older it does not go before they were read."""
TTL_S: Final = 30
"""Of a listener's row: when a process dies, rings to it are lost for so long."""
BEAT_S: Final = 10.0
"""How often the row is written."""
HASTE_S: Final = 0.1
"""Consumers that join one after the other wait so long for each other before the row is written again."""
FORGET_S: Final = 1.0
"""The same for those that leave: rings that come meanwhile are of no use, and do no harm."""
FAILED_S: Final = 5.0
"""Pause after Cassandra did not answer."""
OFF_S: Final = 60.0
"""Pause where the table is missing: a migration may add it."""
LEAVE_S: Final = 0.2
"""What a close may wait for rings that are still to go, and for the row to be let go."""

LOGGER: Final = "cqueue.doorbell"

Heard = Callable[[bytes, int], None]
"""Told of a place and its flags, on the listener's thread. It must return at once."""


_made = itertools.count()


def _new_name() -> str:
    """The process's own name, for the first of its clients."""
    number = next(_made)
    return f"{own_name()}+{number}" if number else own_name()


class Doorbell:
    """Rings other processes, and is rung by them. Thread-safe; one for a client.

    No call fails or waits for Cassandra. What goes wrong is logged once, and costs polls.

    Args:
        ask: performs one operation of the store; called on a thread of the doorbell's own.
        address: where this process may be told.
        name: of this process among listeners; by default the one that its dispatcher has as well, so that who
            is told of a wide row is who looks there first.
    """

    def __init__(
        self,
        ask: Callable[[Any], Any],
        address: Address,
        *,
        name: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts = HintCounts()
        self.name = name or _new_name()
        self._ask = ask
        self._address = address
        self._clock = clock
        self._changed = Condition()
        self._heard: dict[bytes, tuple[Heard, ...]] = {}
        self._ringer = Ringer[Target]()
        self._directory = Directory(me=self.name)
        self._is_read_due = False
        self._beat_s = float("inf")  # when the row is to be written
        self._listener: Listener | None = None
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}
        self._thread: Thread | None = None
        self._has_work = False
        self._complained = set[str]()
        self._closing = False
        self._pid = os.getpid()

    # ── waiting ──

    def listen(self, name: str, heard: Heard) -> None:
        """Have `heard` called as well when others ring at this name, from some moments on."""
        short = short_name(name)
        with self._changed:
            self._heard[short] = (*self._heard.get(short, ()), heard)
            self._beat_s = min(self._beat_s, self._clock() + (HASTE_S if self._listener else 0.0))
            self._wake()

    def forget(self, name: str, heard: Heard) -> None:
        """Call it no more. Others learn within some seconds that nobody here waits, if nobody does."""
        short = short_name(name)
        with self._changed:
            left = tuple(one for one in self._heard.pop(short, ()) if one != heard)
            if left:
                self._heard[short] = left
            self._beat_s = min(self._beat_s, self._clock() + FORGET_S)
            self._wake()

    # ── ringing ──

    def ring(self, target: Target, flags: int = 0) -> bool:
        """Tell other processes; whether the caller is to tell the consumers of this one.

        As long as it is not known who else waits, this process is told if it does; otherwise the ring goes as
        soon as that is known.
        """
        now_s = self._clock()
        is_stale = self._refresh(now_s)
        if is_stale and target.here and not target.to_all:
            return True
        if not is_stale and not self._directory.others(target):
            return target.here
        self._offer(target, flags, now_s)
        return target.here and target.to_all

    def _refresh(self, now_s: float) -> bool:
        """Have it read who listens if that was long ago; whether it is too long ago to go by."""
        age_s = now_s - self._directory.read_s
        if age_s > READ_AGAIN_S and not self._is_read_due:
            with self._changed:
                self._is_read_due = True
                self._wake()
        return age_s > STALE_S

    def _offer(self, target: Target, flags: int, now_s: float) -> None:
        """Ring now, or soon; or once it was read who listens."""
        with self._changed:
            if self._is_read_due and now_s - self._directory.read_s > STALE_S:
                self._ringer.put_off(target, flags)
                return
            goes = self._ringer.offer(target, flags, now_s)
            if not goes:
                self._wake()
        if goes:
            self._send(target, flags)

    def _send(self, target: Target, flags: int) -> None:
        ring = Ring(short_name(target.name), target.place, flags)
        for row in self._directory.others(target):
            try:
                self._socket(row.address).sendto(encode(ring, row.key), (row.address, row.port))
                self.counts.sent += 1
            except OSError as exc:
                self.counts.unsent += 1
                self._complain("doorbell_unsent", exc)

    def _socket(self, address: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = self._sockets.get(family)
        if made is None:
            made = socket.socket(family, socket.SOCK_DGRAM)
            made.setblocking(False)
            self._sockets[family] = made
        return made

    # ── the thread ──

    def _wake(self) -> None:
        """Something is to be done. The mutex is held."""
        self._has_work = True
        if self._thread is None and not self._closing:
            self._thread = Thread(target=self._run, name="cqueue-doorbell", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                if not self._has_work:
                    self._changed.wait(self._rest_s())
                self._has_work = False
            self._work()
        self._work()
        self._leave()

    def _rest_s(self) -> float | None:
        now_s = self._clock()
        rests = (self._ringer.rest_s(now_s), self._beat_s - now_s)
        rest_s = min(rest_s for rest_s in rests if rest_s is not None)
        return None if rest_s == float("inf") else max(0.0, rest_s)

    def _work(self) -> None:
        try:
            self._send_due()
            if self._is_read_due:
                self._read()
                self._send_due()
            if self._clock() >= self._beat_s and not self._closing:
                self._beat()
        except Exception as exc:  # noqa: BLE001 - a thread that ends would be missed by nobody
            self._complain("doorbell_failed", exc)

    def _send_due(self) -> None:
        with self._changed:
            due = self._ringer.due(self._clock(), at_once=self._closing and not self._is_read_due)
        for target, flags in due:
            self._send(target, flags)

    def _read(self) -> None:
        """Read who listens; what waited for that goes next. If it fails, what was known has to do."""
        began_s = self._clock()
        try:
            rows = self._ask(ReadListeners())
            self._directory = Directory(rows, me=self.name, read_s=began_s)
        except CqueueError as exc:
            self._directory.read_s = self._clock() + self._pause_s(exc)
        with self._changed:
            self._is_read_due = False
            self._ringer.release(self._clock())

    def _beat(self) -> None:
        """Say where this process may be told, and of what; at first, open the socket for it."""
        if self._listener is None:
            try:
                self._listener = Listener(self._address, self._take, self.counts)
            except OSError as exc:
                self._complain("doorbell_deaf", exc)
                self._beat_s = self._clock() + OFF_S
                return
        with self._changed:
            self._beat_s = self._clock() + BEAT_S * random.uniform(0.8, 1.0) if self._heard else float("inf")
            ttl_s = TTL_S if self._heard else 1
        try:
            self._ask(Listen(self._row(self._listener), ttl_s))
        except CqueueError as exc:
            with self._changed:
                self._beat_s = self._clock() + self._pause_s(exc)

    def _row(self, listener: Listener) -> ListenerRow:
        names = listing(list(self._heard))
        return ListenerRow(self.name, listener.host, listener.port, listener.key, names)

    def _pause_s(self, error: CqueueError) -> float:
        """How long the store is not asked again."""
        if not isinstance(error, Refused):
            return FAILED_S
        self._complain("doorbell_off", error)
        return OFF_S

    def _take(self, ring: Ring) -> None:
        waiting = self._heard.get(ring.name, ())
        for heard in waiting:
            heard(ring.place, ring.flags)
        if not waiting:
            self.counts.misdirected += 1

    def _complain(self, event: str, error: Exception) -> None:
        """Log a kind of trouble once."""
        if event not in self._complained:
            self._complained.add(event)
            logger(LOGGER).warning(event, error=str(error), then="messages are found by polling")

    # ── the end ──

    def close(self) -> None:
        """Let what waits go, tell others that nobody is here any more, and end; within a moment."""
        if os.getpid() != self._pid:
            return  # the thread and the mutex are those of the process that was forked
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LEAVE_S)
        if self._listener is not None:
            self._listener.close()
        for each in self._sockets.values():
            each.close()

    def _leave(self) -> None:
        if self._listener is not None:
            with suppress(CqueueError):
                self._ask(Listen(self._row(self._listener), 1))
