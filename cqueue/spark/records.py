"""Reading a log: which tasks read what, and a task's pages as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cqueue import ids
from cqueue.protocol.logs import LogSpec
from cqueue.protocol.scan import SHARDS_AT_ONCE
from cqueue.spark import arrays
from cqueue.spark.options import ReadOptions
from cqueue.spark.session import SparkSide
from cqueue.spark.split import Piece, Probe, ahead, grouped, split
from cqueue.spark.views import LOG, arrow_schema
from cqueue.store.log_operations import LogShard, ReadLogShards, ReadRecordIds
from cqueue.store.record_columns import ReadColumns, RecordColumns

FIRST_ROWS: Final = 64
MOST_ROWS: Final = 5000
PAGE_BYTES: Final = 2 << 20


@dataclass(frozen=True)
class LogPart(InputPartition):
    """What one task reads. log: as in partition keys; limit: so many rows at most."""

    name: str
    log: str
    pieces: tuple[Piece[LogShard], ...]
    topics: frozenset[str] | None
    limit: int | None


def plan(side: SparkSide, spec: LogSpec, options: ReadOptions, as_of_us: int) -> list[InputPartition]:
    """The tasks of a read: groups of exact partitions up to what is stable, large ones cut."""
    now_us = side.driver.clock.now_us()
    last = min(spec.horizon(now_us), ids.highest_at(as_of_us))
    if options.until_us is not None:
        last = min(last, ids.lowest_at(options.until_us) - 1)
    since_us = spec.oldest_us(now_us)
    if options.since_us is not None:
        since_us = max(since_us, options.since_us)
    wanted = options.partitions
    whole = [
        piece
        for shard in existing(side, spec, since_us, ids.time_us(last))
        if wanted is None or shard.partition in wanted
        for piece in within(spec, shard, ids.lowest_at(since_us) - 1, last)
    ]
    if options.limit is not None:  # in one task, or each would read as many
        pieces = (tuple(whole),) if whole else ()
        return [LogPart(spec.name, spec.partition, each, options.topics, options.limit) for each in pieces]

    def probe_of(shard: LogShard) -> Probe:
        return lambda after, upto, limit: side.driver.ask(ReadRecordIds(shard, after, upto, limit))

    groups = grouped(split(whole, probe_of, options.partition_rows), options.partition_rows)
    return [LogPart(spec.name, spec.partition, group, options.topics, None) for group in groups]


def within(spec: LogSpec, shard: LogShard, after: int, last: int) -> Iterator[Piece[LogShard]]:
    """What of a partition lies between two ids, if anything can."""
    first = max(after, ids.lowest_at(shard.time_shard * 1000) - 1)
    upto = min(last, ids.lowest_at((shard.time_shard + spec.width_ms) * 1000) - 1)
    if first < upto:
        yield Piece(shard, first, upto, 0.0)


def existing(side: SparkSide, spec: LogSpec, since_us: int, until_us: int) -> list[LogShard]:
    """The partitions that the registry knows in a range of time, the oldest first."""
    width_ms = spec.width_ms
    first = since_us // 1000 // width_ms * width_ms
    step = SHARDS_AT_ONCE * width_ms
    found: list[LogShard] = []
    for start in range(first, until_us // 1000 + 1, step):
        chunk = tuple(range(start, min(until_us // 1000 + 1, start + step), width_ms))
        shards = side.driver.ask(ReadLogShards(spec.partition, chunk))
        found += [
            LogShard(spec.partition, partition, time_shard)
            for time_shard, partitions in sorted(shards.items())
            for partition in sorted(partitions)
        ]
    return found


def read(side: SparkSide, part: LogPart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The records of a task in the order of its pieces, a batch for each page that was read.

    Raises:
        NotDone: Cassandra does not answer; nothing of the page under way was given out.
    """
    schema, left = arrow_schema(LOG, columns), part.limit
    topics = None if part.topics is None else frozenset(topic.encode() for topic in part.topics)
    for shard, page in ahead(_pages(side, part)):
        found = page if topics is None else _of_topics(page, topics)
        if left is not None:
            found = found.chosen(list(range(min(left, len(found)))))
            left -= len(found)
        if found:
            yield _batch(part, shard, found, schema)
        if left == 0:
            return


def _pages(side: SparkSide, part: LogPart) -> Iterator[tuple[LogShard, RecordColumns]]:
    limit = FIRST_ROWS
    for piece in part.pieces:
        after, full = piece.after, True
        while full:
            found = side.driver.ask(ReadColumns(piece.place, after, piece.upto, limit))
            full = len(found) == limit
            if found:
                yield piece.place, found
                after = found.ids[-1]
                mean = sum(map(len, found.bodies)) // len(found) + 100
                limit = max(8, min(MOST_ROWS, limit * 4, PAGE_BYTES // mean))


def _of_topics(page: RecordColumns, topics: frozenset[bytes]) -> RecordColumns:
    return page.chosen([place for place, topic in enumerate(page.topics) if topic in topics])


def _batch(part: LogPart, shard: LogShard, found: RecordColumns, schema: pa.Schema) -> pa.RecordBatch:
    count = len(found)
    cells = list(map(ids.to_bytes, found.ids))
    makers = {
        "id": lambda: arrays.log_ids(part.log, shard.partition, cells),
        "log": lambda: arrays.constant(part.name, count, pa.string()),
        "partition": lambda: arrays.constant(shard.partition, count, pa.int32()),
        "time": lambda: arrays.times(cells),
        "topic": lambda: arrays.texts(found.topics),
        "key": lambda: arrays.texts(found.keys),
        "body": lambda: pa.array(found.bodies, pa.binary()),
        "headers": lambda: arrays.maps(found.headers),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in schema.names], schema=schema)
