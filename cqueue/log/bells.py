"""Tells low-latency followers and members of subscriptions that something was appended.

A log has many readers: all of them are told, those of this process directly and others through the doorbell.
What they are told is a hint: it says where to look, and may come late, twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
        self._readers: dict[str, list[Told]] = {}  # lists are replaced, never changed

    def listen(self, log: str, told: Told) -> None:
        """Tell this reader of appends to the log of that partition name, from some moments on."""
        with self._mutex:
            before = self._readers.get(log, [])
            self._readers[log] = [*before, told]
            if not before and self._doorbell is not None:
                self._doorbell.listen(log, lambda place, _: self._heard(log, place))

    def forget(self, log: str, told: Told) -> None:
        """Tell this reader no more."""
        with self._mutex:
            before = self._readers.pop(log, [])
            left = [each for each in before if each is not told]
            if left:
                self._readers[log] = left
            elif before and self._doorbell is not None:
                self._doorbell.forget(log)

    def ring(self, log: str, partitions: Iterable[int]) -> None:
        """Records of these partitions have been acknowledged."""
        for partition in partitions:
            self._tell(log, partition)
            if self._doorbell is not None:
                self._doorbell.ring(Target(log, b"%d" % partition, to_all=True))

    def _heard(self, log: str, place: bytes) -> None:
        if place.isdigit():
            self._tell(log, int(place))

    def _tell(self, log: str, partition: int) -> None:
        for told in self._readers.get(log, ()):
            told.tell(partition)
