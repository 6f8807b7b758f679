"""A thread that collects things for a moment and takes them away together, again and again if need be.

Whoever puts something in does not wait. While Cassandra does not answer things stay, each with a growing
pause before it is tried again, and what comes new is tried on its own.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0


class Courier(Generic[T]):
    """Calls `send` with what was put in.

    Args:
        send: takes a list, and gives back the lists that have to be sent again, one call each. It does
            not raise; if it does all the same, everything is sent again.
        interval_s: how long things are collected.
        batch: so many are sent at once.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[T]], Sequence[Sequence[T]]],
        *,
        interval_s: float,
        batch: int,
        broken: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._send = send
        self._interval_s = interval_s
        self._batch = batch
        self._broken = broken
        self._clock = clock
        self._inbox: deque[T] = deque()
        self._late: list[tuple[float, int, int, Sequence[T]]] = []  # when, number, tries, what
        self._numbers = itertools.count()
        self._in_hand = 0
        self._awake = threading.Event()  # there is something to do
        self._full = threading.Event()  # there is no need to collect any longer
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._hurried = self._closed = False

    def put(self, thing: T) -> None:
        """Take it away soon."""
        self._inbox.append(thing)
        if not self._awake.is_set():
            self._awake.set()
        if self._thread is None:
            self._start()
        if len(self._inbox) >= self._batch and not self._full.is_set():
            self._full.set()

    @property
    def pending(self) -> int:
        """How many are not yet away."""
        return len(self._inbox) + self._in_hand + sum(len(things) for *_, things in self._late.copy())

    def hurry(self) -> None:
        """Collect no longer: send each thing at once, and what failed without its pause."""
        self._hurried = True
        self._awake.set()
        self._full.set()

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        self._awake.set()
        self._full.set()

    def join(self, seconds: float) -> None:
        """Wait for a call that is under way."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _start(self) -> None:
        with self._mutex:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    # ── on its thread ──

    def _run(self) -> None:
        while not self._closed:
            if not self._inbox:
                self._rest()
            if self._inbox and not self._hurried:
                self._full.wait(self._interval_s)
            self._full.clear()
            if not self._closed:
                self.turn()

    def _rest(self) -> None:
        """Wait for something to do."""
        self._awake.clear()
        if self._inbox or self._closed:
            self._awake.set()
            return
        self._awake.wait(self._pause_s())
        self._awake.set()

    def _pause_s(self) -> float | None:
        if not self._late:
            return None
        longest_s = FIRST_PAUSE_S if self._hurried else LONGEST_PAUSE_S
        return min(max(0.0, self._late[0][0] - self._clock()), longest_s)

    def turn(self) -> None:
        """Send what was collected, then what is to be tried again by now."""
        count = self._in_hand = len(self._inbox)
        if count:
            self._deliver([self._inbox.popleft() for _ in range(count)], 0)
        for _ in range(len(self._late)):
            if self._closed or not (self._hurried or self._late[0][0] <= self._clock()):
                break
            _, _, tries, things = self._late[0]
            self._in_hand = len(things)
            heapq.heappop(self._late)
            self._deliver(things, tries)

    def _deliver(self, things: Sequence[T], tries: int) -> None:
        try:
            again = self._send(things)
        except BaseException as exc:  # noqa: BLE001 - a courier that ends would be missed by nobody
            self._broken(exc)
            again = [things]
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(tries, 10))
        for part in again:
            heapq.heappush(self._late, (self._clock() + pause_s, next(self._numbers), tries + 1, part))
        self._in_hand = 0
