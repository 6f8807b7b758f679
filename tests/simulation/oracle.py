"""What must be true, judged by somebody who sees everything.

Checked whenever a conditional mutation applies, a send is acknowledged or a message is delivered,
and once more when all is quiet.
"""

from __future__ import annotations

from typing import Any

from cqueue import ids
from cqueue.protocol.dead import HEADER_ID
from cqueue.protocol.flush import Flush
from cqueue.protocol.spec import QueueSpec, Taken
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    DeleteMessages,
    InsertMessages,
    LockState,
    MessageRow,
    Mutate,
    Operation,
    SlotRow,
    SlotState,
    WideRow,
)
from tests.simulation.world import World

Key = tuple[WideRow, int, int]  # wide row, priority, id


class Violation(AssertionError):
    """The protocol broke a promise."""


def body_of(row: MessageRow) -> bytes:
    """A message's name in the simulation; it stands in a header, bodies may be large."""
    return (row.headers or {})["name"].encode()


class Oracle:
    """Knows all that was sent, acknowledged, delivered and acked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: set[bytes] = set()
        self.promised: dict[bytes, int] = {}  # acknowledged sends → true time
        self.promised_keys: dict[WideRow, dict[Key, bytes]] = {}
        self.written: set[Key] = set()
        self.deleted: set[Key] = set()  # a delete was executed
        self.acked: dict[Key, int] = {}  # ack acknowledged → step
        self.settled: set[bytes] = set()  # a handler was through with it
        self.buried: set[bytes] = set()
        self.attempts: dict[Key, int] = {}
        self.fences: dict[WideRow, int] = {}
        self.due: dict[bytes, int] = {}
        self.deliveries = 0
        self.granted: set[Key] = set()  # listed by a claim at any time
        self.applied: set[tuple[WideRow, int, int, int]] = set()  # revisions of slots that were stored
        self.dead_ids: dict[str, set[int]] = {}  # by original, under which ids it was buried
        self.grace_us = 0

    def fail(self, text: str) -> None:
        """A promise is broken."""
        raise Violation(f"at {self.world.now_us / 1e6:.6f} (step {self.world.step}): {text}")

    # ── plain writes, deliveries, acks ──

    def inserted(self, op: InsertMessages) -> None:
        """Messages were stored."""
        for row in op.rows:
            if body_of(row) not in self.sent:
                self.fail(f"{body_of(row)!r} is stored but was never sent")
            self.written.add((op.wide_row, row.priority, row.id))
            original = (row.headers or {}).get(HEADER_ID)
            if original is not None:
                self._check_burial(original, row.id)

    def _check_burial(self, original: str, id_: int) -> None:
        """One death, one id: else a burial that was repeated leaves two copies."""
        others = self.dead_ids.setdefault(original, set())
        others.add(id_)
        for other in others - {id_}:
            if abs(ids.time_us(other) - ids.time_us(id_)) < self.grace_us // 2:
                self.fail(f"{original} was buried twice")

    def removed(self, op: DeleteMessages) -> None:
        """Messages were deleted."""
        self.deleted.update((op.wide_row, op.priority, id_) for id_ in op.ids)

    def acknowledged(self, flush: Flush, store: SimStore) -> None:
        """A send was acknowledged: from now on its messages must not be lost."""
        partition = store._partition(flush.wide_row)
        listed = _listed(partition.slots.values())
        for row in flush.rows:
            key = (flush.wide_row, row.priority, row.id)
            self.promised.setdefault(body_of(row), self.world.now_us)
            self.promised_keys.setdefault(flush.wide_row, {})[key] = body_of(row)
            if row.id in partition.of(row.priority).live:
                cursor = partition.cursors.get(row.priority)
                if cursor and row.id <= cursor.cursor and (row.priority, row.id) not in listed:
                    self.fail(f"{body_of(row)!r} was acknowledged behind the cursor, and nothing lists it")
            elif key not in self.deleted:
                self.fail(f"{body_of(row)!r} was acknowledged but is gone")

    def delivered(self, taken: Taken, began_step: int) -> None:
        """A claim gave a message to a handler."""
        key = (taken.lease.wide_row, taken.row.priority, taken.row.id)
        self.deliveries += 1
        if (key[0], key[1], taken.lease.number, taken.lease.rev) not in self.applied:
            self.fail(f"{key} was delivered by a claim that was never applied")
        if key not in self.written:
            self.fail(f"{key} was delivered but never stored")
        if self.acked.get(key, began_step) < began_step:
            self.fail(f"{body_of(taken.row)!r} was delivered by a claim that began after its ack")

    def ack_confirmed(self, taken: Taken) -> None:
        """A handler's ack was acknowledged."""
        key = (taken.lease.wide_row, taken.row.priority, taken.row.id)
        self.acked.setdefault(key, self.world.step)

    # ── conditional mutations ──

    def mutated(self, op: Mutate, before: dict[tuple[int, int], SlotRow], partition: Any) -> None:
        """A conditional mutation was applied to a partition whose slots were `before`."""
        if op.lock is not None:
            self._check_lock(op)
        if op.retire:
            self._check_retired(op.wide_row, before)
            return
        for change in op.slots:
            self._check_change(op, change.row, before)
        self._check_listed(op.wide_row, before, partition)
        if op.cursors:
            self._check_cursors(op.wide_row, partition)

    def _check_lock(self, op: Mutate) -> None:
        if op.lock is None:
            return
        if op.lock.fence <= self.fences.get(op.wide_row, 0):
            self.fail(f"the fence of {op.wide_row} went back to {op.lock.fence}")
        self.fences[op.wide_row] = op.lock.fence
        if op.retire and op.lock.state is not LockState.RETIRED:
            self.fail("retired without the marker")

    def _check_retired(self, wide_row: WideRow, before: dict[tuple[int, int], SlotRow]) -> None:
        for key, name in self.promised_keys.get(wide_row, {}).items():
            if key not in self.deleted:
                self.fail(f"{name!r} was dropped with its wide row")
        for priority, id_ in _listed(before.values()):
            if (wide_row, priority, id_) not in self.deleted:
                self.fail(f"{wide_row} was dropped while a slot of it listed {id_}")

    def _check_change(self, op: Mutate, row: SlotRow, before: dict[tuple[int, int], SlotRow]) -> None:
        """Who takes messages over may do so only when their timeout is over, or they were given up."""
        old = before.get((row.priority, row.number))
        if old is not None and row.rev <= old.rev:
            self.fail(f"revision of {op.wide_row} slot {row.number} went back")
        self.applied.add((op.wide_row, row.priority, row.number, row.rev))
        if op.lock is None or row.state is not SlotState.CLAIMED:
            return
        listed = _listed(before.values())
        for id_ in row.ids:
            key = (op.wide_row, row.priority, id_)
            if (row.priority, id_) not in listed and key in self.granted:
                self.fail(f"{key} was claimed before, and is claimed again though no slot listed it")
            self.granted.add(key)
        for slot in before.values():
            if slot.priority != row.priority or slot.state is not SlotState.CLAIMED:
                continue
            common = set(slot.ids) & set(row.ids)
            if common and row.due_ms != slot.due_ms and self.world.now_us < slot.due_ms * 1000:
                self.fail(f"{op.wide_row}: {sorted(common)} are claimed twice")

    def _check_listed(
        self, wide_row: WideRow, before: dict[tuple[int, int], SlotRow], partition: Any
    ) -> None:
        after: set[tuple[int, int]] = set()
        for slot in partition.slots.values():
            if slot.state is SlotState.FREE:
                continue
            for id_ in slot.ids:
                if (slot.priority, id_) in after and id_ in partition.of(slot.priority).live:
                    self.fail(f"{wide_row}: two slots list {id_}")
                after.add((slot.priority, id_))
        for priority, id_ in _listed(before.values()) - after:
            if id_ in partition.of(priority).live:
                self.fail(f"{wide_row}: {id_} is live, and its slot lists it no more")

    def _check_cursors(self, wide_row: WideRow, partition: Any) -> None:
        promised = self.promised_keys.get(wide_row)
        if not promised:
            return
        listed = _listed(partition.slots.values())
        for priority, row in partition.cursors.items():
            for id_ in partition.of(priority).live:
                if id_ <= row.cursor and (priority, id_) not in listed:
                    name = promised.get((wide_row, priority, id_))
                    if name is not None:
                        self.fail(f"the cursor of {wide_row} passed {name!r}, and nothing lists it")

    # ── the end ──

    def final(self) -> None:
        """All is quiet: everything that was acknowledged must have reached a handler's end."""
        lost = sorted(set(self.promised) - self.settled)
        if lost:
            self.fail(f"acknowledged sends were lost: {lost}")


