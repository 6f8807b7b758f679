"""Logs and subscriptions in the in-memory twin: a delete beats its insert, and records expire.

Conditional batches of a subscription apply wholly or not at all, and its members expire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cqueue.store import log_operations as ops
from cqueue.store.memory_rows import Expiring, Rows, alter, alter_configured, create
from cqueue.store.operations import Operation
from cqueue.store.record_page import ReadRecordPage, RecordPage

_FOR_EVER_US = 1 << 62


class MemoryLogs:
    """Runs all log operations of the in-memory twin."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._shards: dict[ops.LogShard, Rows] = {}  # (time in µs at which the record expires, record)
        self._registry = Expiring[ops.LogShard, None](clock_us)
        self._logs: dict[str, ops.LogRow] = {}

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """Return, by operation type, the function that runs it."""
        return {
            ops.AppendRecords: self._append,
            ops.DeleteRecords: lambda op: self._of(op.shard).delete(op.ids),
            ReadRecordPage: self._read,
            ops.ReadRecordIds: lambda op: [
                row.id for row in self._live(op.shard, op.after, op.upto)[: op.limit]
            ],
            ops.PeekRecords: self._peek,
            ops.RegisterLogShard: lambda op: self._registry.put_longest(op.shard, None, op.ttl_s),
            ops.ReadLogShards: self._read_shards,
            ops.ListLogShards: lambda op: sorted(
                {at for log, _, at in self._registry.alive() if log == op.log}
            ),
            ops.CountRecords: self._count,
            ops.DropRecords: lambda op: self._of(op.shard).drop(op.at_us),
            ops.UnregisterLogShard: lambda op: self._registry.remove(op.shard),
            ops.ReadLog: lambda op: self._logs.get(op.name),
            ops.ListLogs: lambda _: list(self._logs.values()),
            ops.CreateLog: lambda op: create(self._logs, op.row.name, op.row),
            ops.ChangeLog: lambda op: alter_configured(self._logs, op),
            ops.RemoveLog: lambda op: alter(self._logs, op.name, {"incarnation": op.incarnation}),
        }

    def _of(self, shard: ops.LogShard) -> Rows:
        return self._shards.setdefault(shard, Rows())

    def _append(self, op: ops.AppendRecords) -> None:
        # As in Cassandra, which counts a ttl from the whole second of the write on
        until_us = (self._clock_us() // 1_000_000 + op.ttl_s) * 1_000_000 if op.ttl_s else _FOR_EVER_US
        for row in op.rows:
            self._of(op.shard).insert(row.id, (until_us, row))

    def _live(self, shard: ops.LogShard, after: int, upto: int) -> list[ops.RecordRow]:
        """Return the unexpired records with after < id <= upto, in order."""
        rows, now_us = self._shards.get(shard, Rows()), self._clock_us()
        found = (rows.live[id_] for id_ in rows.slice(after, upto, -1)[0])
        return [row for until_us, row in found if now_us < until_us]

    def _read(self, op: ReadRecordPage) -> RecordPage:
        rows = self._live(op.shard, op.after, op.upto)
        return RecordPage.of((rows[::-1] if op.reverse else rows)[: op.limit])

    def _peek(self, op: ops.PeekRecords) -> dict[int, int]:
        found: dict[int, int] = {}
        for partition in op.partitions:
            rows = self._live(ops.LogShard(op.log, partition, op.time_shard), op.after, op.upto)
            if rows:
                found[partition] = rows[0].id
        return found

    def _count(self, op: ops.CountRecords) -> ops.Span:
        rows = self._live(op.shard, op.after, op.upto)
        return ops.Span(len(rows), rows[0].id if rows else None)

    def _read_shards(self, op: ops.ReadLogShards) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}
        for log, partition, time_shard in self._registry.alive():
            if log == op.log and time_shard in op.time_shards:
                found[time_shard] = found.get(time_shard, frozenset()) | {partition}
        return found


class MemorySubscriptions:
    """Runs all subscription operations of the in-memory twin."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._definitions: dict[ops.SubscriptionKey, ops.DefinitionRow] = {}
        self._positions: dict[ops.SubscriptionKey, dict[int, ops.PositionRow]] = {}
        self._members = Expiring[tuple[ops.SubscriptionKey, str], ops.MemberRow](clock_us)

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """Return, by operation type, the function that runs it."""
        return {
            ops.ReadSubscription: self._read,
            ops.ListSubscriptions: lambda _: list(
                dict.fromkeys(
                    (*self._definitions, *self._positions, *(key for key, _ in self._members.alive()))
                )
            ),
            ops.DefineSubscription: lambda op: create(self._definitions, op.key, op.row),
            ops.ChangeDefinition: lambda op: alter(
                self._definitions,
                op.key,
                {"version": op.expect_version},
                **op.row._replace(version=(op.expect_version or 0) + 1)._asdict(),
            ),
            ops.RemoveSubscription: self._remove,
            ops.ChangePositions: self._change_positions,
            ops.BeatMember: lambda op: self._members.put((op.key, op.row.member), op.row, op.ttl_s),
            ops.RemoveMember: lambda op: self._members.remove((op.key, op.member)),
        }

    def _read(self, op: ops.ReadSubscription) -> ops.SubscriptionRows:
        members = tuple(row for (key, _), row in self._members.alive().items() if key == op.key)
        positions = dict(self._positions.get(op.key, {}))
        return ops.SubscriptionRows(self._definitions.get(op.key), positions, members)

    def _remove(self, op: ops.RemoveSubscription) -> bool:
        if not alter(self._definitions, op.key, {"version": op.expect_version}):
            return False
        self._positions.pop(op.key, None)
        for key, member in self._members.alive():
            if key == op.key:
                self._members.remove((key, member))
        return True

    def _change_positions(self, op: ops.ChangePositions) -> bool:
        positions = self._positions.get(op.key, {})
        definition = self._definitions.get(op.key)
        if op.makes_rows and (definition is None or definition.config != op.config):
            return False
        for expect_fence, row in op.changes:
            stored = positions.get(row.partition)
            if (stored.fence if stored else None) != expect_fence:
                return False
        self._positions[op.key] = positions | {row.partition: row for _, row in op.changes}
        return True
