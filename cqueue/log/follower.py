"""Follow a log: read records for ever, as they become stable or, with low latency, readable."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from cqueue.errors import Closed
from cqueue.log.catalog import LogCatalog
from cqueue.log.notifier import AppendHints, AppendNotifier
from cqueue.log.positions import EARLIEST, Start, starts
from cqueue.log.protocol.following import Following, ReadResult
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.reader import Reader
from cqueue.log.records import LogId, LogRecord
from cqueue.message import check_duration
from cqueue.runtime.driver import BlockingDriver
from cqueue.store import waiting


class Follower(Reader):
    """Reads records for ever, as they become stable. One thread reads; any thread may close."""

    def __init__(
        self,
        catalog: LogCatalog,
        driver: BlockingDriver,
        name: str,
        *,
        notifier: AppendNotifier,
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
        self._notifier = notifier
        self._log = spec.partition
        self._awake = waiting.Signal()  # set by a notification, or by `close`
        self._hints = AppendHints(self._awake.set)
        self._following = Following(spec, positions, beyond_horizon=low_latency)
        self._reached = self._following.positions()  # behind all records that are kept, or were handed out
        self._handed = self._reached  # behind those that were handed out
        self._next_s = 0.0  # when to read all partitions again
        if low_latency:
            notifier.listen(self._log, self._hints)

    def __repr__(self) -> str:
        return f"<follower of log {self._name}>"

    def poll(self, wait: timedelta = timedelta()) -> list[LogRecord]:
        """Return the next records; wait up to `wait` (0 to 1 day) for the first one.

        Raises:
            NotDone: Cassandra did not answer.
            Closed: the follower has been closed.
        """
        self._read_ahead(wait)
        return self._take_kept()

    def _read_ahead(self, wait: timedelta) -> None:
        """Read and keep the next records, unless some are kept; wait up to `wait` for the first one.

        Raises:
            as `poll`.
        """
        deadline_s = time.monotonic() + check_duration("wait", wait, timedelta(), timedelta(days=1))
        while True:
            self._awake.clear()
            self._check_open()
            with self._reading:
                if self._kept:
                    return
                found = self._read(deadline_s)
                self._handed = self._reached.copy()
                self._kept.extend(self._wanted(found.records))
                self._reached = self._following.positions()
            now_s = time.monotonic()
            if self._kept or now_s >= deadline_s:
                return
            if found.is_all:
                self._awake.wait(max(0.0, min(self._next_s, deadline_s) - now_s), cancellable=True)

    def _read(self, deadline_s: float) -> ReadResult:
        """Read all partitions if a poll is due, or `wait` is over; otherwise those with notified appends."""
        now_s = time.monotonic()
        spec, hinted = self._spec, self._hints.take()
        if now_s < min(self._next_s, deadline_s):
            return self._driver.run(self._following.read_hinted(spec, hinted))
        self._add_partitions(spec)
        found = self._driver.run(self._following.read(spec, hinted))
        self._next_s = now_s + self._interval_s if found.is_all else now_s
        return found

    def __iter__(self) -> Iterator[LogRecord]:
        """Yield records until the follower is closed.

        A loop may be left: the next loop, or `poll`, goes on behind the last record that was yielded.
        """
        while not self._closed.is_set():
            try:
                self._read_ahead(timedelta(seconds=1))
            except Closed:
                return
            yield from self._take_each()

    def close(self) -> None:
        """Stop reading. Never raises; any thread may call it."""
        super().close()
        self._notifier.forget(self._log, self._hints)
        self._awake.set()

    def positions(self) -> dict[int, LogId]:
        """Return for each partition the position behind which no record was returned.

        The result is a `start` for another reader.
        """
        log, reached = self._spec.partition, self._reached  # before `_kept`: a read may come in between
        positions = self._handed if self._kept else reached
        return {each: LogId.of(log, each, at) for each, at in positions.copy().items()}

    def _take_each(self) -> Iterator[LogRecord]:
        for record in super()._take_each():
            at, id_ = record.partition, record._id  # noqa: SLF001 - `id` would be parsed for each record
            if id_ <= self._reached[at]:  # else it was read early, and others may come before it
                self._handed[at] = max(self._handed.get(at, id_), id_)
            yield record

    def _add_partitions(self, spec: LogSpec) -> None:
        """Add partitions that the log has gained, from their beginning."""
        if not self._all or spec.partitions - 1 in self._following:
            return
        missing = [each for each in range(spec.partitions) if each not in self._following]
        now_us = self._driver.clock.now_us()
        for partition, position in starts(spec, EARLIEST, missing, now_us, EARLIEST).items():
            self._following.open(spec, partition, position)
