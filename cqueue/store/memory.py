"""The memory twin: the storage seam with Cassandra's semantics, in one process.

It keeps what correctness hangs on: write timestamps decide (a delete wins a tie), tombstones stay
and are crossed by reads, a conditional batch applies wholly or not at all, a retired wide row keeps
its marker for a while. It has one replica and no faults; the simulator adds those around it.
"""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from cqueue import ids
from cqueue.store import control
from cqueue.store import operations as ops
from cqueue.store.memory_log import MemoryLogs
from cqueue.store.memory_rows import alive, alter, alter_configured
from cqueue.store.memory_subscriptions import MemorySubscriptions
from cqueue.store.message_page import MessagePage, ReadMessagePage
from cqueue.store.quarantine import Quarantine

TOMBSTONE_WARN = 1000
"""As Cassandra: a read that crosses no more than this says nothing about it."""

DEPLOYMENT = ops.DeploymentRow(
    format=ops.FORMAT,
    serial_consistency="local_serial",
    settle_ms=2000,
    skew_ms=500,
    gc_grace_s=86_400,
    changes=0,
)


def _merge(old: ops.MessageRow, new: ops.MessageRow) -> ops.MessageRow:
    """Two writes of one row at one timestamp: in each column a value beats none, the larger the smaller."""

    def larger(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        order = (lambda value: sorted(value.items())) if isinstance(a, dict) else (lambda value: value)
        return max(a, b, key=order)

    return ops.MessageRow._make(larger(a, b) for a, b in zip(old, new, strict=True))


@dataclass(slots=True)
class _Rows:
    """Rows written by plain mutations: each has one insert time, derived from its id."""

    live: dict[int, Any] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)  # id → time of its delete, µs
    order: list[int] = field(default_factory=list)  # all ids ever seen, sorted

    def insert(self, id_: int, row: Any, floor_us: int) -> None:
        at_us = ids.time_us(id_)
        if at_us <= floor_us or at_us <= self.dead.get(id_, at_us - 1):
            return
        if id_ in self.live:
            old = self.live[id_]
            row = _merge(old, row) if isinstance(row, ops.MessageRow) else max(old, row)
        elif id_ not in self.dead:
            insort(self.order, id_)
        self.live[id_] = row

    def delete(self, id_: int, at_us: int) -> None:
        if id_ not in self.live and id_ not in self.dead:
            insort(self.order, id_)
        self.dead[id_] = max(at_us, self.dead.get(id_, 0))
        if id_ in self.live and ids.time_us(id_) <= at_us:
            del self.live[id_]

    def drop(self, at_us: int) -> None:
        """A partition delete at `at_us`; only rows with a later timestamp stay."""
        self.live = {id_: row for id_, row in self.live.items() if ids.time_us(id_) > at_us}
        self.dead = {id_: us for id_, us in self.dead.items() if us > at_us}
        self.order = sorted({*self.live, *self.dead})

    def slice(self, after: int, upto: int, limit: int) -> tuple[list[int], int]:
        """Live ids with after < id <= upto, and the number of tombstones crossed on the way."""
        found: list[int] = []
        dead: list[int] = []
        for index in range(bisect_right(self.order, after), len(self.order)):
            id_ = self.order[index]
            if id_ > upto or len(found) == limit:
                break
            if id_ in self.live:
                found.append(id_)
            else:
                dead.append(id_)
        crossed = ids.rows_of(dead) if len(dead) > TOMBSTONE_WARN else 0
        return found, crossed if crossed > TOMBSTONE_WARN else 0


