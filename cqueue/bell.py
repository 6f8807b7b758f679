"""Wakes consumers of this process when this process sends, so that they need not wait for a poll."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Event, Lock

from cqueue.protocol.hint import Hint


class Sleeper:
    """One consumer's side: what it was told since it last looked, and an event to wait on.

    wake: called as well, on the sending thread, for a caller that waits for many consumers at once.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self.event = Event()
        self.wake = wake
        self.told: deque[Hint] = deque(maxlen=1000)
        self.waiting = False

    def sleep(self, seconds: float) -> bool:
        """Wait until told something, or so many seconds; True if told."""
        self.waiting = True
        try:
            return self.event.wait(seconds)
        finally:
            self.waiting = False
            self.event.clear()


class Bell:
    """All consumers of one queue in this process. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._sleepers: list[Sleeper] = []
        self.purges = 0  # by this process

    def join(self, wake: Callable[[], None] | None = None) -> Sleeper:
        """A new consumer."""
        sleeper = Sleeper(wake)
        with self._mutex:
            self._sleepers.append(sleeper)
        return sleeper

    def leave(self, sleeper: Sleeper) -> None:
        """A consumer has been closed."""
        with self._mutex:
            self._sleepers.remove(sleeper)

    def ring(self, hint: Hint) -> None:
        """Messages were stored: tell one consumer that waits.

        If none does, one that polls on being woken, or else the first.
        """
        with self._mutex:
            if not self._sleepers:
                return
            chosen = self._chosen()
            chosen.told.append(hint)
            chosen.event.set()
        if chosen.wake is not None:
            chosen.wake()

    def _chosen(self) -> Sleeper:
        return next((sleeper for sleeper in self._sleepers if sleeper.waiting), None) or next(
            (sleeper for sleeper in self._sleepers if sleeper.wake is not None), self._sleepers[0]
        )

    def purged(self) -> None:
        """All that was sent until now may have been deleted."""
        self.purges += 1
