"""A cluster of three nodes, as far as the protocol can tell: where writes arrive, and what reads find.

What is modelled, and how:

- **Rows of messages** are written and read by the real store's code (`rows.py`): a row may be a pack, whose
  messages are deleted one by one by marks. A client's store plans a write when it is sent, and remembers what
  it knows to be gone.
- **Plain writes** reach two replicas at least before they are acknowledged. The third gets them at once,
  or later, or when it is back (a hint), or never. A write whose sender got no answer reached any number
  of replicas, now or later. Arguments and timestamps are those of the time it was sent.
- **Reads** ask two replicas. Each quorum shares one replica with every write that was acknowledged, so it
  sees them; of the others it sees what chance decides. What the two disagree on is repaired before the
  answer (Cassandra's `read_repair = 'BLOCKING'`, its default): one quorum read never takes back what
  another has shown. Only columns that were read are repaired: a read of ids leaves a row without a body
  where its insert has not arrived. In a *torn* read one replica answers when the request is sent, and the
  other when the answer comes. Of a read that takes several requests each asks two replicas of its own.
- **Conditional mutations** are one Paxos register per wide row, hence linearizable: they are decided at
  one instant, with a ballot from the coordinator's clock that exceeds all earlier ones of the partition;
  the ballot is the timestamp of all cells. What is decided may have been *committed* on two replicas (then
  it is acknowledged), on one, or on none: reads that are not serial may miss it, and the next serial
  operation brings it to a quorum first. What only a minority has *accepted* is finished by the next serial
  operation, under its own ballot, or never.
- **Nodes** have clocks that disagree; one of them may be down and come back with hints, or without any
  and be repaired; compaction drops tombstones after gc_grace, after a repair. A node that was away for
  longer is rebuilt, unless a rule is to be broken.

Not modelled: the loss of what a replica has acknowledged, more than one node down, two data centres.
Queues' own rows are written by conditional mutations and read at serial consistency: one dictionary.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any

from cqueue import ids
from cqueue.protocol.inspection import END
from cqueue.store import packs
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    AdvanceEpoch,
    ChangeQueue,
    CreateQueue,
    DeleteBodies,
    DropBodies,
    HasMessages,
    Head,
    InsertBodies,
    Mutate,
    Operation,
    QueueRow,
    ReadBodies,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadQueue,
    ReadShards,
    ReadSlice,
    RegisterShard,
    RemoveQueue,
    ShardRow,
    UnregisterShard,
    WideRow,
)
from tests.simulation.replica import ALL, BITS, PAIRS, REPLICAS, Commit, Part, Registration, Rows, View
from tests.simulation.rows import Delete, Insert, RowStore

if TYPE_CHECKING:
    from tests.simulation.oracle import Oracle
    from tests.simulation.world import World

FINISHED = 0.6
"""How likely the next serial operation meets a replica that has accepted what is not decided yet."""
LATEST_US = 5_000_000
"""What arrives late, arrives within this; replayed batches within ten times as much."""


LATEST_REAP_US = 300_000
"""A delete that nobody waits for arrives within this."""


class Known(Operation[Any]):
    """A read whose answer is known before it is asked: for rules that are taken out."""

    __slots__ = ("answer",)

    def __init__(self, answer: Any) -> None:
        self.answer = answer


Look = tuple[int, Any]
"""What one replica said when a read was sent: its number, and what it had then."""


class Cluster:
    """Three replicas behind one door."""

    read_repair = True

    def __init__(self, world: World, oracle: Oracle) -> None:
        self.world = world
        self.rng = world.rng
        self.extra = Random(world.now_us)  # what rows of several messages need, so that others' chance stays
        self.oracle = oracle
        self.up = ALL
        self.lag = 0.0  # how likely the third replica gets a write later
        self.lost_hints = 0.0
        self.marker_us = 3_600_000_000
        self.skews_us = (0, 0, 0)
        self.parts: dict[WideRow, Part] = {}
        self.registry: dict[tuple[str, int], dict[tuple[int, int], Registration]] = {}
        self.queues = MemoryStore(lambda: world.now_us)
        self._later: list[tuple[int, int, Callable[[Any, int], None], Any, int]] = []
        self._hints: list[tuple[Callable[[Any, int], None], Any, int]] = []
        self._count = 0
        self._plain: dict[type[Operation[Any]], Callable[[Any, int], None]] = {
            Insert: self._insert_messages,
            Delete: self._delete_messages,
            InsertBodies: self._insert_bodies,
            DeleteBodies: self._delete_bodies,
            DropBodies: self._drop_bodies,
            RegisterShard: self._register,
            UnregisterShard: self._unregister,
        }
        self._reads: dict[type[Operation[Any]], Callable[[Any, Look | None], Any]] = {
            ReadHead: self._read_head,
            ReadBodies: self._read_bodies,
            ReadShards: self._read_shards,
            Known: lambda op, _: op.answer,
        }
        self._of_messages = frozenset({ReadSlice, ReadIds, ReadMessages})
        self._looks: dict[type[Operation[Any]], Callable[[Any, int], Any]] = {
            ReadHead: self._look_head,
            ReadSlice: self._look_range,
            ReadIds: self._look_range,
            ReadMessages: self._look_messages,
        }
        of_queues = (ReadQueue, CreateQueue, ChangeQueue, RemoveQueue, AdvanceEpoch)
        self._serial = dict.fromkeys(of_queues, self.queues.execute)

    # ── the door ──

    def execute(self, op: Operation[Any], look: Look | None = None, store: RowStore | None = None) -> Any:
        """Run an operation now, and acknowledge it. store: the client's, which reads messages."""
        if self._later and self._later[0][0] <= self.world.now_us:
            self._drain()
        kind = type(op)
        if store is not None and kind in self._of_messages:
            return self._read_messages(op, look, store)
        if store is not None and kind is HasMessages:
            return self._has_messages(op, store)
        read = self._reads.get(kind)
        if read is not None:
            return read(op, look)
        write = self._plain.get(kind)
        if write is not None:
            self._spread(write, op, self._reach())
            return None
        if kind is Mutate:
            return self.mutate(op, self._reach())
        return self._serial[kind](op)

    def look(self, op: Operation[Any]) -> Look | None:
        """One replica answers a read now; or it gets a write now, and the others later."""
        if self._later and self._later[0][0] <= self.world.now_us:
            self._drain()
        kind = type(op)
        replica = self._any_up()
        if kind in self._looks and not getattr(op, "serial", False):
            return replica, self._looks[kind](op, replica)
        if kind in self._plain:
            self._plain[kind](op, BITS[replica])
            return replica, None
        return None

    def partly(self, op: Operation[Any]) -> None:
        """A plain write reaches one replica now, and others later or never; nobody is told."""
        first = BITS[self._any_up()]
        self._spread(self._plain[type(op)], op, first)

    def late(self, op: Operation[Any], within_us: int) -> int:
        """A plain write reaches each replica at some later time; the last of them."""
        last = self.world.now_us
        for bit in BITS:
            at_us = self.world.now_us + int(self.rng.random() ** 2 * within_us)
            self._push(at_us, self._plain[type(op)], op, bit)
            last = max(last, at_us)
        return last

    # ── who gets a write ──

    def _any_up(self) -> int:
        replica = self.rng.randrange(3)
        return replica if self.up & BITS[replica] else (replica + 1) % 3

    def _pair(self) -> int:
        pairs = PAIRS[self.up]
        return pairs[int(self.rng.random() * len(pairs))]

    def _reach(self) -> int:
        """The replicas that have a write when it is acknowledged."""
        if self.up == ALL and (not self.lag or self.rng.random() >= self.lag):
            return ALL
        return self._pair()

    def _spread(self, write: Callable[[Any, int], None], op: Any, reach: int) -> None:
        write(op, reach)
        for bit in BITS:
            if not reach & bit:
                self._deliver_later(write, op, bit)

    def _deliver_later(self, write: Callable[[Any, int], None], op: Any, bit: int) -> None:
        """What a replica has missed comes later, or as a hint when it is back, or never."""
        rng = self.rng
        if rng.random() < self.lost_hints:
            return
        if self.up & bit:
            within_us = LATEST_US if rng.random() < 0.2 else 30_000
            self._push(self.world.now_us + int(rng.random() ** 2 * within_us), write, op, bit)
        else:
            self._hints.append((write, op, bit))

    def _push(self, at_us: int, write: Callable[[Any, int], None], op: Any, bit: int) -> None:
        self._count += 1
        heapq.heappush(self._later, (at_us, self._count, write, op, bit))

    def _drain(self) -> None:
        later, now_us = self._later, self.world.now_us
        while later and later[0][0] <= now_us:
            _, _, write, op, bit = heapq.heappop(later)
            if self.up & bit:
                write(op, bit)
            else:
                self._hints.append((write, op, bit))

    # ── nodes ──

    def go_down(self, replica: int) -> None:
        """A node stops."""
        self.up = ALL & ~BITS[replica]

    def come_back(self, *, too_late: bool = False) -> None:
        """It runs again: with its hints, sooner or later. What had none waits for a read or a repair.

        too_late: the hints are gone.
        """
        self.up = ALL
        hints, self._hints = self._hints, []
        for write, op, bit in () if too_late else hints:
            self._push(self.world.now_us + int(self.rng.random() * 300_000), write, op, bit)

    def rebuild(self, replica: int) -> None:
        """A node that was away for gc_grace comes back with what the others have."""
        self._hints.clear()
        self.up = ALL
        self.level(ALL & ~BITS[replica])

    def repair(self) -> None:
        """Nodes that are up get what any of them has."""
        if self.up == ALL:
            self.level(ALL)

    def level(self, good: int) -> None:
        """All replicas get what any of `good` has."""
        for part in self.parts.values():
            part.level(good)
        for rows in self.registry.values():
            for row in rows.values():
                row.level(good)

    def compact(self, grace_us: int) -> None:
        """Nodes that are up drop tombstones older than gc_grace, after a repair."""
        self.repair()
        before_us = self.world.now_us - grace_us
        for replica in REPLICAS:
            if self.up & BITS[replica]:
                for part in self.parts.values():
                    part.purge(replica, before_us)
                for rows in self.registry.values():
                    for row in rows.values():
                        row.purge(BITS[replica], before_us)

    # ── reads ──

    def part(self, wide_row: WideRow) -> Part:
        """A wide row, made when it is first asked for."""
        part = self.parts.get(wide_row)
        if part is None:
            part = self.parts[wide_row] = Part()
        return part

    def _view(self, look: Look | None, part: Part | None = None) -> View:
        """Which replicas answer."""
        if look is None:
            quorum = self._pair()
            whole, seen = quorum, None
        else:
            first = BITS[look[0]]
            rest = [bit for bit in BITS if bit != first and self.up & bit]
            quorum = rest[int(self.rng.random() * len(rest))]
            whole, seen = quorum | first, look[1]
        floor_us = part.floor_us(whole) if part is not None else 0
        return View(quorum, seen, floor_us, whole if self.read_repair else 0)

    def _read_head(self, op: ReadHead, look: Look | None) -> Head:
        part = self.part(op.wide_row)
        part.expire(self.world.now_us)
        if op.serial:
            self._finish(op.wide_row, part)
            return part.head
        lacking = part.lacking
        if look is None:
            quorum = self._pair()
            one, other = (r for r in REPLICAS if quorum & BITS[r])
            missed = lacking[one] & lacking[other] if lacking[one] else lacking[one]
        else:
            one = look[0]
            before, count = look[1]
            other = next(r for r in REPLICAS if r != one and self.up & BITS[r])
            missed = {n for n in lacking[other] if n in before or n >= count}
        if self.read_repair and (lacking[one] or lacking[other]):
            for replica in (one, other):
                for number in sorted(lacking[replica] - missed):
                    part.arrive(number, BITS[replica])
        return part.merged(missed, self.world.now_us, self.marker_us)

    def _look_head(self, op: ReadHead, replica: int) -> tuple[set[int], int]:
        part = self.part(op.wide_row)
        return set(part.lacking[replica]), len(part.commits)

    def _read_messages(self, op: Any, look: Look | None, store: RowStore) -> Any:
        part = self.part(op.wide_row)
        rows = part.messages.get(op.priority)
        if rows is None:
            return store.nothing(op)
        view = self._view(look, part)
        if type(op) is not ReadMessages and not rows.between(packs.lowest(op.after), op.upto):
            return store.nothing(op)
        return store.read(op, rows, view)

    def _has_messages(self, op: HasMessages, store: RowStore) -> bool:
        row = op.wide_row
        reads = [ReadIds(row, priority, ids.START, END, 1) for priority in self.part(row).messages]
        return any(self._read_messages(read, None, store).ids for read in reads)

    def another_view(self, wide_row: WideRow) -> View:
        """The replicas that answer a further request of the same read."""
        pairs = PAIRS[self.up]
        quorum = pairs[int(self.extra.random() * len(pairs))]
        return View(quorum, None, self.part(wide_row).floor_us(quorum), quorum if self.read_repair else 0)

    def reap(self, delete: Delete) -> None:
        """A delete that nobody waits for: it arrives a little later at each replica, or never."""
        if self.extra.random() >= self.lost_hints:
            for bit in BITS:
                at_us = self.world.now_us + int(self.extra.random() * LATEST_REAP_US)
                self._push(at_us, self._delete_messages, delete, bit)

    def _look_range(self, op: Any, replica: int) -> Any:
        rows = self.part(op.wide_row).of(op.priority)
        return rows.look(rows.between(packs.lowest(op.after), op.upto), BITS[replica])

    def _look_messages(self, op: ReadMessages, replica: int) -> Any:
        return self.part(op.wide_row).of(op.priority).look(packs.row_ids(op.ids), BITS[replica])

    def _read_bodies(self, op: ReadBodies, look: Look | None) -> dict[int, bytes]:
        part = self.part(op.wide_row)
        view = self._view(None) if not op.everywhere else View(ALL, None, 0, ALL if self.read_repair else 0)
        view.floor_us = max(part.body_floors)
        return {id_: part.bodies.cells[id_].row for id_ in part.bodies.present(op.ids, view)}

    def _read_shards(self, op: ReadShards, look: Look | None) -> list[ShardRow]:
        rows = self.registry.get((op.queue, op.epoch))
        if not rows:
            return []
        view = self._view(None)
        found = []
        for key in sorted(rows):
            if key[0] >= op.from_time_shard:
                priorities = rows[key].read(view)
                if priorities is not None:
                    found.append(ShardRow(*key, priorities))
        return found

    # ── plain writes ──

    def _insert_messages(self, op: Insert, mask: int) -> None:
        part = self.part(op.wide_row)
        for row in op.stored:
            part.of(row.priority).insert(row.id, row, mask)
        self.oracle.inserted(op)

    def _delete_messages(self, op: Delete, mask: int) -> None:
        self.delete_at(op, op.at_us, mask)

    def delete_at(self, op: Delete, at_us: int, mask: int) -> None:
        """Delete messages: whole rows at a timestamp, and parts of packs by marks."""
        rows = self.part(op.wide_row).of(op.priority)
        for id_ in op.rows:
            rows.delete(id_, at_us, mask, self.world.now_us)
        for pack, marks in op.marks.items():
            self.mark(rows, pack, marks, mask)
        self.oracle.removed(op)

    @staticmethod
    def mark(rows: Rows, pack: int, marks: Iterable[int], mask: int) -> None:
        """Add marks to those that a pack has."""
        rows.mark(pack, marks, mask)

    def _insert_bodies(self, op: InsertBodies, mask: int) -> None:
        bodies = self.part(op.wide_row).bodies
        for id_, body in op.bodies:
            bodies.insert(id_, body, mask)

    def _delete_bodies(self, op: DeleteBodies, mask: int) -> None:
        bodies: Rows = self.part(op.wide_row).bodies
        at_us = max(map(ids.time_us, op.ids)) + 1
        for id_ in op.ids:
            bodies.delete(id_, at_us, mask, self.world.now_us)

    def _drop_bodies(self, op: DropBodies, mask: int) -> None:
        floors = self.part(op.wide_row).body_floors
        for replica, bit in enumerate(BITS):
            if mask & bit:
                floors[replica] = max(floors[replica], op.at_us)

    def _registration(self, op: Any) -> Registration:
        rows = self.registry.setdefault((op.queue, op.epoch), {})
        key = (op.time_shard, op.shard)
        row = rows.get(key)
        if row is None:
            row = rows[key] = Registration()
        return row

    def _register(self, op: RegisterShard, mask: int) -> None:
        row = self._registration(op)
        for priority in op.priorities:
            row.priorities[priority] = row.priorities.get(priority, 0) | mask

    def _unregister(self, op: UnregisterShard, mask: int) -> None:
        row = self._registration(op)
        row.gone |= mask
        row.gone_us = self.world.now_us

    # ── conditional mutations ──

    def mutate(self, op: Mutate, reach: int) -> bool:
        """Decide a mutation, and commit it on `reach`, now."""
        part = self.part(op.wide_row)
        part.expire(self.world.now_us)
        self._finish(op.wide_row, part)
        if not self.conditions_hold(part, op):
            return False
        self._decide(op, part, reach)
        return True

    def accept(self, op: Mutate) -> None:
        """A minority accepts a mutation whose coordinator then is gone."""
        part = self.part(op.wide_row)
        part.expire(self.world.now_us)
        self._finish(op.wide_row, part)
        if self.conditions_hold(part, op):
            part.accepted = op

    def _finish(self, wide_row: WideRow, part: Part) -> None:
        """What every serial operation does first: finish what it finds, and commit the last decision."""
        op, part.accepted = part.accepted, None
        if op is not None and self.rng.random() < FINISHED:
            self.world.note("", "FINISHED", op)
            self._decide(op, part, self._pair())
        last = len(part.commits) - 1
        if last >= 0 and any(last in lacking for lacking in part.lacking):
            part.arrive(last, self._pair())

    @staticmethod
    def conditions_hold(part: Part, op: Mutate) -> bool:
        """Whether fence and revisions are as expected."""
        state = part.state
        if not op.may_lock(state.lock):
            return False
        for expect_rev, row in op.slots:
            stored = state.slots.get((row.priority, row.number))
            if (stored.rev if stored else None) != expect_rev:
                return False
        return True

    def _decide(self, op: Mutate, part: Part, reach: int) -> None:
        before = dict(part.state.slots)
        clock_us = self.world.now_us + self.skews_us[self._any_up()]
        ballot_us = max(part.ballot_us + 1, clock_us)
        number = part.decide(Commit(op, ballot_us, self.world.now_us), reach, self.marker_us)
        for bit in BITS:
            if not reach & bit:
                self._deliver_later(part.arrive, number, bit)
        self.oracle.mutated(op, before, part)

    # ── what the oracle asks ──

    def registered(self, partition: str, queue: QueueRow) -> list[WideRow]:
        """Wide rows that the registry lists, in epochs that readers still read.

        A registration that lands after its epoch was closed (never an acknowledged one) stays for ever.
        """
        return [
            WideRow(name, time_shard, shard)
            for (name, epoch), rows in self.registry.items()
            if name == partition
            and (epoch >= queue.oldest_epoch or -(1 << 61) < epoch <= queue.oldest_open_epoch)
            for (time_shard, shard), row in rows.items()
            if not row.gone and any(row.priorities.values())
        ]

    def live(self, partition: str) -> list[tuple[WideRow, int, int]]:
        """Messages that are live in the end."""
        return [
            (wide_row, priority, id_)
            for wide_row, part in self.parts.items()
            if wide_row.queue == partition
            for priority in part.messages
            for id_ in part.alive(priority)
        ]