@dataclass(slots=True)
class _Partition:
    """One wide row with its bodies."""

    messages: dict[int, _Rows] = field(default_factory=dict)  # by priority
    bodies: _Rows = field(default_factory=_Rows)
    floor_us: int = 0  # newest partition delete of messages
    bodies_floor_us: int = 0
    lock: ops.LockRow | None = None
    lock_expires_us: int | None = None
    slots: dict[tuple[int, int], ops.SlotRow] = field(default_factory=dict)
    cursors: dict[int, ops.CursorRow] = field(default_factory=dict)

    def of(self, priority: int) -> _Rows:
        return self.messages.setdefault(priority, _Rows())


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
        self._workers: dict[str, tuple[control.WorkerRow, int]] = {}  # with the µs at which it goes
        self._listeners: dict[str, tuple[control.ListenerRow, int]] = {}  # the same
        logs = MemoryLogs(self._clock_us)
        self._handlers: dict[type[ops.Operation[Any]], Callable[[Any], Any]] = {
            ops.ReadHead: self._read_head,
            ops.ReadSlice: self._read_slice,
            ReadMessagePage: lambda op: MessagePage.of(*self._read_slice(op)[:2]),
            ops.ReadIds: self._read_ids,
            ops.ReadMessages: self._read_messages,
            ops.ReadBodies: self._read_bodies,
            ops.ReadShards: self._read_shards,
            ops.DropShard: lambda op: self._registry(op).pop((op.time_shard, op.shard), None) and None,
            ops.InsertMessages: self._insert_messages,
            ops.DeleteMessages: self._delete_messages,
            ops.DropMessages: self._delete_messages,
            ops.InsertBodies: self._insert_bodies,
            ops.DeleteBodies: self._delete_bodies,
            ops.DropBodies: self._drop_bodies,
            ops.DropSlot: lambda _: False,
            ops.DumpRow: lambda _: None,
            ops.RegisterShard: self._register,
            ops.UnregisterShard: lambda op: self._registry(op).update({(op.time_shard, op.shard): None}),
            ops.Mutate: self._mutate,
            ops.ReadQueue: lambda op: self._queues.get(op.name),
            ops.ListQueues: lambda _: list(self._queues.values()),
            ops.CreateQueue: lambda op: self._queues.setdefault(op.row.name, op.row) is op.row,
            ops.ChangeQueue: lambda op: alter_configured(self._queues, op),
            ops.RemoveQueue: lambda op: alter(self._queues, op.name, {"incarnation": op.incarnation}),
            ops.AdvanceEpoch: self._advance_epoch,
            ops.ReadDeployment: lambda _: self._deployment,
            ops.BumpDeployment: self._bump,
            **self._control(),
            **logs.handlers(),
            **MemorySubscriptions(self._clock_us, logs.live).handlers(),
        }

    def execute(self, operation: ops.Operation[Any]) -> Any:
        """Run one operation; never fails."""
        with self._mutex:
            return self._handlers[type(operation)](operation)

    def together(self, operations: tuple[ops.Operation[Any], ...]) -> list[Any]:
        """Run several, one after the other."""
        return [self.execute(operation) for operation in operations]

    def sample_time_us(self) -> list[tuple[int, int]]:
        """The one clock, at once."""
        return [(self._clock_us(), 0)]

    def close(self) -> None:
        """Nothing to let go of: the data lives as long as the store object."""

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

    def _read_slice(self, op: ops.ReadSlice | ReadMessagePage) -> ops.Slice:
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
            partition.of(row.priority).insert(row.id, row, partition.floor_us)

    def _delete_messages(self, op: ops.DeleteMessages | ops.DropMessages) -> None:
        at_us = max(map(ids.time_us, op.ids)) + 1
        for id_ in op.ids:
            self._partition(op.wide_row).of(op.priority).delete(id_, at_us)

    def _read_bodies(self, op: ops.ReadBodies) -> dict[int, bytes]:
        live = self._partition(op.wide_row).bodies.live
        return {id_: live[id_] for id_ in op.ids if id_ in live}

    def _insert_bodies(self, op: ops.InsertBodies) -> None:
        partition = self._partition(op.wide_row)
        for id_, body in op.bodies:
            partition.bodies.insert(id_, body, partition.bodies_floor_us)

    def _delete_bodies(self, op: ops.DeleteBodies) -> None:
        at_us = max(map(ids.time_us, op.ids)) + 1
        for id_ in op.ids:
            self._partition(op.wide_row).bodies.delete(id_, at_us)

    def _drop_bodies(self, op: ops.DropBodies) -> None:
        partition = self._partition(op.wide_row)
        partition.bodies_floor_us = max(partition.bodies_floor_us, op.at_us)
        partition.bodies.drop(op.at_us)

    def _mutate(self, op: ops.Mutate) -> bool:
        if op.lock is None and (op.cursors or op.retire or not op.slots):
            raise ValueError("A mutation without a condition: cursors and retirement need the lock.")
        partition = self._partition(op.wide_row)
        if not self._conditions_hold(partition, op):
            return False
        self._ballot_us = max(self._ballot_us + 1, self._clock_us())
        if op.retire:
            self._drop_partition(partition, self._ballot_us - 1)
        if op.lock is not None:
            partition.lock = op.lock
            partition.lock_expires_us = self._ballot_us + ops.RETIRED_TTL_S * 1_000_000 if op.retire else None
            partition.cursors.update((row.priority, row) for row in op.cursors)
        for change in op.slots:
            partition.slots[change.row.priority, change.row.number] = change.row
        return True

    @staticmethod
    def _conditions_hold(partition: _Partition, op: ops.Mutate) -> bool:
        fence = partition.lock.fence if partition.lock else None
        if op.lock is not None and fence != op.expect_fence:
            return False
        for expect_rev, row in op.slots:
            stored = partition.slots.get((row.priority, row.number))
            if (stored.rev if stored else None) != expect_rev:
                return False
        return True

    @staticmethod
    def _drop_partition(partition: _Partition, at_us: int) -> None:
        partition.floor_us = max(partition.floor_us, at_us)
        partition.slots.clear()
        partition.cursors.clear()
        for rows in partition.messages.values():
            rows.drop(at_us)

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
            control.CreateSchedule: lambda op: (
                self._schedules.setdefault((op.row.queue, op.row.key), op.row) is op.row
            ),
            control.ChangeSchedule: lambda op: alter(
                self._schedules,
                (op.row.queue, op.row.key),
                {"version": op.expect_version},
                **op.row._replace(version=(op.expect_version or 0) + 1)._asdict(),
            ),
            control.RemoveSchedule: lambda op: alter(
                self._schedules, (op.queue, op.key), {"version": op.expect_version}
            ),
            control.Heartbeat: self._heartbeat,
            control.ReadWorkers: lambda _: alive(self._workers, self._clock_us()),
            control.Listen: self._listen,
            control.ReadDigests: lambda _: {
                row.listener: row.digest for row in alive(self._listeners, self._clock_us())
            },
            control.ReadListeners: lambda op: [
                row for row in alive(self._listeners, self._clock_us()) if row.listener in op.listeners
            ],
            control.RemoveWorker: lambda op: self._workers.pop(op.worker, None) and None,
        }

    def _heartbeat(self, op: control.Heartbeat) -> None:
        self._workers[op.row.worker] = (op.row, self._clock_us() + op.ttl_s * 1_000_000)

    def _listen(self, op: control.Listen) -> None:
        self._listeners[op.row.listener] = (op.row, self._clock_us() + op.ttl_s * 1_000_000)
