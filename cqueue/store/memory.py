"""The in-memory twin: the storage seam with Cassandra's semantics, in one process.

The twin keeps the semantics that correctness depends on. Write timestamps decide, and a delete wins a tie.
Tombstones stay, and reads cross them. A conditional batch applies wholly or not at all. The marker of a
retired wide row stays for an hour. The twin has one replica and no faults; the simulator adds both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NoReturn

from cqueue.errors import BadInput
from cqueue.store import control
from cqueue.store import operations as ops
from cqueue.store.memory_keys import MemoryKeys
from cqueue.store.memory_log import MemoryLogs, MemorySubscriptions
from cqueue.store.memory_rows import Expiring, Rows, alter, alter_configured, create
from cqueue.store.quarantine import Quarantine

DEPLOYMENT = ops.DeploymentRow(
    format=ops.FORMAT,
    serial_consistency="local_serial",
    settle_ms=2000,
    skew_ms=500,
    gc_grace_s=86_400,
    changes=0,
)


def _refuse_cql(_: ops.ShowInsert) -> NoReturn:
    raise BadInput("memory:// has no CQL, and so no statement of a send")


@dataclass(slots=True)
class _Partition:
    """One wide row with its bodies."""

    messages: dict[int, Rows] = field(default_factory=dict)  # by priority
    bodies: Rows = field(default_factory=Rows)
    floor_us: int = 0  # newest partition delete of messages
    lock: ops.LockRow | None = None
    lock_expires_us: int | None = None
    slots: dict[tuple[int, int], ops.SlotRow] = field(default_factory=dict)
    cursors: dict[int, ops.CursorRow] = field(default_factory=dict)

    def of(self, priority: int) -> Rows:
        """Return the messages of one priority."""
        return self.messages.setdefault(priority, Rows(floor_us=self.floor_us))

    def has_messages(self) -> bool:
        """Return whether a message of any priority is live."""
        return any(rows.live for rows in self.messages.values())

    def retire(self, at_us: int) -> None:
        """Delete everything but the lock and the bodies."""
        self.floor_us = at_us
        self.slots.clear()
        self.cursors.clear()
        for rows in self.messages.values():
            rows.drop(at_us)


class MemoryStore:
    """A `Store` whose Cassandra is a few dictionaries."""

    def __init__(self, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.quarantine = Quarantine()
        self._clock_us = clock_us
        self._ballot_us = 0
        self._mutex = RLock()
        self._partitions: dict[ops.WideRow, _Partition] = {}
        self._shards: dict[tuple[str, int], dict[tuple[int, int], frozenset[int] | None]] = {}
        self._queues: dict[str, ops.QueueRow] = {}
        self._deployment = DEPLOYMENT
        self._schedules: dict[tuple[str, str], control.ScheduleRow] = {}
        self._workers = Expiring[str, control.WorkerRow](clock_us)
        self._listeners = Expiring[str, control.ListenerRow](clock_us)
        self._results = Expiring[str, control.ResultRow](clock_us)
        self._handlers: dict[type[ops.Operation[Any]], Callable[[Any], Any]] = {
            ops.ReadHead: self._read_head,
            ops.ReadSlice: self._read_slice,
            ops.ReadIds: self._read_ids,
            ops.HasMessages: lambda op: self._partition(op.wide_row).has_messages(),
            ops.ReadMessages: self._read_messages,
            ops.ReadBodies: self._read_bodies,
            ops.ReadShards: self._read_shards,
            ops.InsertMessages: self._insert_messages,
            ops.ShowInsert: _refuse_cql,
            ops.DeleteMessages: self._delete_messages,
            ops.InsertBodies: self._insert_bodies,
            ops.DeleteBodies: lambda op: self._partition(op.wide_row).bodies.delete(op.ids),
            ops.DropBodies: lambda op: self._partition(op.wide_row).bodies.drop(op.at_us),
            ops.DropSlot: lambda _: False,
            ops.DumpRow: lambda _: None,
            ops.RegisterShard: self._register,
            ops.UnregisterShard: lambda op: self._registry(op).update({(op.time_shard, op.shard): None}),
            ops.Mutate: self._mutate,
            ops.ReadQueue: lambda op: self._queues.get(op.name),
            ops.ListQueues: lambda _: list(self._queues.values()),
            ops.CreateQueue: lambda op: create(self._queues, op.row.name, op.row),
            ops.ChangeQueue: lambda op: alter_configured(self._queues, op),
            ops.RemoveQueue: lambda op: alter(self._queues, op.name, {"incarnation": op.incarnation}),
            ops.AdvanceEpoch: self._advance_epoch,
            ops.ReadDeployment: lambda _: self._deployment,
            ops.BumpDeployment: self._bump,
            **self._control(),
            **MemoryKeys(clock_us).handlers(),
            **MemoryLogs(clock_us).handlers(),
            **MemorySubscriptions(clock_us).handlers(),
        }

    def execute(self, operation: ops.Operation[Any]) -> Any:
        """Run one operation. Never fails."""
        with self._mutex:
            return self._handlers[type(operation)](operation)

    def together(self, operations: tuple[ops.Operation[Any], ...]) -> list[Any]:
        """Run several, one after the other."""
        return [self.execute(operation) for operation in operations]

    def sample_time_us(self) -> list[tuple[int, int]]:
        """Return this store's only clock, with a round trip of 0."""
        return [(self._clock_us(), 0)]

    def close(self) -> None:
        """Do nothing: the data lives as long as the store object."""

    # ── wide rows ──

    def _partition(self, wide_row: ops.WideRow) -> _Partition:
        partition = self._partitions.get(wide_row)
        if partition is None:
            partition = self._partitions[wide_row] = _Partition()
        if partition.lock_expires_us is not None and self._clock_us() >= partition.lock_expires_us:
            partition.lock = partition.lock_expires_us = None
        return partition

    def _read_head(self, op: ops.ReadHead) -> ops.Head:
        partition = self._partition(op.wide_row)
        return ops.Head(partition.lock, dict(partition.cursors), tuple(partition.slots.values()))

    def _read_slice(self, op: ops.ReadSlice) -> ops.Slice:
        rows = self._partition(op.wide_row).of(op.priority)
        found, crossed = rows.slice(op.after, op.upto, op.limit)
        return ops.Slice([rows.live[id_] for id_ in found], crossed)

    def _read_ids(self, op: ops.ReadIds) -> ops.IdSlice:
        return ops.IdSlice(*self._partition(op.wide_row).of(op.priority).slice(op.after, op.upto, op.limit))

    def _read_messages(self, op: ops.ReadMessages) -> list[ops.MessageRow]:
        live = self._partition(op.wide_row).of(op.priority).live
        rows = [live[id_] for id_ in sorted(set(op.ids)) if id_ in live]
        return rows[: op.limit] if op.limit else rows

    def _insert_messages(self, op: ops.InsertMessages) -> None:
        partition = self._partition(op.wide_row)
        for row in op.rows:
            partition.of(row.priority).insert(row.id, row)

    def _delete_messages(self, op: ops.DeleteMessages) -> None:
        self._partition(op.wide_row).of(op.priority).delete(op.ids)

    def _read_bodies(self, op: ops.ReadBodies) -> dict[int, bytes]:
        live = self._partition(op.wide_row).bodies.live
        return {id_: live[id_] for id_ in op.ids if id_ in live}

    def _insert_bodies(self, op: ops.InsertBodies) -> None:
        for id_, body in op.bodies:
            self._partition(op.wide_row).bodies.insert(id_, body)

    def _mutate(self, op: ops.Mutate) -> bool:
        partition = self._partition(op.wide_row)
        if not self._conditions_hold(partition, op):
            return False
        self._ballot_us = max(self._ballot_us + 1, self._clock_us())
        if op.retire:
            partition.retire(self._ballot_us - 1)
        if op.lock is not None:
            partition.lock = op.lock_beside(partition.lock)
            partition.lock_expires_us = self._ballot_us + ops.RETIRED_TTL_S * 1_000_000 if op.retire else None
            partition.cursors.update((row.priority, row) for row in op.cursors)
        for change in op.slots:
            partition.slots[change.row.place] = change.row
        return True

    @staticmethod
    def _conditions_hold(partition: _Partition, op: ops.Mutate) -> bool:
        if not op.may_lock(partition.lock):
            return False
        for expect_rev, row in op.slots:
            stored = partition.slots.get(row.place)
            if (stored.rev if stored else None) != expect_rev:
                return False
        return True

    # ── registry ──

    def _registry(self, op: Any) -> dict[tuple[int, int], frozenset[int] | None]:
        return self._shards.setdefault((op.queue, op.epoch), {})

    def _read_shards(self, op: ops.ReadShards) -> list[ops.ShardRow]:
        return [
            ops.ShardRow(time_shard, shard, priorities)
            for (time_shard, shard), priorities in sorted(self._shards.get((op.queue, op.epoch), {}).items())
            if priorities is not None and time_shard >= op.from_time_shard
        ]

    def _register(self, op: ops.RegisterShard) -> None:
        rows = self._registry(op)
        known = rows.get((op.time_shard, op.shard), frozenset())
        if known is not None:  # None: deleted, one µs later than any insert
            rows[op.time_shard, op.shard] = known | op.priorities

    # ── queues and deployment ──

    def _advance_epoch(self, op: ops.AdvanceEpoch) -> bool:
        name = "oldest_open_epoch" if op.open else "oldest_epoch"
        expect = {"incarnation": op.incarnation, name: op.expect}
        return alter(self._queues, op.name, expect, **{name: op.to})

    def _bump(self, op: ops.BumpDeployment) -> bool:
        if self._deployment.changes != op.expect:
            return False
        self._deployment = self._deployment._replace(changes=op.expect + 1)
        return True

    # ── schedules and workers ──

    def _control(self) -> dict[type[ops.Operation[Any]], Callable[[Any], Any]]:
        return {
            control.ReadSchedule: lambda op: self._schedules.get((op.queue, op.key)),
            control.ListSchedules: lambda op: [
                row for key, row in sorted(self._schedules.items()) if key[0] == op.queue
            ],
            control.CreateSchedule: lambda op: create(self._schedules, op.row[:2], op.row),
            control.ChangeSchedule: lambda op: alter(
                self._schedules,
                (op.row.queue, op.row.key),
                {"version": op.expect_version},
                **op.row._replace(version=(op.expect_version or 0) + 1)._asdict(),
            ),
            control.RemoveSchedule: lambda op: alter(
                self._schedules, (op.queue, op.key), {"version": op.expect_version}
            ),
            control.Heartbeat: lambda op: self._workers.put(op.row.worker, op.row, op.ttl_s),
            control.ReadWorkers: lambda _: list(self._workers.alive().values()),
            control.RemoveWorker: lambda op: self._workers.remove(op.worker),
            control.Listen: lambda op: self._listeners.put(op.row.listener, op.row, op.ttl_s),
            control.ReadDigests: lambda _: {
                row.listener: row.digest for row in self._listeners.alive().values()
            },
            control.ReadListeners: lambda op: [
                row for row in self._listeners.alive().values() if row.listener in op.listeners
            ],
            control.KeepResult: self._keep_result,
            control.ReadResult: lambda op: self._results.get(op.message),
        }

    def _keep_result(self, op: control.KeepResult) -> None:
        before = self._results.get(op.row.message)
        if before is None or before.at <= op.row.at:
            self._results.put(op.row.message, op.row, op.ttl_s)
