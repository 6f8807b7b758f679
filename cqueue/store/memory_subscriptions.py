"""Subscriptions in the memory twin: conditional batches apply wholly or not at all; members expire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cqueue.store import subscriptions as ops
from cqueue.store.log_operations import LogShard, RecordRow
from cqueue.store.memory_rows import alive
from cqueue.store.operations import Operation

LiveRecords = Callable[[LogShard, int, int], list[RecordRow]]


@dataclass(slots=True)
class _Partition:
    """One subscription; members with the µs at which each goes."""

    definition: ops.DefinitionRow | None = None
    positions: dict[int, ops.PositionRow] = field(default_factory=dict)
    members: dict[str, tuple[ops.MemberRow, int]] = field(default_factory=dict)


class MemorySubscriptions:
    """The handlers of all operations on subscriptions. live: the records of a log's partition."""

    def __init__(self, clock_us: Callable[[], int], live: LiveRecords) -> None:
        self._clock_us = clock_us
        self._live = live
        self._partitions: dict[ops.SubscriptionKey, _Partition] = {}

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """By operation."""
        return {
            ops.ReadSubscription: self._read,
            ops.ListSubscriptions: lambda _: [key for key in self._partitions if self._holds_rows(key)],
            ops.DefineSubscription: self._define,
            ops.ChangeDefinition: self._change_definition,
            ops.RemoveSubscription: self._remove,
            ops.ChangePositions: self._change_positions,
            ops.BeatMember: self._beat,
            ops.RemoveMember: lambda op: self._of(op.key).members.pop(op.member, None) and None,
            ops.CountRecords: self._count,
        }

    def _of(self, key: ops.SubscriptionKey) -> _Partition:
        return self._partitions.setdefault(key, _Partition())

    def _holds_rows(self, key: ops.SubscriptionKey) -> bool:
        return self._read(ops.ReadSubscription(key)) != ops.SubscriptionRows()

    def _read(self, op: ops.ReadSubscription) -> ops.SubscriptionRows:
        stored, now_us = self._partitions.get(op.key, _Partition()), self._clock_us()
        members = tuple(alive(stored.members, now_us))
        return ops.SubscriptionRows(stored.definition, dict(stored.positions), members)

    def _define(self, op: ops.DefineSubscription) -> bool:
        stored = self._of(op.key)
        if stored.definition is not None:
            return False
        stored.definition = op.row
        return True

    def _change_definition(self, op: ops.ChangeDefinition) -> bool:
        stored = self._of(op.key)
        if stored.definition is None or stored.definition.version != op.expect_version:
            return False
        stored.definition = op.row._replace(version=stored.definition.version + 1)
        return True

    def _remove(self, op: ops.RemoveSubscription) -> bool:
        stored = self._partitions.get(op.key)
        if stored is None or stored.definition is None or stored.definition.version != op.expect_version:
            return False
        del self._partitions[op.key]
        return True

    def _change_positions(self, op: ops.ChangePositions) -> bool:
        positions = self._of(op.key).positions
        for expect_fence, row in op.changes:
            stored = positions.get(row.partition)
            if (stored.fence if stored else None) != expect_fence:
                return False
        positions.update({row.partition: row for _, row in op.changes})
        return True

    def _beat(self, op: ops.BeatMember) -> None:
        self._of(op.key).members[op.row.member] = (op.row, self._clock_us() + op.ttl_s * 1_000_000)

    def _count(self, op: ops.CountRecords) -> ops.Span:
        rows = self._live(op.shard, op.after, op.upto)
        return ops.Span(len(rows), rows[0].id if rows else None)
