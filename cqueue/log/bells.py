"""Tells low-latency followers and members of subscriptions that something was appended.

A log has many readers: all of them are told, those of this process directly and others through the doorbell.
What they are told is a hint: it says where to look, and may come late, twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from cqueue.doorbell import Doorbell, Target


class Told:
    """The partitions of which one reader was told since it last looked. Thread-safe.

    wake: called, on the telling thread, each time.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._mutex = Lock()
        self._partitions: set[int] = set()

    @property
    def has_any(self) -> bool:
        """Whether it was told of any."""
        return bool(self._partitions)

    def tell(self, partition: int) -> None:
        """Something was appended to it."""
        with self._mutex:
            self._partitions.add(partition)
        self._wake()

    def heard(self, place: bytes, _: int) -> None:
        """The same, from another process."""
        if place.isdigit():
            self.tell(int(place))

    def take(self) -> set[int]:
        """All of which it was told."""
        with self._mutex:
            taken, self._partitions = self._partitions, set()
        return taken


class LogBells:
    """The readers of one client that are told, by log. Thread-safe.

    doorbell: by which other processes are told, and tell this one; None: there is only this one.
    """

    def __init__(self, doorbell: Doorbell | None = None) -> None:
        self._doorbell = doorbell
        self._mutex = Lock()
        self._readers: dict[str, tuple[Told, ...]] = {}

    def listen(self, log: str, told: Told) -> None:
        """Tell this reader of appends to the log of that partition name, from some moments on."""
        with self._mutex:
            self._readers[log] = (*self._readers.get(log, ()), told)
        if self._doorbell is not None:
            self._doorbell.listen(log, told.heard)

    def forget(self, log: str, told: Told) -> None:
        """Tell this reader no more, if it was told at all."""
        with self._mutex:
            before = self._readers.pop(log, ())
            left = tuple(each for each in before if each is not told)
            if left:
                self._readers[log] = left
        if self._doorbell is not None and left != before:
            self._doorbell.forget(log, told.heard)

    @contextmanager
    def listening(self, log: str, told: Told) -> Iterator[None]:
        """Tell it as long as the block runs."""
        self.listen(log, told)
        try:
            yield
        finally:
            self.forget(log, told)

    def ring(self, log: str, partitions: Iterable[int]) -> None:
        """Records of these partitions have been acknowledged."""
        for partition in partitions:
            for told in self._readers.get(log, ()):
                told.tell(partition)
            if self._doorbell is not None:
                self._doorbell.ring(Target(log, b"%d" % partition, to_all=True))
