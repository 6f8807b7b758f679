"""Readers of a log: one that ends at what is stable now, and one that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import chain
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cqueue import ids
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import BadInput, Closed
from cqueue.log.catalog import LogCatalog, LogEntry
from cqueue.log.positions import EARLIEST, Point, Start, id_at, starts
from cqueue.log.records import LogId, LogRecord, check_partition, check_text
from cqueue.message import check_duration
from cqueue.protocol.logs import LogSpec
from cqueue.protocol.pages import PageMerge, Stretch, passed_upto
from cqueue.protocol.scan import Merge, Record, ShardMap

if TYPE_CHECKING:
    import pyarrow as pa

NO_END = (1 << 124) - 1
FOREVER_S = 86_400.0


class _Reader:
    """What both readers have: the log, its partitions, topics to keep, and an end to it all."""

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
        self._topics = _checked_topics(topics)
        self._closed = Event()
        self._partitions = self._checked(partitions)

    def _entry(self) -> LogEntry:
        return self._catalog.entry(self._name)

    @property
    def _spec(self) -> LogSpec:
        return self._entry().spec

    def _checked(self, partitions: Sequence[int] | None) -> list[int]:
        count = self._spec.partitions
        if partitions is None:
            return list(range(count))
        if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
            raise BadInput(f"partitions is {partitions!r}; it takes several numbers")
        listed = sorted({check_partition(each, count) for each in partitions})
        if not listed:
            raise BadInput("partitions is empty; leave it out for all of them")
        return listed

    def _wanted(self, found: list[Record]) -> list[LogRecord]:
        log, topics = self._spec.partition, self._topics
        return [
            LogRecord(log, partition, row)
            for row, partition in found
            if topics is None or row.topic in topics
        ]

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closed(f"the reader of log {self._name!r} has been closed")

    def close(self) -> None:
        """Read no more. Never raises; from any thread."""
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Scanner(_Reader):
    """Records in the order of their ids, up to an end that is fixed when it is made. Not thread-safe."""

    def __init__(
        self,
        catalog: LogCatalog,
        driver: BlockingDriver,
        name: str,
        *,
        start: Start,
        end: Point | None,
        partitions: Sequence[int] | None,
        topics: Iterable[str] | None,
        limit: int | None,
        reverse: bool,
        on_expired: str,
    ) -> None:
        super().__init__(catalog, driver, name, partitions=partitions, topics=topics)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise BadInput(f"limit is {limit!r}; it takes a whole number from 1 on")
        spec, self._began_us = self._spec, driver.clock.now_us()
        horizon = spec.horizon(self._began_us)
        last = horizon if end is None else min(horizon, id_at(spec, end))
        first = starts(spec, start, self._partitions, self._began_us, on_expired)
        self._left = limit
        self._reverse = reverse
        self._known = ShardMap()
        # Backwards all partitions end at one id, so that they can be merged: the earliest of the starts.
        self._first = first
        self._end = min(first.values()) if reverse else last
        positions = {each: max(last, self._end) for each in first} if reverse else first
        self._merge = PageMerge(spec, positions, self._known, reverse=reverse)
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="cqueue-scan")
        self._next: Future[list[Stretch] | None] | None = None

    def __repr__(self) -> str:
        return f"<scanner of log {self._name}>"

    # ── reading ──

    def batches(self) -> Iterator[list[LogRecord]]:
        """The records in batches as they were read; the next one is read meanwhile.

        Raises:
            NotDone: a read failed to the end; iterating again goes on where it stopped.
            Closed: the scanner has been closed.
        """
        log = self._spec.partition
        for found in self._found():
            rows = [
                Record(row, stretch.partition)
                for stretch in found
                for row in stretch.page.rows(stretch.start, stretch.stop)
                if self._topics is None or row.topic in self._topics
            ]
            # Stretches are in order, and sorting finds that out: it merges.
            rows.sort(key=lambda record: record.row.id, reverse=self._reverse)
            kept = rows[: self._left]
            if kept:
                self._given(len(kept))
                yield [LogRecord(log, partition, row) for row, partition in kept]

    def __iter__(self) -> Iterator[LogRecord]:
        return chain.from_iterable(self.batches())

    def _found(self) -> Iterator[list[Stretch]]:
        """What each round finds, until the limit is reached."""
        while self._left is None or self._left > 0:
            found = self._take()
            if found is None:
                return
            wanted = [self._behind(stretch) for stretch in found] if self._reverse else found
            if wanted:
                yield wanted

    def _behind(self, stretch: Stretch) -> Stretch:
        """What of it is above its partition's start: backwards all are read to the earliest start."""
        return stretch._replace(stop=passed_upto(stretch, self._first[stretch.partition], reverse=True))

    def _given(self, count: int) -> None:
        if self._left is not None:
            self._left -= count

    def _take(self) -> list[Stretch] | None:
        """What was read ahead, or is read now; and begin to read on."""
        self._check_open()
        ahead, self._next = self._next, None
        found = ahead.result() if ahead is not None else self._read()
        if found is not None:
            self._next = self._reads.submit(self._read)
        return found

    def _read(self) -> list[Stretch] | None:
        return self._driver.run(self._merge.more(self._spec, self._end, self._began_us))

    # ── Arrow ──

    def to_arrow(self) -> Iterator[pa.RecordBatch]:
        """The records as Arrow record batches of `cqueue.log.arrow.SCHEMA`; needs the extra `arrow`.

        Raises:
            as `batches`.
        """
        from cqueue.log import arrow  # noqa: PLC0415 - pyarrow is an extra

        for found in self._found():
            batch = arrow.batch_of(found, reverse=self._reverse)
            if self._topics is not None:
                batch = arrow.of_topics(batch, self._topics)
            if self._left is not None:
                batch = batch.slice(0, self._left)
            if batch.num_rows:
                self._given(batch.num_rows)
                yield batch

    # ── moving ──

    def seek(self, start: Start, *, on_expired: str = "error") -> None:
        """Go on from another position: behind it, or with `reverse` below it.

        Raises:
            as `Log.scan` of its `start`.
        """
        self._check_open()
        ahead, self._next = self._next, None
        if ahead is not None:
            ahead.exception()  # the sources must not be read and moved at a time
        positions = starts(self._spec, start, self._partitions, self._driver.clock.now_us(), on_expired)
        for partition, position in positions.items():
            self._merge.sources[partition].seek(position)

    def close(self) -> None:
        """Read no more. Never raises."""
        super().close()
        self._reads.shutdown(wait=False, cancel_futures=True)


