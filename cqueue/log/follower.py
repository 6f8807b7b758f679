"""A reader of a log that goes on, as records become stable or, if it is told so, readable."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import Closed
from cqueue.log.catalog import LogCatalog
from cqueue.log.following import Following
from cqueue.log.positions import EARLIEST, Start, starts
from cqueue.log.reader import Reader
from cqueue.log.records import LogId, LogRecord
from cqueue.message import check_duration


class Follower(Reader):
    """Records as they become stable, for ever. One thread reads; any may close."""

    def __init__(
        self,
        catalog: LogCatalog,
        driver: BlockingDriver,
        name: str,
        *,
        start: Start,
        partitions: Sequence[int] | None,
        topics: Iterable[str] | None,
        low_latency: bool,
        poll_interval: timedelta,
        on_expired: str,
    ) -> None:
        super().__init__(catalog, driver, name, partitions=partitions, topics=topics)
        low, high = timedelta(milliseconds=1), timedelta(minutes=1)
        self._interval_s = check_duration("poll_interval", poll_interval, low, high)
        spec, now_us = self._spec, driver.clock.now_us()
        positions = starts(spec, start, self._partitions, now_us, on_expired)
        self._following = Following(driver, lambda: self._spec, positions, low_latency=low_latency)

    def __repr__(self) -> str:
        return f"<follower of log {self._name}>"

    def poll(self, wait: timedelta = timedelta()) -> list[LogRecord]:
        """What can be read next; waits up to `wait` (0 to 1 day) for the first record.

        Raises:
            NotDone: Cassandra did not answer, to the end of `wait`.
            Closed: the follower has been closed.
        """
        deadline_s = time.monotonic() + check_duration("wait", wait, timedelta(), timedelta(days=1))
        while True:
            self._check_open()
            self._add_partitions()
            found = self._following.read()
            records, left_s = self._wanted(found.records), deadline_s - time.monotonic()
            if records or left_s <= 0:
                return records
            if found.is_all:
                self._closed.wait(min(self._interval_s, left_s))

    def __iter__(self) -> Iterator[LogRecord]:
        """Records until the follower is closed."""
        while not self._closed.is_set():
            try:
                yield from self.poll(timedelta(seconds=1))
            except Closed:
                return

    def positions(self) -> dict[int, LogId]:
        """For each partition the position behind which all is still to come; a `start` for another reader."""
        log = self._spec.partition
        return {each: LogId.of(log, each, at) for each, at in self._following.positions().items()}

    def _add_partitions(self) -> None:
        """Read new partitions as well, from their beginning."""
        spec, known = self._spec, self._following.partitions
        if not self._all or len(known) == spec.partitions:
            return
        missing = [each for each in range(spec.partitions) if each not in known]
        now_us = self._driver.clock.now_us()
        for partition, position in starts(spec, EARLIEST, missing, now_us, EARLIEST).items():
            self._following.open(partition, position)
