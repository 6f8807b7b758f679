"""The memory twin: the storage seam with Cassandra's semantics, in one process.

It keeps what correctness hangs on: write timestamps decide (a delete wins a tie), tombstones stay
and are crossed by reads, a conditional batch applies wholly or not at all, a retired wide row keeps
its marker for a while. It has one replica and no faults; the simulator adds those around it.
"""

from __future__ import annotations

import time
from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, TypeVar

from cqueue import ids
from cqueue.store.control import (
    ChangeSchedule,
    CreateSchedule,
    Heartbeat,
    Listen,
    ListenerRow,
    ListSchedules,
    ReadListeners,
    ReadSchedule,
    ReadWorkers,
    RemoveSchedule,
    RemoveWorker,
    ScheduleRow,
    WorkerRow,
)
from cqueue.store.memory_log import MemoryLogs
from cqueue.store.memory_subscriptions import MemorySubscriptions
from cqueue.store.message_page import MessagePage, ReadMessagePage
from cqueue.store.operations import (
    FORMAT,
    RETIRED_TTL_S,
    AdvanceEpoch,
    Begin,
    BumpDeployment,
    ChangeQueue,
    CreateQueue,
    CursorRow,
    DeleteBodies,
    DeleteMessages,
    DeploymentRow,
    DropBodies,
    DropMessages,
    DropShard,
    DropSlot,
    DumpRow,
    Finish,
    Head,
    IdSlice,
    InsertBodies,
    InsertMessages,
    ListQueues,
    LockRow,
    MessageRow,
    Mutate,
    Operation,
    QueueRow,
    ReadBodies,
    ReadDeployment,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadQueue,
    ReadShards,
    ReadSlice,
    Ready,
    RegisterShard,
    RemoveQueue,
    ShardRow,
    Slice,
    SlotRow,
    UnregisterShard,
    WideRow,
)
from cqueue.store.quarantine import Quarantine

Row = TypeVar("Row")

TOMBSTONE_WARN = 1000
"""As Cassandra: a read that crosses no more than this says nothing about it."""

DEPLOYMENT = DeploymentRow(
    format=FORMAT,
    serial_consistency="local_serial",
    settle_ms=2000,
    skew_ms=500,
    gc_grace_s=86_400,
    changes=0,
)


