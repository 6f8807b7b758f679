"""The one mutation of a claim while it is being put together: pure bookkeeping over what was read.

Rules kept here, each with a test that fails without it: an id that any slot lists is not claimed
again; every slot is overwritten on the condition of its revision; an id leaves a slot only when its
row is dead, or by being listed elsewhere in this mutation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from cqueue import ids
from cqueue.protocol import policy, sanity
from cqueue.protocol.disposition import Disposition, disposition
from cqueue.protocol.lease import Lease, SuspectGate, Taken
from cqueue.protocol.lock import share
from cqueue.protocol.sanity import is_lost, restarted
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.view import Ahead, RowView
from cqueue.protocol.work import Reason
from cqueue.store.operations import (
    CursorRow,
    Head,
    LockRow,
    LockState,
    MessageRow,
    Mutate,
    SlotChange,
    SlotRow,
    SlotState,
    tallies,
    wrapped,
)

STAY_MS = 250
"""How long a lock is kept between two claims of a holder that is expected back at once."""
FREED_AT_ONCE = 3
"""Finished slots that a claim frees on the way, besides those that it uses again: each takes it longer."""
MAX_CLAIM_BYTES = 16 << 20
"""Bodies claimed at once, the last one on top."""
MOST_LISTED = 1000
"""Messages of one slot that a claim writes: whoever takes over an expired one reads all their rows."""

MOST_NEW = 4
"""Slots that a claim makes at once, or little more: holders who make one meanwhile stay above."""


@dataclass(slots=True)
class Claim:
    """What a claim gave: messages to deliver, to bury, and such whose own time to live is over."""

    taken: list[Taken] = field(default_factory=list)
    dead: list[Taken] = field(default_factory=list)
    expired: list[Taken] = field(default_factory=list)
    more: bool = False  # whether there is more to take where these came from
    contended: bool = False  # somebody else has the wide row at the moment
    reason: Reason | None = None  # why the consumer looked there


@dataclass(slots=True)
class Grant:
    """Messages that will be ours under one slot, once the mutation is known to be applied."""

    slot: SlotRow
    rows: Sequence[MessageRow]
    suspect: bool


class HeadDraft:
    """The head of a wide row: as it was read, and what the mutation changes in it."""

    def __init__(self, head: Head, view: RowView, owner: bytes, now_us: int) -> None:
        self.owner = owner
        self.now_us = now_us
        self.cursors = dict(head.cursors)
        self.moved: dict[int, CursorRow] = {}
        self.slots = {(slot.priority, slot.number): slot for slot in head.slots}
        self.changes: dict[tuple[int, int], SlotChange] = {}
        self.finished = self._finished(view.finished)
        self.listed: dict[int, set[int]] = {}
        self.skip_listed(head)
        for at in () if view.open else head.cursors.values():
            if is_lost(at, now_us):
                self._place(restarted(at, now_us))

    def _finished(self, leases: Iterable[Lease]) -> dict[tuple[int, int], Lease]:
        """Slots of ours whose messages are all acked, unless somebody else has changed them since."""
        return {
            key: lease
            for lease in leases
            if lease.is_slot(self.slots.get(key := (lease.slot.priority, lease.slot.number)))
        }

    def left_with(self, lock: LockRow) -> Head:
        """The head as the mutation leaves it, with a tally of the lock that makes the sum 0.

        Holders that change slots meanwhile leave the sum of those as it is.
        """
        cursors, slots = {**self.cursors, **self.moved}, policy.slots_after(self.slots, self.changes)
        tally = wrapped(-tallies(cursors.values(), slots.values()))
        return Head(lock._replace(tally=tally), cursors, tuple(slots.values()))

    # ── what slots list ──

    def skip_listed(self, head: Head) -> None:
        """What any slot lists, expired or not, may not be claimed from the messages."""
        for slot in head.slots:
            if policy.is_skipped(slot, self.now_us // 1000):
                self.listed.setdefault(slot.priority, set()).update(slot.ids)

    def unlisted(self, priority: int, ids_: Iterable[int]) -> list[int]:
        """Those ids that no slot lists."""
        listed = self.listed.get(priority, ())
        return [id_ for id_ in ids_ if id_ not in listed]

    def without_listed(self, ahead: Ahead) -> Ahead:
        """Those of these messages that no slot lists."""
        listed = self.listed.get(ahead.priority, set())
        return ahead._replace(rows=policy.unlisted(ahead.rows, listed)) if listed else ahead

    def in_use(self) -> list[SlotRow]:
        """Slots that hold messages, our finished ones left out."""
        return [slot for key, slot in self.slots.items() if slot.in_use and key not in self.finished]

    # ── slots ──

    def list_in(self, slot: SlotRow) -> SlotRow:
        """Write a slot that lists messages; as it will be."""
        self.listed.setdefault(slot.priority, set()).update(slot.ids)
        return self._overwrite(slot)

    def keep(self, slot: SlotRow, ids_: Sequence[int]) -> None:
        """Let `slot` list only `ids_` from now on; with none left it is free."""
        rest = policy.still_listed(ids_)
        self._overwrite(slot._replace(ids=rest) if rest else freed(slot))

    def free_finished(self, most: int | None) -> None:
        """Free so many of our finished slots."""
        for key in list(self.finished)[:most]:
            self._overwrite(freed(self.slots[key]))

    def _overwrite(self, row: SlotRow) -> SlotRow:
        key = (row.priority, row.number)
        stored = self.slots.get(key)
        expect = stored.rev if stored else None
        tally = wrapped((stored.tally if stored else 0) + share(self.owner))
        row = row._replace(rev=sanity.next_fence(expect, self.now_us), owner=self.owner, tally=tally)
        self.changes[key] = SlotChange(expect, row)
        self.finished.pop(key, None)
        return row

    def free_number(self, priority: int) -> int:
        """A slot to overwrite: one of ours that is finished, a free one, or else a new one."""
        numbers = {key[1] for key in (*self.slots, *self.changes) if key[0] == priority}
        for number in sorted(numbers):
            key = (priority, number)
            slot = self.slots.get(key)
            idle = key in self.finished or (slot is not None and slot.state is SlotState.FREE)
            if idle and key not in self.changes:
                return number
        return next(number for number in range(len(numbers) + 1) if number not in numbers)

    # ── cursors ──

    def cursor(self, priority: int) -> CursorRow:
        """Where this priority stands."""
        return self.moved.get(priority) or self.cursors.get(priority) or CursorRow(priority, 0, 0)

    def move(self, priority: int, cursor: int, boundary: int) -> None:
        """Move cursor and boundary, never back."""
        old = self.cursor(priority)
        cursor = policy.cursor_at(cursor, boundary)
        new = old._replace(cursor=max(cursor, old.cursor), boundary=max(boundary, old.boundary))
        if new != old:
            self._place(new)

    def _place(self, at: CursorRow) -> None:
        stored = self.cursors.get(at.priority)
        tally = wrapped((stored.tally if stored else 0) + share(self.owner))
        self.moved[at.priority] = at._replace(tally=tally)


@dataclass(slots=True)
class Learned:
    """What a claim's reads of messages have shown, for the claims after it."""

    next: Ahead | None = None  # where the next claim goes on, with what was read of it already
    floors: dict[int, int] = field(default_factory=dict)  # of an open wide row
    took: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Priority, old boundary, what lay behind it."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A claim on one wide row: what it is to take, and what it has taken so far."""

    spec: QueueSpec
    view: RowView
    now_us: int
    head: HeadDraft
    want: int
    stay: bool
    grants: list[Grant] = field(default_factory=list)
    learned: Learned = field(default_factory=Learned)
    more: bool = False
    reserved: bool = False  # the right to take a suspect, with the gate
    retire: bool = False

    @property
    def left(self) -> int:
        """How many more it takes; a suspect comes alone."""
        if any(grant.suspect for grant in self.grants):
            return 0
        return self.want - sum([len(grant.rows) for grant in self.grants])

    @property
    def listable(self) -> int:
        """How many messages may be taken over from slots: as many as a slot lists."""
        return min(self.left, MOST_LISTED - (self.want - self.left))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write: nothing to take, no slot to change, no cursor to move."""
        head = self.head
        return not (self.grants or head.changes or head.finished or head.moved or self.retire)

    def grant(
        self,
        priority: int,
        rows: Sequence[MessageRow],
        attempt: int,
        *,
        within: SlotRow | None = None,
        died_at_ms: int | None = None,
        suspect: bool = False,
    ) -> None:
        """List `rows` in a slot of ours: in place of the slot `within`, else in a free one, or several."""
        for some in [rows] if within else _portions(rows):
            slot = SlotRow(
                priority=priority,
                number=within.number if within else self.head.free_number(priority),
                state=SlotState.CLAIMED,
                ids=tuple([row.id for row in some]),
                due_ms=self.now_us // 1000 + self.spec.visibility_ms,
                attempt=attempt,
                owner=self.head.owner,
                rev=0,  # set when it is written
                died_at_ms=died_at_ms,
            )
            self.grants.append(Grant(self.head.list_in(slot), some, suspect))

    @property
    def renews(self) -> bool:
        """Whether the lock is kept, as there is more to take."""
        return self.stay and self.more and bool(self.grants) and not self.retire

    def mutation(self) -> Mutate:
        """Everything in one conditional batch: slots, cursors, and the lock released or renewed."""
        head, known = self.head, self.view.known
        head.free_finished(FREED_AT_ONCE if self.grants else None)
        until_ms = self.now_us // 1000 + min(self.spec.lease_ms, STAY_MS) if self.renews else 0
        state = LockState.RETIRED if self.retire else LockState.LOCKED if until_ms else LockState.FREE
        lock = LockRow(state, head.owner, until_ms, sanity.next_fence(known.fence, self.now_us))
        if self.retire:  # nothing else is left
            return Mutate(self.view.wide_row, lock=lock, expect_fence=known.fence, retire=True)
        return Mutate(
            self.view.wide_row,
            lock=head.left_with(lock).lock,
            expect_fence=known.fence,
            cursors=tuple(head.moved.values()),
            slots=tuple(head.changes.values()),
        )

    def claim(self, gate: SuspectGate, fence: int) -> Claim:
        """What is ours now that the mutation is applied."""
        claim = Claim(more=self.more and bool(self.grants))
        lists = {
            Disposition.DELIVER: claim.taken, Disposition.BURY: claim.dead, Disposition.DELETE: claim.expired
        }  # fmt: skip
        for grant in self.grants:
            lease = Lease(self.view.wide_row, grant.slot, fence, gate if grant.suspect else None)
            if grant.suspect:
                gate.hold(lease)
            dying = grant.slot.died_at_ms is not None
            if not dying and {row.expires for row in grant.rows} <= {None}:
                claim.taken += [Taken(row, lease) for row in grant.rows]
                continue
            for row in grant.rows:
                expired = row.expires is not None and row.expires <= self.now_us // 1000
                goes = disposition(self.spec, expired=expired, dying=dying)
                lists[goes].append(Taken(row, lease))
        return claim


def _portions(rows: Sequence[MessageRow]) -> Iterator[Sequence[MessageRow]]:
    """Rows in parts that a slot may list; messages that share a row stay together."""
    start = 0
    while (end := start + MOST_LISTED) < len(rows):
        while end > start + 1 and ids.share_row(rows[end - 1].id, rows[end].id):
            end -= 1
        yield rows[start:end]
        start = end
    yield rows[start:]


def freed(slot: SlotRow) -> SlotRow:
    """The slot with nothing in it: an empty list and its state, never null."""
    return slot._replace(state=SlotState.FREE, ids=(), due_ms=0, attempt=0, died_at_ms=None)


def listed_above(slots: Iterable[SlotRow], at: CursorRow) -> set[int]:
    """Ids of a priority above its boundary that slots list: strays that a pass has found."""
    return {
        id_
        for slot in slots
        if slot.priority == at.priority and slot.state is not SlotState.FREE
        if slot.ids and max(slot.ids) > at.boundary
        for id_ in slot.ids
        if id_ > at.boundary
    }


def within_bytes(rows: Sequence[MessageRow], budget: int = MAX_CLAIM_BYTES) -> int:
    """How many of `rows` may be claimed so that their bodies fit into memory: at least one."""
    sizes = [row.size if row.size is not None else len(row.body or b"") for row in rows]
    if sum(sizes) <= budget:
        return len(rows)
    return max(1, bisect_right(list(accumulate(sizes)), budget))
