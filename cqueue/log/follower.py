"""Follow a log: read records for ever, as they become stable or, with low latency, readable."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from threading import Lock
from typing import NamedTuple

from cqueue.errors import Closed, NotDone, PositionExpired
from cqueue.log.catalog import LogCatalog
from cqueue.log.notifier import AppendHints, AppendNotifier
from cqueue.log.positions import EARLIEST, Start, starts
from cqueue.log.protocol.following import Following, ReadResult
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.reader import Reader
from cqueue.log.records import LogId, LogRecord
from cqueue.message import check_duration
from cqueue.runtime import waiting
from cqueue.runtime.driver import BlockingDriver


class FollowRound(NamedTuple):
    """What one read found.

    left: records that were not handed out yet.
    handed: for each partition the position behind the records that were handed out.
    uncounted: records that are not counted in `handed` yet, with those that are left.
    reached: for each partition the position behind the read.
    early: ids of records beyond `reached`, by partition.
    """

    left: deque[LogRecord]
    handed: dict[int, int]
    uncounted: deque[LogRecord]
    reached: dict[int, int]
    early: dict[int, list[int]]


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
        earliest = spec.beginning(now_us, lenient=on_expired == EARLIEST)
        positions = starts(spec, start, self._partitions, now_us, on_expired, earliest=earliest)
        self._on_expired = on_expired
        self._notifier = notifier
        self._log = spec.partition
        self._awake = waiting.Signal()  # set by a notification, or by `close`
        self._hints = AppendHints(self._awake.set)
        self._low_latency = low_latency
        self._following = Following(spec, positions, beyond_horizon=low_latency)
        self._is_broken = False  # `_following` may have moved on without the round
        self._round = FollowRound(deque(), positions, deque(), positions, {})
        self._counting = Lock()  # any thread may ask for positions
        self._next_s = 0.0  # when to read all partitions again
        if low_latency:
            notifier.listen(self._log, self._hints)

    def __repr__(self) -> str:
        return f"<follower of log {self._name}>"

    def poll(self, wait: timedelta = timedelta()) -> list[LogRecord]:
        """Return the next records; wait up to `wait` (0 to 1 day) for the first one.

        Raises:
            NotDone: Cassandra did not answer.
            PositionExpired: records that were not read may be forgotten, and `on_expired` is "error".
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
                if self._round.left:
                    return
                found = self._next_round(deadline_s)
            now_s = time.monotonic()
            if self._round.left or now_s >= deadline_s:
                return
            if found.is_all:
                self._awake.wait(max(0.0, min(self._next_s, deadline_s) - now_s), cancellable=True)

    def _next_round(self, deadline_s: float) -> ReadResult:
        """Read and keep the next round. One that was broken off, by a Ctrl-C say, is read again."""
        _, _, _, reached, early = self._round
        if self._is_broken:
            self._following = Following(self._spec, reached, beyond_horizon=self._low_latency, early=early)
        self._is_broken = True
        try:
            found = self._read(deadline_s)
        except NotDone:
            self._is_broken = False  # it goes on where it stopped
            raise
        self._check_remembered(min(reached.values()))
        records, now = self._wanted(found.records), self._following
        self._round = FollowRound(
            deque(records), reached.copy(), deque(records), now.positions(), now.early()
        )
        self._is_broken = False
        return found

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

    def _check_remembered(self, position: int) -> None:
        """Check that a read from this position on, which has just ended, can have found all records."""
        now_us = self._driver.clock.now_us()
        if self._on_expired != EARLIEST and self._spec.has_forgotten(position, now_us):
            raise PositionExpired(
                f"log {self._name!r} may have forgotten records that this follower had not read; "
                "follow it from 'earliest', or give on_expired='earliest'"
            )

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
        log, (left, handed, uncounted, reached, _) = self._spec.partition, self._round
        with self._counting:
            while len(uncounted) > len(left):
                record = uncounted[0]
                at, id_ = record.partition, record._id  # noqa: SLF001 - `id` would be parsed
                if id_ <= reached[at]:  # else it was read early, and others may come before it
                    handed[at] = id_
                uncounted.popleft()
            positions = (handed if left else reached).copy()
        return {each: LogId.of(log, each, at) for each, at in positions.items()}

    def _add_partitions(self, spec: LogSpec) -> None:
        """Add partitions that the log has gained, from their beginning."""
        if not self._all or spec.partitions - 1 in self._following:
            return
        known, now_us = [*self._following.positions().values()], self._driver.clock.now_us()
        lenient = self._on_expired == EARLIEST
        for partition in range(spec.partitions):
            if partition not in self._following:
                beginning = spec.beginning_beside(partition, known, now_us, lenient=lenient)
                self._following.open(spec, partition, beginning)
                self._round.reached[partition] = beginning
