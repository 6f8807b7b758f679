"""What three replicas hold, as bit masks: bit r of a mask says that replica r has a write.

Correctness hangs on write timestamps, and those follow from the key: a message, body or registry row is
inserted at the time of its id (or time shard) and deleted one µs later. So no cell needs a timestamp of
its own; who has seen its insert and who its delete is the whole state, a read by quorum looks at two
bits of each, and read repair sets them. A partition tombstone is a floor per replica, and swallows what
is older. Lock, cursors and slots are written by Paxos only, whose commits have one order in a partition:
each replica is described by the commits that it lacks.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

from cqueue import ids
from cqueue.store.memory_rows import merge
from cqueue.store.operations import CursorRow, Head, LockRow, MessageRow, Mutate, SlotRow

ALL = 7
REPLICAS = (0, 1, 2)
BITS = (1, 2, 4)
PAIRS = {7: (3, 5, 6), 3: (3,), 5: (5,), 6: (6,)}
"""Quorums among the replicas that are up."""

HERE, GONE = 1, 2
Seen = dict[int, int]
"""What one replica said of each id: HERE, GONE, or both."""


class Cell:
    """A row written by plain mutations: who has its insert, who its delete, and when it was deleted."""

    __slots__ = ("gone", "gone_us", "here", "row")

    def __init__(self) -> None:
        self.row: Any = None
        self.here = self.gone = self.gone_us = 0


class Rows:
    """Rows of one partition and priority, in order of their ids."""

    __slots__ = ("cells", "order")

    def __init__(self) -> None:
        self.cells: dict[int, Cell] = {}
        self.order: list[int] = []

    def _cell(self, id_: int) -> Cell:
        cell = self.cells.get(id_)
        if cell is None:
            cell = self.cells[id_] = Cell()
            insort(self.order, id_)
        return cell

    def insert(self, id_: int, row: Any, mask: int) -> None:
        """Store a row on some replicas. Two versions of one row are merged at once, wherever they are."""
        cell = self._cell(id_)
        if cell.row is None:
            cell.row = row
        elif cell.row is not row:
            cell.row = merge(cell.row, row) if isinstance(row, MessageRow) else max(cell.row, row)
        cell.here |= mask

    def delete(self, id_: int, at_us: int, mask: int, now_us: int) -> None:
        """Delete a row on some replicas; a tombstone older than the row does nothing."""
        if at_us >= ids.time_us(id_):
            cell = self._cell(id_)
            cell.gone |= mask
            cell.gone_us = now_us

    def look(self, wanted: Any, bit: int) -> Seen:
        """What one replica says of these ids."""
        cells, seen = self.cells, {}
        for id_ in wanted:
            cell = cells.get(id_)
            if cell is not None:
                seen[id_] = (HERE if cell.here & bit else 0) | (GONE if cell.gone & bit else 0)
        return seen

    def between(self, after: int, upto: int) -> list[int]:
        """All ids with after < id <= upto that any replica has heard of."""
        order = self.order
        return order[bisect_right(order, after) : bisect_right(order, upto)]

    def read(self, wanted: Any, view: View, limit: int = 0) -> list[int]:
        """Those ids that are live in what the replicas of a quorum say, repairing them."""
        cells, quorum, seen, floor_us = self.cells, view.quorum, view.seen, view.floor_us
        repaired = view.repaired
        found: list[int] = []
        for id_ in wanted:
            cell = cells.get(id_)
            if cell is None:
                continue
            here, gone = cell.here & quorum, cell.gone & quorum
            if seen is not None:
                said = seen.get(id_, 0)
                here, gone = here or said & HERE, gone or said & GONE
            if here:
                cell.here |= repaired
            if gone:
                cell.gone |= repaired
            elif here and (not floor_us or ids.time_us(id_) > floor_us):
                found.append(id_)
                if len(found) == limit:
                    break
        return found

    def alive(self, floor_us: int = 0) -> list[int]:
        """Ids that somebody has and nobody has deleted: what every read will find in the end."""
        return [
            id_
            for id_, cell in self.cells.items()
            if cell.here and not cell.gone and (not floor_us or ids.time_us(id_) > floor_us)
        ]

    def purge(self, bit: int, before_us: int, floor_us: int = 0) -> None:
        """Compaction on one replica: old tombstones go, with all that they cover."""
        for id_, cell in list(self.cells.items()):
            if (cell.gone & bit and cell.gone_us < before_us) or (floor_us and ids.time_us(id_) <= floor_us):
                cell.here &= ~bit
                cell.gone &= ~bit
                if not cell.here and not cell.gone:
                    del self.cells[id_]
                    self.order.remove(id_)

    def level(self, good: int) -> None:
        """Repair: all replicas get what any of `good` has, and nothing else."""
        for cell in self.cells.values():
            cell.here = ALL if cell.here & good else 0
            cell.gone = ALL if cell.gone & good else 0


class View:
    """A quorum as one read sees it. seen: what a replica said that was asked earlier than the others."""

    __slots__ = ("floor_us", "quorum", "repaired", "seen")

    def __init__(self, quorum: int, seen: Seen | None, floor_us: int, repaired: int) -> None:
        self.quorum = quorum
        self.seen = seen
        self.floor_us = floor_us
        self.repaired = repaired


class Registration:
    """A row of the registry: who has which priority, who its delete."""

    __slots__ = ("gone", "gone_us", "priorities")

    def __init__(self) -> None:
        self.priorities: dict[int, int] = {}
        self.gone = self.gone_us = 0

    def read(self, view: View) -> frozenset[int] | None:
        """The priorities, or None if the row is not live; repairs."""
        if self.gone & view.quorum:
            self.gone |= view.repaired
            return None
        found = [p for p, mask in self.priorities.items() if mask & view.quorum]
        for priority in found:
            self.priorities[priority] |= view.repaired
        return frozenset(found) if found else None

    def purge(self, bit: int, before_us: int) -> None:
        """As `Rows.purge`."""
        if self.gone & bit and self.gone_us < before_us:
            self.gone &= ~bit
            for priority in self.priorities:
                self.priorities[priority] &= ~bit

    def level(self, good: int) -> None:
        """As `Rows.level`."""
        self.gone = ALL if self.gone & good else 0
        for priority, mask in self.priorities.items():
            self.priorities[priority] = ALL if mask & good else 0


class Commit:
    """A conditional mutation that was decided: its timestamps are its ballot's."""

    __slots__ = ("ballot_us", "decided_us", "op")

    def __init__(self, op: Mutate, ballot_us: int, decided_us: int) -> None:
        self.op = op
        self.ballot_us = ballot_us
        self.decided_us = decided_us