def _merge(old: MessageRow, new: MessageRow) -> MessageRow:
    """Two writes of one row at one timestamp: in each column a value beats none, the larger the smaller."""

    def larger(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        order = (lambda value: sorted(value.items())) if isinstance(a, dict) else (lambda value: value)
        return max(a, b, key=order)

    return MessageRow._make(larger(a, b) for a, b in zip(old, new, strict=True))


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
            row = _merge(old, row) if isinstance(row, MessageRow) else max(old, row)
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
    lock: LockRow | None = None
    lock_expires_us: int | None = None
    slots: dict[tuple[int, int], SlotRow] = field(default_factory=dict)
    cursors: dict[int, CursorRow] = field(default_factory=dict)

    def of(self, priority: int) -> _Rows:
        return self.messages.setdefault(priority, _Rows())


class MemoryStore:
    """A `Store` whose Cassandra is a few dictionaries."""

    def __init__(self, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000) -> None:
        self.quarantine = Quarantine()
        self._clock_us = clock_us
        self._ballot_us = 0
        self._mutex = RLock()
        self._partitions: dict[WideRow, _Partition] = {}
        self._shards: dict[tuple[str, int], dict[tuple[int, int], frozenset[int] | None]] = {}
        self._queues: dict[str, QueueRow] = {}
        self._deployment = DEPLOYMENT
        self._schedules: dict[tuple[str, str], ScheduleRow] = {}
        self._workers: dict[str, tuple[WorkerRow, int]] = {}  # with the µs at which it goes
        self._listeners: dict[str, tuple[ListenerRow, int]] = {}  # the same
        logs = MemoryLogs(self._clock_us)
        self._handlers: dict[type[Operation[Any]], Callable[[Any], Any]] = {
            ReadHead: self._read_head,
            ReadSlice: self._read_slice,
            ReadMessagePage: lambda op: MessagePage.of(*self._read_slice(op)[:2]),
            ReadIds: self._read_ids,
            Begin: lambda op: Ready(self._handlers[type(op.read)](op.read)),
            Finish: lambda op: op.begun.result(),
            ReadMessages: self._read_messages,
            ReadBodies: self._read_bodies,
            ReadShards: self._read_shards,
            DropShard: self._drop_shard,
            InsertMessages: self._insert_messages,
            DeleteMessages: self._delete_messages,
            DropMessages: self._delete_messages,
            InsertBodies: self._insert_bodies,
            DeleteBodies: self._delete_bodies,
            DropBodies: self._drop_bodies,
            DropSlot: lambda _: False,
            DumpRow: lambda _: None,
            RegisterShard: self._register,
            UnregisterShard: self._unregister,
            Mutate: self._mutate,
            ReadQueue: lambda op: self._queues.get(op.name),
            ListQueues: lambda _: list(self._queues.values()),
            CreateQueue: self._create_queue,
            ChangeQueue: self._change_queue,
            RemoveQueue: self._remove_queue,
            AdvanceEpoch: self._advance_epoch,
            ReadDeployment: lambda _: self._deployment,
            BumpDeployment: self._bump,
            **self._control(),
            **logs.handlers(),
            **MemorySubscriptions(self._clock_us, logs.live).handlers(),
        }

    def execute(self, operation: Operation[Any]) -> Any:
        """Run one operation; never fails."""
        with self._mutex:
            return self._handlers[type(operation)](operation)

    def together(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        """Run several, one after the other."""
        return [self.execute(operation) for operation in operations]

    def sample_time_us(self) -> list[tuple[int, int]]:
        """The one clock, at once."""
        return [(self._clock_us(), 0)]

    def close(self) -> None:
        """Nothing to let go of: the data lives as long as the store object."""

    # ── wide rows ──

    def _partition(self, wide_row: WideRow) -> _Partition:
        partition = self._partitions.get(wide_row)
        if partition is None:
            partition = self._partitions[wide_row] = _Partition()
        if partition.lock_expires_us is not None and self._clock_us() >= partition.lock_expires_us:
            partition.lock = partition.lock_expires_us = None
        return partition

    def _read_head(self, op: ReadHead) -> Head:
        partition = self._partition(op.wide_row)
        return Head(partition.lock, dict(partition.cursors), tuple(partition.slots.values()))

    def _read_slice(self, op: ReadSlice | ReadMessagePage) -> Slice:
        rows = self._partition(op.wide_row).of(op.priority)
        found, crossed = rows.slice(op.after, op.upto, op.limit)
        return Slice([rows.live[id_] for id_ in found], crossed)

    def _read_ids(self, op: ReadIds) -> IdSlice:
        return IdSlice(*self._partition(op.wide_row).of(op.priority).slice(op.after, op.upto, op.limit))

    def _read_messages(self, op: ReadMessages) -> list[MessageRow]:
        live = self._partition(op.wide_row).of(op.priority).live
        rows = [live[id_] for id_ in sorted(set(op.ids)) if id_ in live]
        return rows[: op.limit] if op.limit else rows

    def _insert_messages(self, op: InsertMessages) -> None:
        partition = self._partition(op.wide_row)
        for row in op.rows:
            partition.of(row.priority).insert(row.id, row, partition.floor_us)

    def _delete_messages(self, op: DeleteMessages | DropMessages) -> None:
        at_us = max(map(ids.time_us, op.ids)) + 1
        for id_ in op.ids:
            self._partition(op.wide_row).of(op.priority).delete(id_, at_us)

    def _read_bodies(self, op: ReadBodies) -> dict[int, bytes]:
        live = self._partition(op.wide_row).bodies.live
        return {id_: live[id_] for id_ in op.ids if id_ in live}

    def _insert_bodies(self, op: InsertBodies) -> None:
        partition = self._partition(op.wide_row)
        for id_, body in op.bodies:
            partition.bodies.insert(id_, body, partition.bodies_floor_us)

    def _delete_bodies(self, op: DeleteBodies) -> None:
        at_us = max(map(ids.time_us, op.ids)) + 1
        for id_ in op.ids:
            self._partition(op.wide_row).bodies.delete(id_, at_us)

    def _drop_bodies(self, op: DropBodies) -> None:
        partition = self._partition(op.wide_row)
        partition.bodies_floor_us = max(partition.bodies_floor_us, op.at_us)
        partition.bodies.drop(op.at_us)

    def _mutate(self, op: Mutate) -> bool:
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
            partition.lock_expires_us = self._ballot_us + RETIRED_TTL_S * 1_000_000 if op.retire else None
            partition.cursors.update((row.priority, row) for row in op.cursors)
        for change in op.slots:
            partition.slots[change.row.priority, change.row.number] = change.row
        return True

    @staticmethod
    def _conditions_hold(partition: _Partition, op: Mutate) -> bool:
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

    def _read_shards(self, op: ReadShards) -> list[ShardRow]:
        rows = self._shards.get((op.queue, op.epoch), {})
        return [
            ShardRow(time_shard, shard, priorities)
            for (time_shard, shard), priorities in sorted(rows.items())
            if priorities is not None and time_shard >= op.from_time_shard
        ]

    def _register(self, op: RegisterShard) -> None:
        rows = self._shards.setdefault((op.queue, op.epoch), {})
        known = rows.get((op.time_shard, op.shard), frozenset())
        if known is not None:  # None: deleted, one µs later than any insert
            rows[op.time_shard, op.shard] = known | op.priorities

    def _unregister(self, op: UnregisterShard) -> None:
        self._shards.setdefault((op.queue, op.epoch), {})[op.time_shard, op.shard] = None

    def _drop_shard(self, op: DropShard) -> None:
        self._shards.get((op.queue, op.epoch), {}).pop((op.time_shard, op.shard), None)

    # ── queues and deployment ──

    def _create_queue(self, op: CreateQueue) -> bool:
        return self._queues.setdefault(op.row.name, op.row) is op.row

    def _change_queue(self, op: ChangeQueue) -> bool:
        stored = self._queues.get(op.row.name)
        if stored is None or stored.version != op.expect_version or stored.incarnation != op.row.incarnation:
            return False
        self._queues[op.row.name] = stored._replace(
            version=stored.version + 1, state=op.row.state, config=op.row.config
        )
        return True

    def _remove_queue(self, op: RemoveQueue) -> bool:
        stored = self._queues.get(op.name)
        if stored is None or stored.incarnation != op.incarnation:
            return False
        del self._queues[op.name]
        return True

    def _advance_epoch(self, op: AdvanceEpoch) -> bool:
        stored = self._queues.get(op.name)
        name = "oldest_open_epoch" if op.open else "oldest_epoch"
        if stored is None or stored.incarnation != op.incarnation or getattr(stored, name) != op.expect:
            return False
        moved = stored._replace(oldest_open_epoch=op.to) if op.open else stored._replace(oldest_epoch=op.to)
        self._queues[op.name] = moved
        return True

    def _bump(self, op: BumpDeployment) -> bool:
        if self._deployment.changes != op.expect:
            return False
        self._deployment = self._deployment._replace(changes=op.expect + 1)
        return True

    # ── schedules and workers ──

    def _control(self) -> dict[type[Operation[Any]], Callable[[Any], Any]]:
        return {
            ReadSchedule: lambda op: self._schedules.get((op.queue, op.key)),
            ListSchedules: lambda op: [
                row for key, row in sorted(self._schedules.items()) if key[0] == op.queue
            ],
            CreateSchedule: lambda op: (
                self._schedules.setdefault((op.row.queue, op.row.key), op.row) is op.row
            ),
            ChangeSchedule: self._change_schedule,
            RemoveSchedule: self._remove_schedule,
            Heartbeat: self._heartbeat,
            ReadWorkers: lambda _: self._alive(self._workers),
            RemoveWorker: lambda op: self._workers.pop(op.worker, None) and None,
            Listen: self._listen,
            ReadListeners: lambda _: self._alive(self._listeners),
        }

    def _change_schedule(self, op: ChangeSchedule) -> bool:
        key = (op.row.queue, op.row.key)
        stored = self._schedules.get(key)
        if stored is None or stored.version != op.expect_version:
            return False
        self._schedules[key] = op.row._replace(version=stored.version + 1)
        return True

    def _remove_schedule(self, op: RemoveSchedule) -> bool:
        stored = self._schedules.get((op.queue, op.key))
        if stored is None or stored.version != op.expect_version:
            return False
        del self._schedules[op.queue, op.key]
        return True

    def _heartbeat(self, op: Heartbeat) -> None:
        self._workers[op.row.worker] = (op.row, self._clock_us() + op.ttl_s * 1_000_000)

    def _listen(self, op: Listen) -> None:
        self._listeners[op.row.listener] = (op.row, self._clock_us() + op.ttl_s * 1_000_000)

    def _alive(self, rows: Mapping[str, tuple[Row, int]]) -> list[Row]:
        now_us = self._clock_us()
        return [row for _, (row, until_us) in sorted(rows.items()) if now_us < until_us]