def _listed(slots: Any) -> set[tuple[int, int]]:
    return {(slot.priority, id_) for slot in slots if slot.state is not SlotState.FREE for id_ in slot.ids}


class SimStore(MemoryStore):
    """The memory twin, watched by the oracle, with accepted mutations that nobody has finished yet."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        super().__init__(lambda: world.now_us)
        self._world = world
        self._oracle = oracle
        self._accepted: dict[WideRow, Mutate] = {}

    def execute(self, operation: Operation[Any]) -> Any:
        """Run one operation at this instant."""
        return self._handlers[type(operation)](operation)

    def accept(self, op: Mutate) -> None:
        """A mutation that some replicas accepted, and whose coordinator then was gone."""
        self._finish(op.wide_row)
        if self._conditions_hold(self._partition(op.wide_row), op):
            self._accepted[op.wide_row] = op

    def _finish(self, wide_row: WideRow) -> None:
        """Whoever asks next at serial consistency finishes what was accepted, or it never happens."""
        op = self._accepted.pop(wide_row, None)
        if op is not None and self._world.rng.random() < 0.6:
            self._world.log("", lambda: f"FINISHED {op}")
            self._apply(op)

    def _read_head(self, op: Any) -> Any:
        if op.serial:
            self._finish(op.wide_row)
        return super()._read_head(op)

    def _mutate(self, op: Mutate) -> bool:
        if op.wide_row in self._accepted:
            self._finish(op.wide_row)
        return self._apply(op)

    def _apply(self, op: Mutate) -> bool:
        partition = self._partition(op.wide_row)
        before = dict(partition.slots)
        applied = super()._mutate(op)
        if applied:
            self._oracle.mutated(op, before, partition)
        return applied

    def _insert_messages(self, op: InsertMessages) -> None:
        super()._insert_messages(op)
        self._oracle.inserted(op)

    def _delete_messages(self, op: DeleteMessages) -> None:
        super()._delete_messages(op)
        self._oracle.removed(op)

    def registered(self, spec: QueueSpec) -> list[WideRow]:
        """Wide rows that the registry lists, in epochs that readers still read.

        A registration that lands after its epoch was closed (never an acknowledged one) stays for ever.
        """
        oldest = self._queues[spec.name]
        return [
            WideRow(queue, time_shard, shard)
            for (queue, epoch), rows in self._shards.items()
            if queue == spec.partition
            and (epoch >= oldest.oldest_epoch or -(1 << 61) < epoch <= oldest.oldest_open_epoch)
            for (time_shard, shard), priorities in rows.items()
            if priorities is not None
        ]

    def live(self, spec: QueueSpec) -> list[Key]:
        """Messages that are live."""
        return [
            (wide_row, priority, id_)
            for wide_row, partition in self._partitions.items()
            if wide_row.queue == spec.partition
            for priority, rows in partition.messages.items()
            for id_ in rows.live
        ]


def due_us(key: Key) -> int:
    """When a message was due first."""
    return ids.time_us(key[2])
