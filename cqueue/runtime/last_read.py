"""A value that takes longer to read than those who ask for it wait: figures for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class LastRead(Generic[T]):
    """Shows a value as it was last read, and has a thread read it anew when somebody asks. Thread-safe.

    Args:
        read: reads the value.
        first: the value until the first read has ended, and after one that failed.
        rest_s: seconds between the end of a read and the next one.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        read: Callable[[], T],
        first: T,
        *,
        rest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._first, self._clock = read, first, clock
        self._rest_s = rest_s
        self._mutex = threading.Lock()
        self._done = threading.Event()  # no read is under way
        self._done.set()
        self._ended_s = float("-inf")
        self.last = first
        """The value as it was last read; asks nobody."""

    def value(self, wait_s: float) -> T:
        """Return the value, having waited up to `wait_s` seconds for the read under way."""
        with self._mutex:
            if self._done.is_set() and self._clock() - self._ended_s >= self._rest_s:
                self._done.clear()
                # A daemon thread: a read that takes minutes does not hold up the end of the process.
                try:
                    threading.Thread(target=self._refresh, name="cqueue-read", daemon=True).start()
                except RuntimeError:  # too many threads, or Python exits: a later call reads
                    self._done.set()
        self._done.wait(wait_s)
        return self.last

    def _refresh(self) -> None:
        found = self._first
        try:
            found = self._read()
        finally:
            self.last = found
            self._ended_s = self._clock()
            self._done.set()
