"""Subscriptions in the in-memory twin: conditional batches apply wholly or not at all; members expire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cqueue.store import subscriptions as ops
from cqueue.store.memory_rows import Expiring, alter, create
from cqueue.store.operations import Operation


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
