"""Reading a log: partitions merged in the order of ids, never beyond what the caller knows to be stable.

Each partition is a source that knows how far it has been read. What all sources have passed can be
handed out in order; the next round reads only those that hold the others back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from cqueue import ids
from cqueue.protocol.fresh import together
from cqueue.protocol.logs import LogSpec
from cqueue.protocol.spec import Proto
from cqueue.store.log_operations import (
    LogShard,
    PeekRecords,
    ReadLogShards,
    ReadRecordIds,
    ReadRecords,
    RecordRow,
)
from cqueue.store.operations import Operation
from cqueue.store.record_page import ReadRecordPage

SHARDS_AT_ONCE = 64
"""Time shards of the registry that one statement reads."""
CHUNKS_AT_ONCE = 16
MAX_KNOWN = 20_000
SOURCES_AT_ONCE = 32
FIRST_ROWS = 64
FEWEST_ROWS = 8
MOST_ROWS = 5000
SLICE_BYTES = 2 << 20
"""What one read aims at; the first one of a source is small, because bodies may be large."""
MERGE_BYTES = 64 << 20
"""What the reads of all sources of a merge aim at together."""
ROW_BYTES = 100
"""Of a record, besides its body."""


T = TypeVar("T")
Read = ReadRecords | ReadRecordPage | ReadRecordIds


class ShardMap:
    """Which partitions exist, as far as the registry was read; only of time shards that are over for good."""

    def __init__(self) -> None:
        self._known: dict[int, frozenset[int]] = {}

    def is_over(self, spec: LogSpec, time_shard: int, began_us: int) -> bool:
        """Whether nothing can be acknowledged in a time shard any more, for a read that began then."""
        return (time_shard + spec.width_ms) * 1000 + spec.settle_us + spec.skew_us <= began_us

    def knows(self, spec: LogSpec, time_shard: int, began_us: int) -> bool:
        """Whether `holds` can be asked."""
        return time_shard in self._known or not self.is_over(spec, time_shard, began_us)

    def holds(self, time_shard: int, partition: int) -> bool:
        """Whether the partition may hold records; where nothing was read, it may."""
        known = self._known.get(time_shard)
        return known is None or partition in known

    def load(self, spec: LogSpec, time_shards: Iterable[int], began_us: int) -> Proto[None]:
        """Read the registry for those time shards that are over."""
        wanted = [each for each in time_shards if not self.knows(spec, each, began_us)]
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        chunks = [wanted[at : at + SHARDS_AT_ONCE] for at in range(0, len(wanted), SHARDS_AT_ONCE)]
        reads: list[Operation[Any]] = [ReadLogShards(spec.partition, tuple(chunk)) for chunk in chunks]
        for chunk, found in zip(chunks, (yield from together(*reads)), strict=True):
            self._known.update({each: found.get(each, frozenset()) for each in chunk})


def existing(spec: LogSpec, now_us: int) -> Proto[dict[int, frozenset[int]]]:
    """Every time shard that the registry knows, and the partitions that exist in it."""
    width_ms = spec.width_ms
    first, last = spec.shard_at(0, spec.oldest_us(now_us)).time_shard, now_us // 1000 + width_ms
    found: dict[int, frozenset[int]] = {}
    step = SHARDS_AT_ONCE * width_ms
    for start in range(first, last, step * CHUNKS_AT_ONCE):
        begins = range(start, min(last, start + step * CHUNKS_AT_ONCE), step)
        chunks = (tuple(range(begin, min(last, begin + step), width_ms)) for begin in begins)
        for part in (yield from together(*(ReadLogShards(spec.partition, chunk) for chunk in chunks))):
            found.update(part)
    return found


class Record(NamedTuple):
    """A record and its partition."""

    row: RecordRow
    partition: int


class Source:
    """One partition, read up to `position`: forwards, or with `reverse` backwards."""

    __slots__ = (
        "_limit",
        "_shard",
        "_slice_bytes",
        "_width",
        "buffer",
        "partition",
        "position",
        "quiet",
        "reverse",
    )
    read: type[ReadRecords | ReadRecordPage] = ReadRecords

    def __init__(
        self,
        spec: LogSpec,
        partition: int,
        position: int,
        *,
        reverse: bool = False,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self.partition = partition
        self.position = position  # forwards: the last id passed; backwards: ids above it are passed
        self.reverse = reverse
        self.buffer: list[Any] = []  # read, and not handed out
        self.quiet = False  # the last read found nothing
        self._slice_bytes = slice_bytes
        self._limit = max(FEWEST_ROWS, min(FIRST_ROWS, slice_bytes >> 10))
        self._width = spec.width_ms
        self._shard = self._floor(position)

    def _floor(self, id_: int) -> int:
        return ids.time_us(id_) // 1000 // self._width * self._width

    def missing(self, spec: LogSpec, known: ShardMap, end: int, began_us: int) -> list[int]:
        """Time shards of which the registry has to be read before `request`."""
        at = self._skip(spec, known, end, began_us)
        if at is None or known.knows(spec, at, began_us):
            return []
        step = -self._width if self.reverse else self._width
        return [each for each in range(at, at + step * SHARDS_AT_ONCE, step) if not self._is_past(each, end)]

    def _is_past(self, time_shard: int, end: int) -> bool:
        return time_shard < self._floor(end) if self.reverse else time_shard > self._floor(end)

    def _skip(self, spec: LogSpec, known: ShardMap, end: int, began_us: int) -> int | None:
        """The first time shard that may hold records, or of which nothing is known; None: beyond the end."""
        while not self._is_past(self._shard, end):
            unknown = not known.knows(spec, self._shard, began_us)
            if unknown or known.holds(self._shard, self.partition):
                return self._shard
            self._shard += -self._width if self.reverse else self._width
        return None

    def request(self, spec: LogSpec, known: ShardMap, end: int, began_us: int) -> Read | None:
        """What to read next; None: there is nothing up to the end."""
        at = self._skip(spec, known, end, began_us)
        if at is None:
            self.position = end
            self._shard = self._floor(end)
            return None
        shard = LogShard(spec.partition, self.partition, at)
        after, upto = (end, self.position) if self.reverse else (self.position, end)
        return self.read(shard, after, upto, self._limit, self.reverse)

    def feed(self, rows: Any, end: int) -> None:
        """Take what was read."""
        self.buffer += rows
        size = sum(len(row.body) + ROW_BYTES for row in rows)
        self._move(len(rows), rows[-1].id if rows else 0, size, end)

    def buffered(self) -> int:
        """Records that were read and not handed out."""
        return len(self.buffer)

    def runs_low(self) -> bool:
        """Whether to read on before all is handed out: many are then read side by side."""
        return self.buffered() * 2 < self._limit

    def _move(self, count: int, last: int, size: int, end: int) -> None:
        """Go on behind what was read; bound the next read by bytes, as far as this one tells."""
        self.quiet = not count
        if count == self._limit:
            self.position = last - 1 if self.reverse else last
        else:
            self._leave_shard(end)
        if count:
            self._limit = max(FEWEST_ROWS, min(MOST_ROWS, self._limit * 4, self._slice_bytes * count // size))

    def peeked(self, first: int | None, end: int) -> None:
        """Take note of the first id that stands there, if any does."""
        if first is None:
            self._leave_shard(end)
        else:
            self.quiet = False

    def _leave_shard(self, end: int) -> None:
        if self.reverse:
            self.position = max(end, ids.lowest_at(self._shard * 1000) - 1)
            self._shard -= self._width
        else:
            self.position = min(end, ids.lowest_at((self._shard + self._width) * 1000) - 1)
            self._shard = self._floor(self.position + 1) if self.position < end else self._shard

    def take(self, watermark: int) -> list[Any]:
        """Hand out what the watermark has passed."""
        buffer, reverse = self.buffer, self.reverse
        if not buffer or (buffer[-1].id > watermark if reverse else buffer[-1].id <= watermark):
            self.buffer = []
            return buffer
        passed = [row for row in buffer if (row.id > watermark if reverse else row.id <= watermark)]
        self.buffer = buffer[len(passed) :]
        return passed

    def seek(self, position: int) -> None:
        """Go on from another position."""
        self.position, self._shard, self.buffer = position, self._floor(position), []


Asked = tuple[Source, Read]
"""A source, and what it reads next."""


def _peek(group: list[Asked]) -> PeekRecords:
    partitions = tuple(source.partition for source, _ in group)
    shard, upto = group[0][1].shard, group[0][1].upto
    after = min(read.after for _, read in group)
    return PeekRecords(shard.log, partitions, shard.time_shard, after, upto)


class PartitionMerge(Generic[T]):
    """Several partitions of a log, read so far that what they hand out together is in the order of ids.

    What a source is, and in which form it hands out its records, is left to `Merge` and `PageMerge`.
    """

    source: type[Source] = Source

    def __init__(
        self,
        spec: LogSpec,
        positions: dict[int, int],
        known: ShardMap | None = None,
        *,
        reverse: bool = False,
    ) -> None:
        self._known = known or ShardMap()
        self._reverse = reverse
        self._slice_bytes = min(SLICE_BYTES, MERGE_BYTES // max(1, len(positions)))
        self.sources = dict[int, Source]()
        for partition, position in sorted(positions.items()):
            self.add(spec, partition, position)

    def add(self, spec: LogSpec, partition: int, position: int) -> None:
        """Read another partition as well."""
        if partition not in self.sources:
            self.sources[partition] = self.source(
                spec, partition, position, reverse=self._reverse, slice_bytes=self._slice_bytes
            )

    def more(self, spec: LogSpec, end: int, began_us: int) -> Proto[list[T] | None]:
        """The next records in order, perhaps none; None once all sources are at `end`.

        began_us: when this read began: time shards that were over by then are looked up in the registry.

        Raises:
            NotDone: a read failed; what was handed out is passed, nothing else.
        """
        behind = self._behind(end)
        if not behind:
            return self._hand_out(end) or None
        missing = {
            time_shard for source in behind for time_shard in source.missing(spec, self._known, end, began_us)
        }
        if missing:
            yield from self._known.load(spec, sorted(missing), began_us)
            return []
        asked = [(source, source.request(spec, self._known, end, began_us)) for source in behind]
        yield from self._perform([(source, read) for source, read in asked if read is not None], end)
        return self._hand_out(end)

    def _perform(self, reads: list[Asked], end: int) -> Proto[None]:
        """Read; partitions that were quiet lately are first asked together whether they have anything."""
        quiet: dict[int, list[Asked]] = {}
        for source, read in reads:
            if source.quiet and not self._reverse:
                quiet.setdefault(read.shard.time_shard, []).append((source, read))
        groups = [group for group in quiet.values() if len(group) > 1]
        grouped = {id(source) for group in groups for source, _ in group}
        single = [(source, read) for source, read in reads if id(source) not in grouped]
        answers = yield from together(*map(_peek, groups), *(read for _, read in single))
        for group, found in zip(groups, answers, strict=False):
            for source, _ in group:
                source.peeked(found.get(source.partition), end)
        for (source, _), rows in zip(single, answers[len(groups) :], strict=True):
            source.feed(rows, end)

    def _behind(self, end: int) -> list[Source]:
        """The sources to read: those that hold the others back first."""
        if self._reverse:
            behind = [source for source in self.sources.values() if source.position > end]
            behind.sort(key=lambda source: -source.position)
        else:
            behind = [source for source in self.sources.values() if source.position < end]
            behind.sort(key=lambda source: source.position)
        return [source for source in behind[:SOURCES_AT_ONCE] if source is behind[0] or source.runs_low()]

    def _hand_out(self, end: int) -> list[T]:
        positions = [source.position for source in self.sources.values()] or [end]
        return self._taken(max(positions) if self._reverse else min(positions))

    def _taken(self, watermark: int) -> list[T]:
        raise NotImplementedError


class Merge(PartitionMerge[Record]):
    """Records of several partitions in the order of their ids."""

    def _taken(self, watermark: int) -> list[Record]:
        out = [
            Record(row, source.partition)
            for source in self.sources.values()
            for row in source.take(watermark)
        ]
        if len(self.sources) > 1:
            out.sort(key=lambda record: record.row.id, reverse=self._reverse)
        return out


class IdSource(Source):
    """One partition of which only ids are read, forwards."""

    __slots__ = ()

    def __init__(self, spec: LogSpec, partition: int, position: int, **options: Any) -> None:
        super().__init__(spec, partition, position, **options)
        self.quiet = True  # most partitions have nothing new: they are asked together first

    def request(self, spec: LogSpec, known: ShardMap, end: int, began_us: int) -> Read | None:
        """What to read next; None: there is nothing up to the end."""
        asked = super().request(spec, known, end, began_us)
        return None if asked is None else ReadRecordIds(asked.shard, asked.after, asked.upto, asked.limit)

    def feed(self, rows: Any, end: int) -> None:
        """Take what was read."""
        self.buffer += rows
        self._move(len(rows), rows[-1] if rows else 0, len(rows) * ROW_BYTES, end)

    def take(self, watermark: int) -> list[Any]:
        """Hand out what the watermark has passed."""
        passed = [id_ for id_ in self.buffer if id_ <= watermark]
        self.buffer = self.buffer[len(passed) :]
        return passed


class IdMerge(PartitionMerge[int]):
    """Ids of several partitions: in no order, but each round's are above those of the rounds before."""

    source = IdSource

    def _taken(self, watermark: int) -> list[int]:
        return [id_ for source in self.sources.values() for id_ in source.take(watermark)]
