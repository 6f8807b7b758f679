"""Count how far a position is behind what can be read."""

from __future__ import annotations

from cqueue import ids
from cqueue.log.protocol.shards import ShardMap
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.spec import Proto
from cqueue.store.log_operations import CountRecords, LogShard
from cqueue.store.operations import Now


def behind(spec: LogSpec, partition: int, position: int, known: ShardMap) -> Proto[tuple[int, int | None]]:
    """Count the records of a partition from a position, not before `spec.earliest`, up to the horizon.

    Returns:
        Their number, and the first one's time in µs since 1970.
    """
    now_us = yield from Now()
    end = spec.horizon(now_us)
    width = spec.width_ms
    shards = range(ids.time_us(position) // 1000 // width * width, ids.time_us(end) // 1000 + 1, width)
    yield from known.load(spec, shards, now_us)
    count, first_us = 0, None
    for at in shards:
        if known.holds(at, partition):
            span = yield from CountRecords(LogShard(spec.partition, partition, at), position, end)
            count += span.records
            if first_us is None and span.first is not None:
                first_us = ids.time_us(span.first)
    return count, first_us
