"""Reading a log: which tasks read what, and a task's pages as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cqueue import ids
from cqueue.errors import PositionExpired
from cqueue.log.arrow import Columns, of_topics
from cqueue.log.protocol import shards
from cqueue.log.protocol.merge import FIRST_ROWS
from cqueue.log.protocol.source import Stretch, next_limit
from cqueue.log.protocol.spec import LogSpec
from cqueue.spark import makers
from cqueue.spark.options import ReadOptions
from cqueue.spark.session import SparkSide, patient
from cqueue.spark.split import Piece, Probe, ahead, limited, tasks
from cqueue.spark.views import LOG, arrow_schema
from cqueue.store.log_operations import LogShard, ReadRecordIds
from cqueue.store.record_page import ReadRecordPage


@dataclass(frozen=True)
class LogPart(InputPartition):
    """The records that one task reads. limit: rows at most.

    fail_on_data_loss: whether one that may have expired before it was read ends the task.
    """

    spec: LogSpec
    pieces: tuple[Piece[LogShard], ...]
    topics: frozenset[str] | None
    limit: int | None = None
    fail_on_data_loss: bool = False


def plan(side: SparkSide, spec: LogSpec, options: ReadOptions, as_of_us: int) -> list[InputPartition]:
    """Plan the tasks of a read: groups of exact partitions up to what is stable, large ones cut."""
    now_us = side.driver.clock.now_us()
    last = min(spec.horizon(now_us), ids.highest_at(as_of_us))
    if options.until_us is not None:
        last = min(last, ids.lowest_at(options.until_us) - 1)
    since_us = spec.oldest_us(now_us)
    if options.since_us is not None:
        since_us = max(options.since_us, spec.left_us(now_us))
    whole = [
        piece
        for shard in existing(side, spec, since_us, ids.time_us(last))
        for piece in within(spec, shard, ids.lowest_at(since_us) - 1, last)
    ]

    def probe_of(shard: LogShard) -> Probe:
        return lambda after, upto, limit: side.driver.ask(ReadRecordIds(shard, after, upto, limit))

    groups = tasks(whole, probe_of, options.partition_rows, options.limit)
    return [LogPart(spec, group, options.topics, options.limit) for group in groups]


def within(spec: LogSpec, shard: LogShard, after: int, last: int) -> Iterator[Piece[LogShard]]:
    """Yield the piece of a partition between two ids, if there can be records."""
    first = max(after, ids.lowest_at(shard.time_shard * 1000) - 1)
    upto = min(last, ids.lowest_at((shard.time_shard + spec.width_ms) * 1000) - 1)
    if first < upto:
        yield Piece(shard, first, upto, 0.0)


def existing(side: SparkSide, spec: LogSpec, since_us: int, until_us: int) -> list[LogShard]:
    """Return the partitions that the registry knows in a range of time, oldest first."""
    first = spec.shard_at(0, since_us).time_shard
    found = side.driver.run(shards.existing(spec, range(first, until_us // 1000 + 1, spec.width_ms)))
    return [
        LogShard(spec.partition, partition, time_shard)
        for time_shard, partitions in sorted(found.items())
        for partition in sorted(partitions)
    ]


def read(side: SparkSide, part: LogPart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read the records of a task in the order of its pieces, a batch for each page.

    Raises:
        NotDone: Cassandra does not answer; no row of the page under way was given out.
        PositionExpired: as `pages`.
    """
    asked = {*columns, "topic"} if part.topics is not None else set(columns)
    schema = arrow_schema(LOG, sorted(asked))
    complete = part.spec if part.fail_on_data_loss else None
    batches = (_batch(part, stretch, schema) for stretch in ahead(pages(side, part.pieces, complete)))
    if part.topics is not None:
        batches = (of_topics(batch, part.topics) for batch in batches)
    return (batch.select(columns) for batch in limited(batches, part.limit))


def pages(
    side: SparkSide, pieces: Iterable[Piece[LogShard]], complete: LogSpec | None = None
) -> Iterator[Stretch]:
    """Read pieces one after the other, a page of about `source.SLICE_BYTES` at a time.

    complete: the log, of which no record may have expired before its page was read; None: any may.

    Raises:
        PositionExpired: one may have, since it was planned.
    """
    limit = FIRST_ROWS
    for piece in pieces:
        after, full = piece.after, True
        while full:
            page = patient(side.driver.ask)(ReadRecordPage(piece.place, after, piece.upto, limit))
            if complete is not None:  # after the read: it takes time, too
                check_remembered(complete, piece.place.partition, after, side.driver.clock.now_us())
            full = len(page) == limit
            if page:
                yield Stretch(piece.place.partition, page, 0, len(page))
                after = page.id_at(len(page) - 1)
                limit = next_limit(limit, len(page), len(page.data))


def check_remembered(spec: LogSpec, partition: int, position: int, now_us: int) -> None:
    """Check that a read from this position on finds all records, or found them if it has just ended.

    Raises:
        PositionExpired: some may be forgotten.
    """
    if spec.has_forgotten(position, now_us):
        raise PositionExpired(
            f"partition {partition} of log {spec.name!r}: records behind the checkpoint are older than the "
            "log's ttl and may be forgotten; go on with what is left by failOnDataLoss=false (--ignore-loss)"
        )


def _batch(part: LogPart, stretch: Stretch, schema: pa.Schema) -> pa.RecordBatch:
    found = Columns([stretch])
    count = len(found)
    columns = {
        "id": lambda: makers.log_ids(part.spec.partition, stretch.partition, found.ids),
        "log": lambda: makers.constant(part.spec.name, count, pa.string()),
        "partition": lambda: makers.constant(stretch.partition, count, pa.int32()),
        "time": found.times,
        "topic": found.topics,
        "key": found.keys,
        "body": found.bodies,
        "headers": found.headers,
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)