class HeadState:
    """Lock, cursors and slots: what a sequence of commits makes of them."""

    __slots__ = ("cursors", "expires_us", "lock", "slots")

    def __init__(self) -> None:
        self.lock: LockRow | None = None
        self.expires_us: int | None = None
        self.slots: dict[tuple[int, int], SlotRow] = {}
        self.cursors: dict[int, CursorRow] = {}

    def apply(self, commit: Commit, marker_us: int) -> None:
        """Write one commit; all later ones have higher timestamps."""
        op = commit.op
        if op.retire:  # the partition delete, just below the ballot
            self.slots, self.cursors, self.lock = {}, {}, None
        if op.lock is not None:
            self.lock = op.lock
            self.expires_us = commit.ballot_us + marker_us if op.retire else None
            for cursor in op.cursors:
                self.cursors[cursor.priority] = cursor
        for _, row in op.slots:
            self.slots[row.priority, row.number] = row

    def head(self, now_us: int) -> Head:
        """As a read returns it."""
        lock = None if self.expires_us is not None and now_us >= self.expires_us else self.lock
        return Head(lock, dict(self.cursors), tuple(self.slots.values()))


class Part:
    """One wide row with its bodies."""

    __slots__ = (
        "accepted", "ballot_us", "bodies", "body_floors", "commits", "floors", "head", "lacking", "messages",
        "state",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages: dict[int, Rows] = {}
        self.bodies = Rows()
        self.floors = [0, 0, 0]  # newest partition delete of messages, by replica
        self.body_floors = [0, 0, 0]
        self.commits: list[Commit] = []
        self.lacking: tuple[set[int], set[int], set[int]] = (set(), set(), set())
        self.state = HeadState()
        self.head = Head()
        self.ballot_us = 0
        self.accepted: Mutate | None = None  # by too few to be decided

    def of(self, priority: int) -> Rows:
        """The messages of a priority."""
        rows = self.messages.get(priority)
        if rows is None:
            rows = self.messages[priority] = Rows()
        return rows

    def floor_us(self, mask: int) -> int:
        """The newest partition delete that a quorum knows of."""
        if not any(self.floors):
            return 0
        return max(floor for bit, floor in zip(BITS, self.floors, strict=True) if mask & bit)

    def alive(self, priority: int) -> list[int]:
        """Messages that are live in the end."""
        rows = self.messages.get(priority)
        return rows.alive(max(self.floors)) if rows else []

    def expire(self, now_us: int) -> None:
        """The marker of a retired wide row goes when its time is over."""
        state = self.state
        if state.expires_us is not None and now_us >= state.expires_us:
            state.lock = state.expires_us = None
            self.head = state.head(now_us)

    def decide(self, commit: Commit, reach: int, marker_us: int) -> int:
        """A mutation is decided, and committed on some replicas; its number."""
        number = len(self.commits)
        self.commits.append(commit)
        for lacking in self.lacking:
            lacking.add(number)
        self.state.apply(commit, marker_us)
        self.head = self.state.head(0)
        self.ballot_us = commit.ballot_us
        self.arrive(number, reach)
        return number

    def arrive(self, number: int, mask: int) -> None:
        """A commit reaches some replicas."""
        commit = self.commits[number]
        for replica, bit in enumerate(BITS):
            if mask & bit and number in self.lacking[replica]:
                self.lacking[replica].discard(number)
                if commit.op.retire:
                    self.floors[replica] = max(self.floors[replica], commit.ballot_us - 1)

    def merged(self, lacking: set[int], now_us: int, marker_us: int) -> Head:
        """The head in the eyes of a quorum that lacks some commits."""
        if not lacking:
            return self.head
        state = HeadState()
        for number, commit in enumerate(self.commits):
            if number not in lacking:
                state.apply(commit, marker_us)
        return state.head(now_us)

    def purge(self, replica: int, before_us: int) -> None:
        """Compaction on one replica."""
        bit = BITS[replica]
        floor_us = 0
        for number, commit in enumerate(self.commits):
            old = commit.op.retire and commit.decided_us < before_us
            if old and number not in self.lacking[replica]:
                floor_us, self.floors[replica] = self.floors[replica], 0
                self.lacking[replica].update(range(number))
                self.lacking[replica].add(number)
        for rows in self.messages.values():
            rows.purge(bit, before_us, floor_us)
        self.bodies.purge(bit, before_us)

    def level(self, good: int) -> None:
        """Repair: all replicas get what any of `good` has, and nothing else."""
        sets = [self.lacking[r] for r in REPLICAS if good & BITS[r]]
        common = set.intersection(*sets)
        self.lacking = (set(common), set(common), set(common))
        self.floors = [max(self.floors[r] for r in REPLICAS if good & BITS[r])] * 3
        self.body_floors = [max(self.body_floors[r] for r in REPLICAS if good & BITS[r])] * 3
        for rows in (*self.messages.values(), self.bodies):
            rows.level(good)