class Follower(_Reader):
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
        self._known = ShardMap()
        self._stable = Merge(spec, positions, self._known)
        self._fast = Merge(spec, positions, self._known) if low_latency else None
        self._aim: tuple[int, int] | None = None  # how far the stable one reads now, and since when
        self._seen: set[int] = set()  # handed out by the fast one, not yet passed by the stable one

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
            found, at_end = self._round()
            left_s = deadline_s - time.monotonic()
            if found or left_s <= 0:
                return found
            if at_end:
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
        return {each: LogId.of(log, each, one.position) for each, one in self._stable.sources.items()}

    def _round(self) -> tuple[list[LogRecord], bool]:
        """What was read, and whether that was all there is."""
        spec, now_us = self._spec, self._driver.clock.now_us()
        self._add_partitions(spec)
        run = self._driver.run
        if self._aim is None:  # kept until it is reached: the horizon itself never is
            self._aim = (spec.horizon(now_us), now_us)
        stable = run(self._stable.more(spec, *self._aim))
        if stable is None:
            self._aim = None
        found = [one for one in stable or () if one.row.id not in self._seen]
        self._seen.difference_update(one.row.id for one in stable or ())
        if self._fast is None:
            return self._wanted(found), stable is None
        newest = run(self._fast.more(spec, ids.highest_at(now_us), now_us)) or []
        known = {one.row.id for one in found}
        fresh = [one for one in newest if one.row.id not in known and self._is_ahead(one)]
        self._seen.update(one.row.id for one in fresh)
        return self._wanted(sorted([*found, *fresh], key=lambda one: one.row.id)), stable is None

    def _is_ahead(self, record: Record) -> bool:
        """Whether the stable reader will come by: what it has passed, it has handed out."""
        return record.row.id > self._stable.sources[record.partition].position

    def _add_partitions(self, spec: LogSpec) -> None:
        if not self._all or len(self._stable.sources) == spec.partitions:
            return
        now_us = self._driver.clock.now_us()
        missing = [each for each in range(spec.partitions) if each not in self._stable.sources]
        for partition, position in starts(spec, EARLIEST, missing, now_us, EARLIEST).items():
            self._stable.add(spec, partition, position)
            if self._fast is not None:
                self._fast.add(spec, partition, position)


def _checked_topics(topics: Iterable[str] | None) -> frozenset[str] | None:
    if topics is None:
        return None
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise BadInput(f"topics is {topics!r}; it takes several texts")
    found: Any = frozenset(check_text("topic", topic) for topic in topics)
    if not found:
        raise BadInput("topics is empty; leave it out for all of them")
    return frozenset(found)
