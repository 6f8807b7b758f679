"""Logs in the memory twin: a delete beats its insert, and records go when their time is over."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cqueue.store import log_operations as ops
from cqueue.store.memory_rows import alter, alter_configured
from cqueue.store.operations import Operation
from cqueue.store.record_page import ReadRecordPage, RecordPage

_FOR_EVER_US = 1 << 62


@dataclass(slots=True)
class _Shard:
    """One partition: records by id with the µs at which each goes, and ids that were deleted."""

    rows: dict[int, tuple[ops.RecordRow, int]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)


class MemoryLogs:
    """The handlers of all log operations."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._shards: dict[ops.LogShard, _Shard] = {}
        self._registry: dict[tuple[str, int], dict[int, int]] = {}  # with the µs at which each goes
        self._logs: dict[str, ops.LogRow] = {}

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """By operation."""
        return {
            ops.AppendRecords: self._append,
            ops.DeleteRecords: self._delete,
            ops.ReadRecords: self._read,
            ReadRecordPage: lambda op: RecordPage.of(self._read(op)),
            ops.ReadRecordIds: self._read_ids,
            ops.PeekRecords: self._peek,
            ops.RegisterLogShard: self._register,
            ops.ReadLogShards: self._read_shards,
            ops.ListLogShards: lambda op: sorted({at for log, at in self._registry if log == op.log}),
            ops.DropRecord: lambda op: self._delete(ops.DeleteRecords(op.shard, (op.id,))),
            ops.DropRecords: lambda op: self._shards.pop(op.shard, None) and None,
            ops.UnregisterLogShard: self._unregister,
            ops.ReadLog: lambda op: self._logs.get(op.name),
            ops.ListLogs: lambda _: list(self._logs.values()),
            ops.CreateLog: lambda op: self._logs.setdefault(op.row.name, op.row) is op.row,
            ops.ChangeLog: lambda op: alter_configured(self._logs, op),
            ops.RemoveLog: lambda op: alter(self._logs, op.name, {"incarnation": op.incarnation}),
        }

    def _until_us(self, ttl_s: int) -> int:
        return self._clock_us() + ttl_s * 1_000_000 if ttl_s else _FOR_EVER_US

    def _append(self, op: ops.AppendRecords) -> None:
        shard = self._shards.setdefault(op.shard, _Shard())
        until_us = self._until_us(op.ttl_s)
        for row in op.rows:
            if row.id in shard.dead:
                continue
            if row.id not in shard.rows:
                insort(shard.order, row.id)
            shard.rows[row.id] = (row, until_us)

    def _delete(self, op: ops.DeleteRecords) -> None:
        shard = self._shards.setdefault(op.shard, _Shard())
        for id_ in op.ids:
            shard.dead.add(id_)
            shard.rows.pop(id_, None)

    def live(self, shard: ops.LogShard, after: int, upto: int) -> list[ops.RecordRow]:
        """The records with after < id <= upto, in order."""
        stored, now_us = self._shards.get(shard), self._clock_us()
        if stored is None:
            return []
        span = stored.order[bisect_right(stored.order, after) : bisect_right(stored.order, upto)]
        found = (stored.rows[id_] for id_ in span if id_ in stored.rows)
        return [row for row, until_us in found if now_us < until_us]

    def _read(self, op: ops.ReadRecords | ReadRecordPage) -> list[ops.RecordRow]:
        rows = self.live(op.shard, op.after, op.upto)
        return rows[::-1][: op.limit] if op.reverse else rows[: op.limit]

    def _read_ids(self, op: ops.ReadRecordIds) -> list[int]:
        return [row.id for row in self.live(op.shard, op.after, op.upto)[: op.limit]]

    def _peek(self, op: ops.PeekRecords) -> dict[int, int]:
        found: dict[int, int] = {}
        for partition in op.partitions:
            rows = self.live(ops.LogShard(op.log, partition, op.time_shard), op.after, op.upto)
            if rows:
                found[partition] = rows[0].id
        return found

    def _register(self, op: ops.RegisterLogShard) -> None:
        rows = self._registry.setdefault((op.shard.log, op.shard.time_shard), {})
        rows[op.shard.partition] = self._until_us(op.ttl_s)

    def _read_shards(self, op: ops.ReadLogShards) -> dict[int, frozenset[int]]:
        now_us = self._clock_us()
        found: dict[int, frozenset[int]] = {}
        for time_shard in op.time_shards:
            rows = self._registry.get((op.log, time_shard), {})
            partitions = frozenset(partition for partition, until_us in rows.items() if now_us < until_us)
            if partitions:
                found[time_shard] = partitions
        return found

    def _unregister(self, op: ops.UnregisterLogShard) -> None:
        self._registry.get((op.shard.log, op.shard.time_shard), {}).pop(op.shard.partition, None)
