"""Merge the partitions of a log in the order of ids, never beyond an end that the caller gives.

Each partition is a source that knows how far it was read. Records that all sources have passed can be handed
out in order. The next round reads only the sources that hold the others back.
"""

from __future__ import annotations

from functools import partial

from cqueue.log.protocol.shards import ShardMap
from cqueue.log.protocol.source import FEWEST_ROWS, SLICE_BYTES, Read, Source, Stretch
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.spec import Proto
from cqueue.store.log_operations import PeekRecords
from cqueue.store.operations import together

SOURCES_AT_ONCE = 32
"""Sources that one round reads side by side at most."""
MERGE_BYTES = 64 << 20
"""Bytes that one read of each source adds up to, about: it bounds memory for a log with many partitions."""
FIRST_ROWS, FIRST_ROWS_OF_ALL = 64, 256
"""Rows that the first read of one source asks for at most, and those of all sources together: how large they
are is not known yet, and bodies may have 1 MiB."""

Asked = tuple[Source, Read]
"""A source, and the read that it needs next."""


def _slice_bytes(partitions: int) -> int:
    """Return the bytes that one read aims at: the fewer, the more partitions are read."""
    return min(SLICE_BYTES, MERGE_BYTES // max(1, partitions))


def _first_rows(partitions: int) -> int:
    """Return the rows that the first read of a partition asks for."""
    return max(FEWEST_ROWS, min(FIRST_ROWS, FIRST_ROWS_OF_ALL // max(1, partitions)))


class Merge:
    """Several partitions of a log. Each round hands out all records up to a watermark.

    The stretches of one partition are in order; `source.in_order` merges those of several.
    ids_only: read ids, but no bodies.
    """

    def __init__(
        self,
        spec: LogSpec,
        positions: dict[int, int],
        known: ShardMap | None = None,
        *,
        reverse: bool = False,
        ids_only: bool = False,
    ) -> None:
        self._known = known or ShardMap()
        self._reverse = reverse
        self._source = partial(Source, reverse=reverse, ids_only=ids_only)
        limit = _first_rows(len(positions))
        self.sources = {
            partition: self._source(spec, partition, position, limit=limit)
            for partition, position in sorted(positions.items())
        }

    def add(self, spec: LogSpec, partition: int, position: int) -> None:
        """Add a partition, or read it from another position."""
        limit = _first_rows(len(self.sources) + 1)
        self.sources[partition] = self._source(spec, partition, position, limit=limit)

    def more(self, spec: LogSpec, end: int, began_us: int) -> Proto[list[Stretch] | None]:
        """Return the next records, perhaps none; None once all sources are at `end`.

        began_us: when this read began; time shards that were over by then are looked up in the registry.

        Raises:
            NotDone: a read failed; only the records handed out so far are passed.
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
        asked = [(source, source.request(spec, self._known, end)) for source in behind]
        yield from self._perform([(source, read) for source, read in asked if read is not None], end)
        return self._hand_out(end)

    def _perform(self, reads: list[Asked], end: int) -> Proto[None]:
        """Perform reads. One statement asks all quiet partitions of a time shard whether they have any."""
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
        for (source, _), answer in zip(single, answers[len(groups) :], strict=True):
            source.feed(answer, end, _slice_bytes(len(self.sources)))

    def is_at(self, end: int) -> bool:
        """Return whether all records up to `end` have been handed out."""
        return all(source.handed_out >= end for source in self.sources.values())

    def _behind(self, end: int) -> list[Source]:
        """Return the sources to read, those that hold the others back first."""
        if self._reverse:
            behind = [source for source in self.sources.values() if source.position > end]
            behind.sort(key=lambda source: -source.position)
        else:
            behind = [source for source in self.sources.values() if source.position < end]
            behind.sort(key=lambda source: source.position)
        return [source for source in behind[:SOURCES_AT_ONCE] if source is behind[0] or source.runs_low()]

    def _hand_out(self, end: int) -> list[Stretch]:
        positions = [source.position for source in self.sources.values()] or [end]
        watermark = max(positions) if self._reverse else min(positions)
        return [stretch for source in self.sources.values() for stretch in source.take(watermark)]


def _peek(group: list[Asked]) -> PeekRecords:
    partitions = tuple(source.partition for source, _ in group)
    shard, upto = group[0][1].shard, group[0][1].upto
    after = min(read.after for _, read in group)
    return PeekRecords(shard.log, partitions, shard.time_shard, after, upto)
