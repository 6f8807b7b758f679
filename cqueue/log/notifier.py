"""Notify low-latency followers and members of subscriptions of appends.

Every reader of a log is notified: readers of this process directly, those of other processes by the doorbell.
A notification is a hint. It says where to look, and may come late, twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock

from cqueue.doorbell import Doorbell, Ring, Target


class AppendHints:
    """The partitions that one reader was notified of since it last read. Thread-safe.

    wake: called on the notifying thread each time.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._mutex = Lock()
        self._partitions: set[int] = set()

    def tell(self, partition: int) -> None:
        """Note an append to a partition, and wake the reader."""
        with self._mutex:
            self._partitions.add(partition)
        self._wake()

    def on_ring(self, ring: Ring) -> None:
        """Note an append in another process. The ring's place is the partition's number in ASCII digits."""
        if ring.place.isdigit():
            self.tell(int(ring.place))

    def take(self) -> set[int]:
        """Return the partitions noted, and forget them."""
        with self._mutex:
            taken, self._partitions = self._partitions, set()
        return taken


class AppendNotifier:
    """Notifies the readers of one client, and through the doorbell those of other processes. Thread-safe.

    doorbell: None if no other process is to be notified.
    """

    def __init__(self, doorbell: Doorbell | None = None) -> None:
        self._doorbell = doorbell
        self._mutex = Lock()
        self._readers: dict[str, tuple[AppendHints, ...]] = {}

    def listen(self, log: str, hints: AppendHints) -> None:
        """Begin, within moments, to notify a reader of appends. log: the log's name in partition keys."""
        with self._mutex:
            self._readers[log] = (*self._readers.get(log, ()), hints)
        if self._doorbell is not None:
            self._doorbell.listen(log, hints.on_ring)

    def forget(self, log: str, hints: AppendHints) -> None:
        """Stop notifying a reader, if it is notified at all."""
        with self._mutex:
            before = self._readers.pop(log, ())
            left = tuple(each for each in before if each is not hints)
            if left:
                self._readers[log] = left
        if self._doorbell is not None and left != before:
            self._doorbell.forget(log, hints.on_ring)

    @contextmanager
    def listening(self, log: str, hints: AppendHints) -> Iterator[None]:
        """Notify a reader while the block runs."""
        self.listen(log, hints)
        try:
            yield
        finally:
            self.forget(log, hints)

    def ring(self, log: str, partitions: Iterable[int]) -> None:
        """Notify all readers of acknowledged records in these partitions."""
        for partition in partitions:
            for hints in self._readers.get(log, ()):
                hints.tell(partition)
            if self._doorbell is not None:
                self._doorbell.ring(Target(log, b"%d" % partition, to_all=True))
