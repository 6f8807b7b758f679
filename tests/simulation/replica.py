"""What three replicas hold, as bit masks: bit r of a mask says that replica r has a write.

Correctness hangs on write timestamps, and those follow from the key: a message, body or registry row is
inserted at the time of its id (or time shard) and deleted one µs later; marks of a pack are written at the
time of its ids, so that no mark outlives the row's tombstone. So no cell needs a timestamp of its own; who
has which part of the insert, which marks and the delete is the whole state. A read by quorum looks at two
bits of each, and read repair sets them: those of the columns that were read. A partition tombstone is a
floor per replica, and swallows what is older. Lock, cursors and slots are written by Paxos only, whose
commits have one order in a partition: each replica is described by the commits that it lacks.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Any

from cqueue import ids
from cqueue.store.memory_rows import merge
from cqueue.store.operations import CursorRow, Head, LockRow, MessageRow, Mutate, SlotRow

ALL = 7
REPLICAS = (0, 1, 2)
BITS = (1, 2, 4)
PAIRS = {7: (3, 5, 6), 3: (3,), 5: (5,), 6: (6,)}
"""Quorums among the replicas that are up."""

HERE, GONE, WHOLE = 1, 2, 4
Seen = dict[int, tuple[int, frozenset[int]]]
"""What one replica said of each row: HERE, WHOLE, GONE, as far as they apply; and its marks."""
NO_MARKS: frozenset[int] = frozenset()
PLACES = 256
"""A mark is first * PLACES + last: the places of a pack that were deleted."""


class Cell:
    """A row written by plain mutations: who has which part of it, who its delete, and when it was deleted.

    here: who has what a read of ids repairs: that the row exists, and its format.
    whole: who has all columns of the insert.
    marks: who has which element of `gone`.
    """

    __slots__ = ("gone", "gone_us", "here", "marks", "row", "whole")

    def __init__(self) -> None:
        self.row: Any = None
        self.here = self.whole = self.gone = self.gone_us = 0
        self.marks: dict[int, int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no replica knows anything of it."""
        return not (self.here or self.gone or self.marks)

    def marks_of(self, mask: int) -> frozenset[int]:
        """The marks that any of these replicas has."""
        return frozenset(mark for mark, known in self.marks.items() if known & mask)


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
        elif cell.row is not row and cell.row != row:
            cell.row = merge(cell.row, row) if isinstance(row, MessageRow) else max(cell.row, row)
        cell.here |= mask
        cell.whole |= mask

    def delete(self, id_: int, at_us: int, mask: int, now_us: int) -> None:
        """Delete a row on some replicas; a tombstone older than the row does nothing."""
        if at_us >= ids.time_us(id_):
            cell = self._cell(id_)
            cell.gone |= mask
            cell.gone_us = now_us

    def mark(self, id_: int, marks: Iterable[int], mask: int) -> None:
        """Add marks to a row on some replicas, at the time of its id: a row that is not there appears."""
        cell = self._cell(id_)
        for mark in marks:
            cell.marks[mark] = cell.marks.get(mark, 0) | mask

    def look(self, wanted: Any, bit: int) -> Seen:
        """What one replica says of these ids."""
        cells, seen = self.cells, {}
        for id_ in wanted:
            cell = cells.get(id_)
            if cell is not None:
                said = (HERE if cell.here & bit else 0) | (GONE if cell.gone & bit else 0)
                said |= WHOLE if cell.whole & bit else 0
                seen[id_] = said, cell.marks_of(bit) if cell.marks else NO_MARKS
        return seen

    def between(self, after: int, upto: int) -> list[int]:
        """All ids with after < id <= upto that any replica has heard of."""
        order = self.order
        return order[bisect_right(order, after) : bisect_right(order, upto)]

    def read(self, wanted: Any, view: View, limit: int = 0, *, whole: bool = True) -> list[tuple[Any, ...]]:
        """Those rows that a quorum shows, as stored columns and `gone`, at most `limit`, repairing them.

        whole: with all columns. Else id, format and `gone`: no others are repaired either.
        """
        cells, quorum, seen, floor_us = self.cells, view.quorum, view.seen, view.floor_us
        repaired = view.repaired
        found: list[tuple[Any, ...]] = []
        for id_ in wanted:
            cell = cells.get(id_)
            if cell is None:
                continue
            here, all_, gone = cell.here & quorum, cell.whole & quorum, cell.gone & quorum
            marks = cell.marks_of(quorum) if cell.marks else NO_MARKS
            if seen is not None:
                said, more = seen.get(id_, (0, NO_MARKS))
                here, gone, all_ = here or said & HERE, gone or said & GONE, all_ or said & WHOLE
                marks |= more
            if here:
                cell.here |= repaired
                if all_ and whole:
                    cell.whole |= repaired
            for mark in marks if repaired else ():
                cell.marks[mark] = cell.marks.get(mark, 0) | repaired
            if gone:
                cell.gone |= repaired
            elif (here or marks) and (not floor_us or ids.time_us(id_) > floor_us):
                found.append(_columns(cell, id_, here, all_, marks, whole=whole))
                if len(found) == limit:
                    break
        return found

    def present(self, wanted: Any, view: View) -> list[int]:
        """Those of these rows, each of one column, that a quorum shows, repairing them."""
        cells, floor_us, found = self.cells, view.floor_us, list[int]()
        for id_ in wanted:
            cell = cells.get(id_)
            if cell is None:
                continue
            if cell.here & view.quorum:
                cell.here |= view.repaired
                cell.whole |= view.repaired
            if cell.gone & view.quorum:
                cell.gone |= view.repaired
            elif cell.here & view.quorum and (not floor_us or ids.time_us(id_) > floor_us):
                found.append(id_)
        return found

    def alive(self, floor_us: int = 0) -> list[int]:
        """Ids of messages that some replica has and nobody has deleted: what every read finds in the end."""
        found = []
        for id_, cell in self.cells.items():
            if cell.whole and not cell.gone and (not floor_us or ids.time_us(id_) > floor_us):
                found += _left_of(id_, cell) if ids.is_packed(id_) else (id_,)
        return found

    def purge(self, bit: int, before_us: int, floor_us: int = 0) -> None:
        """Compaction on one replica: old tombstones go, with all that they cover."""
        for id_, cell in list(self.cells.items()):
            if (cell.gone & bit and cell.gone_us < before_us) or (floor_us and ids.time_us(id_) <= floor_us):
                cell.here &= ~bit
                cell.whole &= ~bit
                cell.gone &= ~bit
                cell.marks = {mark: mask & ~bit for mark, mask in cell.marks.items() if mask & ~bit}
                if cell.is_empty:
                    del self.cells[id_]
                    self.order.remove(id_)

    def level(self, good: int) -> None:
        """Repair: all replicas get what any of `good` has, and nothing else."""
        for cell in self.cells.values():
            cell.here = ALL if cell.here & good else 0
            cell.whole = ALL if cell.whole & good else 0
            cell.gone = ALL if cell.gone & good else 0
            cell.marks = {mark: ALL for mark, mask in cell.marks.items() if mask & good}


def _columns(cell: Cell, id_: int, here: int, whole_: int, marks: Any, *, whole: bool) -> tuple[Any, ...]:
    """A row as Cassandra answers it: what no replica of the quorum has is null."""
    gone = marks or None
    if not whole:
        return id_, cell.row.format if here else None, gone
    if whole_:
        return (*cell.row, gone)
    priority = cell.row.priority if cell.row is not None else 0
    return (priority, id_, *NULLS, cell.row.format if here else None, gone)


NULLS = (None,) * 9
"""Body to expires."""


def _left_of(pack: int, cell: Cell) -> Iterable[int]:
    """The messages of a pack that no mark names. Not by the code that is judged here."""
    every = range(pack, pack + ids.pack_size(pack))
    if not cell.marks:
        return every
    left = set(every)
    for mark in cell.marks:
        first, last = divmod(mark, PLACES)
        left.difference_update(range(pack + first, pack + last + 1))
    return sorted(left)


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
            self.lock = op.lock_beside(self.lock)
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
