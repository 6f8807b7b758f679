"""Streaming from a log: offsets are positions in its partitions, never beyond what is stable.

One object of this class lives with the query and plans its batches; rows are read by others, in other
processes. What a batch holds follows from its two offsets alone, so that one that is read again after a crash
has the same tasks with the same rows in the same order: sinks count on that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cqueue import ids
from cqueue.errors import PositionExpired
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.shards import ShardMap
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.records import LogId
from cqueue.spark import records
from cqueue.spark.brief import brief
from cqueue.spark.options import ReadOptions, check_stream, read_options
from cqueue.spark.session import patient, session
from cqueue.spark.views import LOG, columns_of

IDLE_US = 600_000_000
"""µs without records after which offsets move on, half the log's ttl at most: the log must not forget the
position."""
EARLIEST_MARGIN_US = 3_600_000_000
"""µs between the oldest record and where `earliest` begins, a tenth of the log's ttl at most. Within this
time a repeat of the first batch has the same rows, whose numbers are what sinks know them by."""

Offsets = dict[str, Any]
"""The id up to which all is read, by partition; and `BEGINS` or `BEGAN`."""
BEGINS: Final = "begins"
"""Key of the offsets with which a query begins. Spark does not store them: a restart asks for them again."""
BEGAN: Final = "began"
"""Key of the offsets at which a first batch ends: where it began, so that a repeat begins there, too."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log from one stable moment to the next."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given, self._schema = options, schema
        self._columns = tuple(schema.fieldNames())
        self._known = ShardMap()
        self._until: int | None = None  # under Trigger.AvailableNow: where it ends

    def __getstate__(self) -> dict[str, object]:
        """Pickle what reading needs; the rest belongs to the planner."""
        return {"_options": self._options, "_columns": self._columns}

    # ── planning ──

    @cached_property
    def _options(self) -> ReadOptions:
        # Not sooner: of what making a reader raises, Spark 4.3 reports a bug of its own instead.
        options = read_options(self._given)
        check_stream(options)
        columns_of(LOG, self._schema, options.columns)
        return options

    @property
    def _spec(self) -> LogSpec:
        return session(self._options.settings).logs.entry(self._options.name).spec

    def _now_us(self) -> int:
        return session(self._options.settings).driver.clock.now_us()

    @brief
    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name, as those below
        """Return where a new query begins: with the log, now, or at a time.

        Raises:
            LogNotFound: there is none of that name.
            ConfigError: it is a queue, or an option or the schema is wrong.
            NotDone: Cassandra does not answer.
        """
        spec, options = self._spec, self._options
        since_us = options.since_us
        if options.from_latest:
            position = spec.horizon(self._now_us())
        elif since_us is None or since_us < spec.created_ms * 1000 - spec.skew_us:
            # The log had no record before that, so what it has forgotten by now is no loss.
            lenient = not options.fail_on_data_loss
            position = spec.beginning(self._now_us(), EARLIEST_MARGIN_US, lenient=lenient)
        else:
            position = ids.lowest_at(since_us) - 1
        return self._offsets(spec, dict.fromkeys(range(spec.partitions), position)) | {BEGINS: True}

    @brief
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return `maxRowsPerBatch`, or no limit."""
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @brief
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read what was acknowledged before this, and end: so wait until that is stable."""
        spec = self._spec
        self._until = ids.highest_at(self._now_us() + spec.skew_us)  # an appender's clock may be ε ahead
        while spec.horizon(self._now_us()) <= self._until:
            time.sleep(0.05)

    @brief
    @patient
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the next batch ends; `start` if there is nothing new.

        Raises:
            PositionExpired: as `partitions`.
            NotDone: Cassandra does not answer.
        """
        _check_ours(start)
        spec, now_us = self._spec, self._now_us()
        positions = self._positions(spec, start, now_us)
        horizon = spec.horizon(now_us)
        end = horizon if self._until is None else min(horizon, self._until)
        (most,) = astuple(limit) if isinstance(limit, ReadMaxRows) else (None,)
        bound = self._bound(spec, positions, end, now_us, most)
        idle_us = min(IDLE_US, spec.shortest_ttl_s(now_us) * 500_000 or IDLE_US)
        if bound is None and ids.time_us(end) - ids.time_us(min(positions.values())) < idle_us:
            return start
        if bound is None and all(each >= end for each in positions.values()):
            return start
        bound = end if bound is None else bound
        found = self._offsets(spec, {each: max(at, bound) for each, at in positions.items()})
        return found | {BEGAN: start} if BEGINS in start else found

    def _bound(
        self, spec: LogSpec, positions: dict[int, int], end: int, now_us: int, most: int | None
    ) -> int | None:
        """Return the id with which a batch is full, or the end; None if no record stands before the end."""
        driver = session(self._options.settings).driver
        merge, count = Merge(spec, positions, self._known, ids_only=True), 0
        while (more := driver.run(merge.more(spec, end, now_us))) is not None:
            found = [id_ for stretch in more for id_ in stretch.ids()]
            if found and most is None:
                return end
            if most is not None and count + len(found) >= most:
                return sorted(found)[most - count - 1]
            count += len(found)
        return end if count else None

    @brief
    @patient
    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Return what is stable now, for the query's progress."""
        spec = self._spec
        return self._offsets(spec, dict.fromkeys(range(spec.partitions), spec.horizon(self._now_us())))

    @brief
    @patient
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Plan one task for each partition of the log, whether it holds records or not.

        Raises:
            PositionExpired: records behind `start` may be forgotten, and `failOnDataLoss` is not "false"; or
                the offsets are of another kind of source.
            NotDone: Cassandra does not answer.
        """
        _check_ours(start)
        _check_ours(end)
        spec, side = self._spec, session(self._options.settings)
        if BEGINS in start:
            start = end.get(BEGAN, start)
        first = self._positions(spec, start, side.driver.clock.now_us())
        last = {int(each): LogId(end[each]).locate()[2] for each in end.keys() - {BEGINS, BEGAN}}
        shards = records.existing(
            side, spec, min(map(ids.time_us, first.values())), max(map(ids.time_us, last.values()))
        )
        return [
            records.LogPart(
                spec,
                tuple(
                    piece
                    for shard in shards
                    if shard.partition == partition
                    for piece in records.within(spec, shard, first[partition], upto)
                ),
                self._options.topics,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
            for partition, upto in sorted(last.items())
            if partition in first and start.get(str(partition)) != end[str(partition)]
        ]

    def _positions(self, spec: LogSpec, start: Offsets, now_us: int) -> dict[int, int]:
        """Return where each partition is read from: a new one from where the others stand, less some seconds.

        Raises:
            PositionExpired: as `partitions`.
        """
        partitions = range(spec.partitions)
        texts = {partition: start[str(partition)] for partition in partitions if str(partition) in start}
        known = {partition: self._position(spec, text) for partition, text in texts.items()}
        found, is_strict = {}, self._options.fail_on_data_loss
        for partition in partitions:
            position = known.get(partition)
            if position is None and is_strict:
                position = spec.beginning_beside(partition, known.values(), now_us)
            elif position is None:
                position = spec.earliest(now_us)
            if is_strict:
                records.check_remembered(spec, partition, position, now_us)
            found[partition] = spec.going_on(position, now_us)
        return found

    def _position(self, spec: LogSpec, text: str) -> int:
        log, _, id_ = LogId(text).locate()
        if log == spec.partition:
            return id_
        if self._options.fail_on_data_loss:
            name = log.partition("@")[0]
            of = f"log {name!r}, not {spec.name!r}" if name != spec.name else f"a log {name!r} deleted since"
            raise PositionExpired(
                f"the checkpoint is of {of}; take another checkpoint, or read this log from its beginning "
                "with failOnDataLoss=false (--ignore-loss)"
            )
        return ids.START

    def _offsets(self, spec: LogSpec, positions: dict[int, int]) -> Offsets:
        return {str(each): LogId.of(spec.partition, each, at) for each, at in positions.items()}

    # ── reading ──

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a task, without anything that planning has learned.

        Raises:
            NotDone: Cassandra does not answer; Spark tries the task again.
            PositionExpired: records may have expired since the batch was planned, as `partitions`.
        """
        if not isinstance(partition, records.LogPart):
            return iter(())
        return records.read(patient(session)(self._options.settings), partition, self._columns)

    def commit(self, end: Offsets) -> None:
        """Do nothing: offsets are the query's, and a log forgets by time alone.

        So it does no harm that Spark leaves out the last commit under Trigger.AvailableNow.
        """


def _check_ours(offsets: Any) -> None:
    if not isinstance(offsets, dict) or "0" not in offsets:  # every log has a partition 0
        raise PositionExpired(
            f"the checkpoint is of another source, whose offset is {offsets!r}; take another checkpoint"
        )
