"""Timeouts of requests: those that end at about the same time share one of the driver's timers.

The driver keeps a timer for each request until its time has come, though the answer came long before, and
with it the request and its answer: tens of thousands of objects, where there are many requests. To look
through them Python's collector of garbage stopped everything for 100 to 200 ms, every few seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

TICK_S: Final = 0.25
"""Timeouts end up to this late, and the event loop is woken at most so often to learn of new ones."""


class Timeout:
    """One of those that share a timer."""

    __slots__ = ("_callback", "_shared")

    def __init__(self, shared: Shared, callback: Callable[[], None]) -> None:
        self._shared = shared
        self._callback = callback

    def cancel(self) -> None:
        """Call nothing, and keep nothing: the request holds this timeout, and would hold itself."""
        self._shared.timeouts.discard(self)
        self._callback = _nothing

    def call(self) -> None:
        """It has ended."""
        self._callback()


class Shared:
    """What the driver's loop waits for: a `Timer` of its own. over: it has ended, and calls nothing more."""

    __slots__ = ("end", "over", "timeouts")

    def __init__(self, end_s: float) -> None:
        self.end = end_s
        self.timeouts: set[Timeout] = set()
        self.over = False

    def __lt__(self, other: Any) -> bool:
        return bool(self.end < other.end)

    def finish(self, time_now: float) -> bool:
        """On the loop's thread: whether it has ended. Called again if what it calls raises."""
        if time_now < self.end:
            return False
        self.over = True
        while self.timeouts:
            try:
                timeout = self.timeouts.pop()
            except KeyError:  # cancelled since
                break
            timeout.call()
        return True


class Timeouts:
    """Those of one event loop. Any thread may add some."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self._shared: dict[int, Shared] = {}  # by when they end, in ticks

    def add(self, timeout_s: float, callback: Callable[[], None]) -> Timeout:
        """Call back after so many seconds, on the loop's thread, unless it is cancelled before."""
        tick = math.ceil((time.time() + timeout_s) / TICK_S)
        while True:
            shared = self._shared.get(tick)
            if shared is None or shared.over:
                shared = self._begin(tick)
            timeout = Timeout(shared, callback)
            shared.timeouts.add(timeout)
            if not shared.over:
                return timeout
            try:
                shared.timeouts.remove(timeout)
            except KeyError:
                return timeout  # it was in time to be called
            tick += 1

    def _begin(self, tick: int) -> Shared:
        for old in [old for old, shared in list(self._shared.items()) if shared.over]:
            self._shared.pop(old, None)
        shared = self._shared[tick] = Shared(tick * TICK_S)
        self.loop.add_timer(shared)  # wakes it
        return shared


def _nothing() -> None:
    """Instead of what was cancelled."""


def is_called(timers: Any) -> bool:
    """Whether the driver's keeper of timers calls what shares a timer once its time has come."""
    called: list[bool] = []
    Timeouts(timers).add(-2 * TICK_S, partial(called.append, True))
    timers.service_timeouts()
    return called == [True]
