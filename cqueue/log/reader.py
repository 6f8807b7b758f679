"""The base of scanners and followers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any, Self

from cqueue.errors import Closed
from cqueue.log.catalog import LogCatalog
from cqueue.log.protocol.source import Record
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.records import LogRecord, check_partitions, check_topics
from cqueue.runtime import waiting
from cqueue.runtime.driver import BlockingDriver


class Reader:
    """A reader of some partitions of a log that keeps some topics, until it is closed."""

    _round: Any
    """What one read found, a named tuple: `left` are the records that were not handed out yet.

    A reader replaces its round as a whole, so that a Ctrl-C leaves the one of before or the next one.
    """

    def __init__(
        self,
        catalog: LogCatalog,
        driver: BlockingDriver,
        name: str,
        *,
        partitions: Sequence[int] | None,
        topics: Iterable[str] | None,
    ) -> None:
        self._catalog = catalog
        self._driver = driver
        self._name = name
        self._all = partitions is None
        self._topics = check_topics(topics)
        self._closed = waiting.Signal()
        self._reading = waiting.lock()  # held while reads move on, until what they found is kept
        count = self._spec.partitions
        self._partitions = sorted(check_partitions(partitions, count) or range(count))

    @property
    def _spec(self) -> LogSpec:
        return self._catalog.entry(self._name).spec

    def _wanted(self, found: list[Record]) -> list[LogRecord]:
        log, topics = self._spec.partition, self._topics
        return [
            LogRecord(log, partition, row)
            for row, partition in found
            if topics is None or row.topic in topics
        ]

    def _take_kept(self) -> list[LogRecord]:
        """Hand out all kept records."""
        found, taken = list(self._round.left), self._round._replace(left=deque())
        self._round = taken
        return found

    def _take_each(self) -> Iterator[LogRecord]:
        """Hand out the kept records one by one, so that a loop that is left leaves the others."""
        while left := self._round.left:
            yield from starmap(left.popleft, ((),))  # in C, so that no Ctrl-C comes before the yield

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closed(f"the reader of log {self._name!r} has been closed")

    def close(self) -> None:
        """Stop reading. Never raises; any thread may call it."""
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
