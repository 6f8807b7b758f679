"""Subscriptions in the memory twin: conditional batches apply wholly or not at all; members expire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cqueue.store.log_operations import LogShard, RecordRow
from cqueue.store.operations import Operation
from cqueue.store.subscriptions import (
    BeatMember,
    ChangeDefinition,
    ChangePositions,
    CountRecords,
    DefineSubscription,
    DefinitionRow,
    ListSubscriptions,
    MemberRow,
    PositionRow,
    ReadSubscription,
    RemoveMember,
    RemoveSubscription,
    Span,
    SubscriptionKey,
    SubscriptionRows,
)

LiveRecords = Callable[[LogShard, int, int], list[RecordRow]]


@dataclass(slots=True)
class _Partition:
    """One subscription; members with the µs at which each goes."""

    definition: DefinitionRow | None = None
    positions: dict[int, PositionRow] = field(default_factory=dict)
    members: dict[str, tuple[MemberRow, int]] = field(default_factory=dict)


class MemorySubscriptions:
    """The handlers of all operations on subscriptions. live: the records of a log's partition."""

    def __init__(self, clock_us: Callable[[], int], live: LiveRecords) -> None:
        self._clock_us = clock_us
        self._live = live
        self._partitions: dict[SubscriptionKey, _Partition] = {}

    def handlers(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        """By operation."""
        return {
            ReadSubscription: self._read,
            ListSubscriptions: lambda _: [key for key in self._partitions if self._holds_rows(key)],
            DefineSubscription: self._define,
            ChangeDefinition: self._change_definition,
            RemoveSubscription: self._remove,
            ChangePositions: self._change_positions,
            BeatMember: self._beat,
            RemoveMember: lambda op: self._of(op.key).members.pop(op.member, None) and None,
            CountRecords: self._count,
        }

    def _of(self, key: SubscriptionKey) -> _Partition:
        return self._partitions.setdefault(key, _Partition())

    def _holds_rows(self, key: SubscriptionKey) -> bool:
        return self._read(ReadSubscription(key)) != SubscriptionRows()

    def _read(self, op: ReadSubscription) -> SubscriptionRows:
        stored, now_us = self._partitions.get(op.key, _Partition()), self._clock_us()
        members = tuple(row for _, (row, until_us) in sorted(stored.members.items()) if now_us < until_us)
        return SubscriptionRows(stored.definition, dict(stored.positions), members)

    def _define(self, op: DefineSubscription) -> bool:
        stored = self._of(op.key)
        if stored.definition is not None:
            return False
        stored.definition = op.row
        return True

    def _change_definition(self, op: ChangeDefinition) -> bool:
        stored = self._of(op.key)
        if stored.definition is None or stored.definition.version != op.expect_version:
            return False
        stored.definition = op.row._replace(version=stored.definition.version + 1)
        return True

    def _remove(self, op: RemoveSubscription) -> bool:
        stored = self._partitions.get(op.key)
        if stored is None or stored.definition is None or stored.definition.version != op.expect_version:
            return False
        del self._partitions[op.key]
        return True

    def _change_positions(self, op: ChangePositions) -> bool:
        positions = self._of(op.key).positions
        for expect_fence, row in op.changes:
            stored = positions.get(row.partition)
            if (stored.fence if stored else None) != expect_fence:
                return False
        positions.update({row.partition: row for _, row in op.changes})
        return True

    def _beat(self, op: BeatMember) -> None:
        self._of(op.key).members[op.row.member] = (op.row, self._clock_us() + op.ttl_s * 1_000_000)

    def _count(self, op: CountRecords) -> Span:
        rows = self._live(op.shard, op.after, op.upto)
        return Span(len(rows), rows[0].id if rows else None)
