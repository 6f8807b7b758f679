"""Read one partition of a log from time shard to time shard, and keep answers as they came."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.log.protocol.append import ROW_BYTES
from cqueue.log.protocol.shards import SHARDS_AT_ONCE, ShardMap
from cqueue.log.protocol.spec import LogSpec
from cqueue.store.log_operations import LogShard, ReadRecordIds, RecordRow
from cqueue.store.record_page import ReadRecordPage, RecordPage

FEWEST_ROWS = 8
"""Rows that a read asks for at least, however large the last ones were."""
MOST_ROWS = 5000
"""Rows that a read asks for at most, however small the last ones were."""
SLICE_BYTES = 2 << 20
"""Bytes that one read aims at, by the size of the last rows: large enough that requests cost little."""

Read = ReadRecordPage | ReadRecordIds


@dataclass(frozen=True, slots=True)
class IdPage:
    """An answer that holds only ids."""

    listed: list[int]

    def __len__(self) -> int:
        return len(self.listed)

    def id_at(self, place: int) -> int:
        """Return the id at a place."""
        return self.listed[place]


class Stretch(NamedTuple):
    """Some records of one partition: those at the places `start` to `stop` - 1 of an answer."""

    partition: int
    page: Any  # a RecordPage, or an IdPage
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Return the number of records."""
        return self.stop - self.start

    def ids(self) -> list[int]:
        """Return the records' ids."""
        return [self.page.id_at(place) for place in range(self.start, self.stop)]


class Record(NamedTuple):
    """A record and its partition."""

    row: RecordRow
    partition: int


def in_order(stretches: Iterable[Stretch], *, reverse: bool = False) -> list[Record]:
    """Return the records of some stretches in the order of their ids."""
    found = [
        Record(row, stretch.partition)
        for stretch in stretches
        for row in stretch.page.rows(stretch.start, stretch.stop)
    ]
    # Each stretch is in order already, so Python's sort merges them.
    found.sort(key=lambda record: record.row.id, reverse=reverse)
    return found


def passed_upto(stretch: Stretch, watermark: int, *, reverse: bool) -> int:
    """Return the first place not passed. Ids up to the watermark are passed; with `reverse`, those above."""
    places = range(stretch.start, stretch.stop)
    if reverse:
        found = bisect_left(places, -watermark, key=lambda place: -stretch.page.id_at(place))
    else:
        found = bisect_right(places, watermark, key=stretch.page.id_at)
    return stretch.start + found


def next_limit(limit: int, rows: int, size: int, slice_bytes: int = SLICE_BYTES) -> int:
    """Return how many rows a read asks for after one of `rows` with `size` bytes, whose limit was `limit`."""
    return max(FEWEST_ROWS, min(MOST_ROWS, limit * 4, slice_bytes * rows // size))


class Source:
    """One partition, read up to `position`: forwards, or with `reverse` backwards.

    position: forwards, the last id passed; backwards, ids above it are passed. quiet: the last read found
    nothing. limit: rows that the next read asks for. ids_only: read ids, but no bodies.
    """

    def __init__(
        self, spec: LogSpec, partition: int, position: int, *, reverse: bool, ids_only: bool, limit: int
    ) -> None:
        self.partition = partition
        self.quiet = ids_only  # most partitions have no new ids, so they are asked together first
        self._reverse = reverse
        self._ids_only = ids_only
        self.limit = limit
        self._width = spec.width_ms
        self.seek(position)

    def seek(self, position: int) -> None:
        """Continue from another position."""
        self.position = position
        self._shard = self._floor(position)
        self._buffer: list[Stretch] = []  # read, but not handed out yet

    def _floor(self, id_: int) -> int:
        return ids.time_us(id_) // 1000 // self._width * self._width

    # ── what to read ──

    def missing(self, spec: LogSpec, known: ShardMap, end: int, began_us: int) -> list[int]:
        """Return the time shards whose registry has to be read before `request`."""
        at = self._skip(known, end)
        if at is None or known.knows(spec, at, began_us):
            return []
        step = -self._width if self._reverse else self._width
        return [each for each in range(at, at + step * SHARDS_AT_ONCE, step) if not self._is_past(each, end)]

    def _is_past(self, time_shard: int, end: int) -> bool:
        return time_shard < self._floor(end) if self._reverse else time_shard > self._floor(end)

    def _skip(self, known: ShardMap, end: int) -> int | None:
        """Return the next time shard that may have records; None past the end."""
        while not self._is_past(self._shard, end):
            if known.holds(self._shard, self.partition):
                return self._shard
            self._shard += -self._width if self._reverse else self._width
        return None

    def request(self, spec: LogSpec, known: ShardMap, end: int) -> Read | None:
        """Return the next read; None if there is nothing up to the end."""
        at = self._skip(known, end)
        if at is None:
            self.position = end
            self._shard = self._floor(end)
            return None
        shard = LogShard(spec.partition, self.partition, at)
        if self._ids_only:
            return ReadRecordIds(shard, self.position, end, self.limit)
        after, upto = (end, self.position) if self._reverse else (self.position, end)
        return ReadRecordPage(shard, after, upto, self.limit, self._reverse)

    def runs_low(self) -> bool:
        """Return whether to read on before all is handed out, side by side with other sources."""
        return sum(stretch.size for stretch in self._buffer) * 2 < self.limit

    # ── answers ──

    def feed(self, answer: RecordPage | list[int], end: int, slice_bytes: int) -> None:
        """Add an answer to the buffer, and set the next read's limit by this one's bytes."""
        page = IdPage(answer) if isinstance(answer, list) else answer
        count = len(page)
        self.quiet = not count
        if count:
            self._buffer.append(Stretch(self.partition, page, 0, count))
        if count == self.limit:
            last = page.id_at(count - 1)
            self.position = last - 1 if self._reverse else last
        else:
            self._leave_shard(end)
        if count:
            size = len(page.data) if isinstance(page, RecordPage) else count * ROW_BYTES
            self.limit = next_limit(self.limit, count, size, slice_bytes)

    def peeked(self, first: int | None, end: int) -> None:
        """Note the first id in the current time shard; None if it has none up to `end`."""
        if first is None:
            self._leave_shard(end)
        else:
            self.quiet = False

    def _leave_shard(self, end: int) -> None:
        if self._reverse:
            self.position = max(end, ids.lowest_at(self._shard * 1000) - 1)
            self._shard -= self._width
        else:
            self.position = min(end, ids.lowest_at((self._shard + self._width) * 1000) - 1)
            self._shard = self._floor(self.position + 1)

    def take(self, watermark: int) -> list[Stretch]:
        """Hand out what the watermark has passed."""
        passed: list[Stretch] = []
        left: list[Stretch] = []
        for stretch in self._buffer:
            middle = passed_upto(stretch, watermark, reverse=self._reverse)
            if middle > stretch.start:
                passed.append(stretch._replace(stop=middle))
            if middle < stretch.stop:
                left.append(stretch._replace(start=middle))
        self._buffer = left
        return passed

    @property
    def handed_out(self) -> int:
        """Return, forwards, the position up to which all records have been handed out."""
        if not self._buffer:
            return self.position
        first = self._buffer[0]
        return int(first.page.id_at(first.start)) - 1
