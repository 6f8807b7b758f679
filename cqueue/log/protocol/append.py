"""Append to a log: ids in order, one write for each partition. `writing` says when an append counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.log.protocol.spec import LogSpec, partition_of
from cqueue.protocol import writing
from cqueue.protocol.spec import Proto
from cqueue.protocol.writing import Bits, Failure, Part, Writer, WriterState
from cqueue.store.log_operations import (
    AppendRecords,
    DeleteRecords,
    LogShard,
    RecordRow,
    RegisterLogShard,
)
from cqueue.store.operations import Operation

ROW_BYTES = 100
"""Bytes that a record is assumed to have beside its body: id, topic, and Cassandra's overhead."""


class Entry(NamedTuple):
    """A record to append, with its limits checked. partition: None for that of the key, or any."""

    topic: str
    body: bytes
    key: str | None = None
    partition: int | None = None
    headers: dict[str, str] | None = None


@dataclass(slots=True, kw_only=True)
class Write(Part):
    """Records of one Cassandra partition that are written together."""

    shard: LogShard
    rows: list[RecordRow] = field(default_factory=list)


def append(
    spec: LogSpec, state: WriterState, entries: Sequence[Entry], *, register_first: bool = False
) -> Proto[list[Write]]:
    """Store records; return writes that each tell the outcome of their records.

    register_first: store no record before its Cassandra partition is registered, at the cost of one more
        request for each partition. Side by side, a writer that dies may leave records that nobody finds until
        somebody else appends there.
    """
    writer = RegisteringFirst if register_first else Appending
    return (yield from writer(spec, state).write(entries))


class Appending(Writer[LogSpec, WriterState, Entry, Write]):
    """The writer of records."""

    rows_in_flight = 4000
    copy_may = "readers may have passed it"

    def parts_of(self, entries: Sequence[Entry], now_us: int, bits: Bits) -> list[Write]:
        """Group records into writes by partition; those without one go together to the next partition."""
        open_: dict[tuple[int | None, int], Write] = {}
        done: list[Write] = []
        for place, entry in enumerate(entries):
            ticks = self.state.next_ticks(now_us)
            partition = self._partition(entry)
            group = (partition, ticks // 10 // (self.spec.width_ms * 1000))
            if group not in open_:
                open_[group] = Write(shard=self.spec.shard_at(self._or_next(partition), ticks // 10))
            write = open_[group]
            id_ = ids.from_ticks(ticks, bits.at(place))
            write.indexes.append(place)
            write.rows.append(RecordRow(id_, entry.topic, entry.key, entry.headers, entry.body))
            write.size += len(entry.body) + ROW_BYTES
            if write.is_full:
                done.append(open_.pop(group))
        return done + list(open_.values())

    def _partition(self, entry: Entry) -> int | None:
        if entry.partition is None and entry.key is not None:
            return partition_of(entry.key, self.spec.partitions)
        return entry.partition

    def _or_next(self, partition: int | None) -> int:
        if partition is not None:
            return partition
        self.state.turn += 1
        return self.state.turn % self.spec.partitions

    def insert(self, part: Write) -> Operation[Any]:
        """Return the insert of the write's records."""
        return AppendRecords(part.shard, tuple(part.rows), self.spec.ttl_s)

    def places(self, part: Write) -> set[tuple[LogShard, int]]:
        """Return the write's Cassandra partition, and for how long it is registered.

        After the log's ttl became longer it is registered again, or its row would expire before its records.
        """
        return {(part.shard, self.spec.registry_ttl_s)}

    def registrations(self, new: set[Any]) -> list[Operation[Any]]:
        """Return the writes of these partitions to the registry."""
        return [RegisterLogShard(shard, ttl_s) for shard, ttl_s in new]

    def judge(self, part: Write, now_us: int) -> tuple[list[Write], Write | None]:
        """Write a part with one late record again as a whole, so that the records keep their order."""
        if writing.in_time(self.spec, part.rows[0].id, now_us):  # the first id is the earliest
            return [part], None
        return [], part

    def settled(self, done: list[Write], late: list[Write]) -> tuple[list[Write], list[Write]]:
        """Write what stands behind a late part of its partition again as well, for the same reason.

        If that fails, its outcome is unknown although a first copy is stored and read.
        """
        again, kept = sorted(late, key=_first_id), list[Write]()
        first = {part.shard.partition: _first_id(part) for part in reversed(again)}
        for part in done:
            own = _first_id(part)
            is_behind = part.error is None and own > first.get(part.shard.partition, own)
            (again if is_behind else kept).append(part)
        return kept, sorted(again, key=_first_id)

    def successor(self, late: Write, time_us: int, now_us: int) -> Write:
        """Return an empty write to the same partition of the log."""
        return Write(shard=self.spec.shard_at(late.shard.partition, time_us))

    def delete(self, late: Write) -> Proto[None]:
        """Delete the write's records."""
        yield from DeleteRecords(late.shard, tuple(row.id for row in late.rows))


def _first_id(part: Write) -> int:
    return int(part.rows[0].id)


class RegisteringFirst(Appending):
    """The writer of records that can be found as soon as they are stored, also if it dies in between."""

    def before(self, parts: list[Write]) -> Proto[Failure | None]:
        """Register the Cassandra partitions. If this fails, no record has been written."""
        failed = yield from self.register(parts)
        return failed and writing.not_written(
            "a partition could not be registered, so its records were not written", failed
        )
