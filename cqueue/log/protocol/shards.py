"""Read from a log's registry which partitions have records in which time shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.spec import Proto
from cqueue.runtime.sequences import parts
from cqueue.store.log_operations import ReadLogShards
from cqueue.store.operations import together

SHARDS_AT_ONCE = 64
"""Time shards of the registry that one statement reads: each is a Cassandra partition of its own."""
CHUNKS_AT_ONCE = 16
"""Such statements that run side by side."""
MAX_KNOWN = 20_000
"""Time shards remembered, a few MB of memory; beyond that all are forgotten and read again."""


def reads_of(spec: LogSpec, time_shards: Sequence[int]) -> Iterator[ReadLogShards]:
    """Yield the statements that read these time shards from the registry."""
    for some in parts(time_shards, SHARDS_AT_ONCE):
        yield ReadLogShards(spec.partition, tuple(some))


class ShardMap:
    """The partitions with records by time shard, as the registry says; only of time shards that are over."""

    def __init__(self) -> None:
        self._known: dict[int, frozenset[int]] = {}

    def knows(self, spec: LogSpec, time_shard: int, began_us: int) -> bool:
        """Return whether the time shard was read, or need not be, as it may still get records."""
        over_us = (time_shard + spec.width_ms) * 1000 + spec.settle_us + spec.skew_us
        return time_shard in self._known or over_us > began_us

    def holds(self, time_shard: int, partition: int) -> bool:
        """Return whether a partition may have records in a time shard; in one that was not read it may."""
        known = self._known.get(time_shard)
        return known is None or partition in known

    def load(self, spec: LogSpec, time_shards: Iterable[int], began_us: int) -> Proto[None]:
        """Read the registry for those of the time shards that are over."""
        wanted = [each for each in time_shards if not self.knows(spec, each, began_us)]
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        reads = tuple(reads_of(spec, wanted))
        for read, found in zip(reads, (yield from together(*reads)), strict=True):
            self._known.update({each: found.get(each, frozenset()) for each in read.time_shards})


def existing(spec: LogSpec, time_shards: Sequence[int]) -> Proto[dict[int, frozenset[int]]]:
    """Return those of the time shards that are in the registry, with the partitions that have records."""
    reads = reads_of(spec, time_shards)
    found: dict[int, frozenset[int]] = {}
    while some := tuple(islice(reads, CHUNKS_AT_ONCE)):
        for part in (yield from together(*some)):
            found.update(part)
    return found
