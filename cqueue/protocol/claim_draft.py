"""Build the one mutation of a claim from what was read: pure bookkeeping, no operations.

Three rules are kept here, and each has a test that fails without it. A claim takes no id that a slot lists.
It overwrites each slot on the condition of the slot's revision. An id leaves a slot only if its row is dead,
or if the same mutation lists the id elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count

from cqueue import ids
from cqueue.protocol import policy
from cqueue.protocol.lease import Lease, SuspectGate, Taken
from cqueue.protocol.lock import tally_share
from cqueue.protocol.policy import Disposition
from cqueue.protocol.row_memory import ReadAhead, RowMemory
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import (
    CursorRow,
    Head,
    LockRow,
    LockState,
    MessageRow,
    Mutate,
    ReadMessages,
    SlotChange,
    SlotRow,
    SlotState,
    tallies,
    wrapped,
)

STAY_MS = 250
"""ms for which a lock is kept between two claims. A consumer that comes back usually does so within 100 ms;
one that died keeps the others waiting no longer than this."""
FREED_AT_ONCE = 3
"""Finished slots that a claim with messages frees, besides those it uses again: each row slows the claim."""
MAX_CLAIM_BYTES = 16 << 20
"""Bytes of bodies that one claim takes, so that they fit into memory; a single larger message still fits."""
MAX_LISTED = 1000
"""Messages that one slot lists at most: taking over an expired slot reads all their rows by id."""

MAX_NEW_SLOTS = 4
"""New slots that a claim usually makes at most. Holders number theirs above these, to avoid clashes."""


@dataclass(slots=True)
class Claim:
    """The result of a claim: messages to deliver (`taken`), to bury (`dead`), and those past their ttl."""

    taken: list[Taken] = field(default_factory=list)
    dead: list[Taken] = field(default_factory=list)
    expired: list[Taken] = field(default_factory=list)
    more: bool = False  # the wide row has more to take
    contended: bool = False  # another consumer holds the wide row at the moment
    told: bool = False  # a hint named the wide row


@dataclass(slots=True)
class Grant:
    """Messages that one slot will list for this consumer, once the mutation is known to be applied."""

    lease: Lease
    rows: Sequence[MessageRow]


class HeadDraft:
    """A wide row's head as it was read, and the changes that the mutation makes."""

    def __init__(self, head: Head, memory: RowMemory, owner: bytes, now_us: int) -> None:
        self.owner = owner
        self.now_us = now_us
        self._read = head
        self.moved: dict[int, CursorRow] = {}
        self.slots = head.by_place()
        self.changes: dict[tuple[int, int], SlotChange] = {}
        self.finished = self._finished(memory.finished)
        self.listed: dict[int, set[int]] = {}
        for slot in head.slots:  # the claim skips all ids that a slot lists, expired or not
            if policy.is_skipped(slot, now_us // 1000):
                self.listed.setdefault(slot.priority, set()).update(slot.ids)
        for at in () if memory.open else head.cursors.values():
            if policy.is_lost(at, now_us):
                self._place(policy.restarted(at, now_us))

    def _finished(self, leases: Iterable[Lease]) -> dict[tuple[int, int], Lease]:
        """Return this consumer's slots with only acked messages, unless another client has changed them."""
        return {
            lease.slot.place: lease for lease in leases if lease.is_slot(self.slots.get(lease.slot.place))
        }

    def left_with(self, lock: LockRow) -> Head:
        """Return the head as the mutation leaves it, with this lock, and a tally of it that makes the sum 0.

        Holders that change slots meanwhile do not change the sum of the slots' tallies.
        """
        cursors, slots = self.cursors, policy.slots_after(self.slots, self.changes)
        tally = wrapped(-tallies(cursors.values(), slots.values()))
        return Head(lock._replace(tally=tally), cursors, tuple(slots.values()))

    def keep_tallies(self) -> LockRow | None:
        """Take back what the changes add to tallies, as no id moves; return the lock as it was read."""
        for at in self.moved.values():
            self.moved[at.priority] = at._replace(tally=self._read.cursor(at.priority).tally)
        for place, (expect, row) in self.changes.items():
            self.changes[place] = SlotChange(expect, row._replace(tally=self._tally(place)))
        return self._read.lock

    # ── what slots list ──

    def unlisted(self, priority: int, ids_: Iterable[int]) -> list[int]:
        """Return the ids that no slot lists."""
        listed = self.listed.get(priority, ())
        return [id_ for id_ in ids_ if id_ not in listed]

    def without_listed(self, ahead: ReadAhead) -> ReadAhead:
        """Return the messages read ahead without those that a slot lists."""
        return ahead._replace(rows=policy.unlisted(ahead.rows, self.listed.get(ahead.priority, set())))

    def in_use(self) -> list[SlotRow]:
        """Return the slots that list messages, without this consumer's finished ones."""
        return [slot for key, slot in self.slots.items() if slot.in_use and key not in self.finished]

    def due_slots(self, spec: QueueSpec) -> list[SlotRow]:
        """Return the slots whose messages may be taken."""
        return [
            slot
            for place, slot in self.slots.items()
            if place not in self.finished and policy.is_slot_due(slot, spec, self.now_us)
        ]

    # ── slots ──

    def list_in(self, slot: SlotRow) -> SlotRow:
        """Add the write of a slot that lists messages; return the slot as it will be stored."""
        self.listed.setdefault(slot.priority, set()).update(slot.ids)
        return self._overwrite(slot)

    def keep(self, slot: SlotRow, ids_: Sequence[int]) -> None:
        """Reduce a slot to `ids_`; free the slot if none are left."""
        rest = policy.still_listed(ids_)
        self._overwrite(slot._replace(ids=rest) if rest else freed(slot))

    def free_finished(self, most: int | None) -> None:
        """Free up to `most` of this consumer's finished slots; None frees all."""
        for key in list(self.finished)[:most]:
            self._overwrite(freed(self.slots[key]))

    def _overwrite(self, row: SlotRow) -> SlotRow:
        stored = self.slots.get(row.place)
        expect = stored.rev if stored else None
        tally = wrapped(self._tally(row.place) + tally_share(self.owner))
        row = row._replace(rev=policy.next_fence(expect, self.now_us), owner=self.owner, tally=tally)
        self.changes[row.place] = SlotChange(expect, row)
        self.finished.pop(row.place, None)
        return row

    def _tally(self, place: tuple[int, int]) -> int:
        stored = self.slots.get(place)
        return stored.tally if stored else 0

    def free_number(self, priority: int) -> int:
        """Return the number of a slot to overwrite: a finished one of this consumer, a free or a new one."""
        numbers = {key[1] for key in (*self.slots, *self.changes) if key[0] == priority}
        for number in sorted(numbers):
            key = (priority, number)
            slot = self.slots.get(key)
            idle = key in self.finished or (slot is not None and slot.state is SlotState.FREE)
            if idle and key not in self.changes:
                return number
        return next(number for number in range(len(numbers) + 1) if number not in numbers)

    # ── cursors ──

    @property
    def cursors(self) -> dict[int, CursorRow]:
        """Return the cursor rows by priority, as the mutation leaves them."""
        return {**self._read.cursors, **self.moved}

    def cursor(self, priority: int) -> CursorRow:
        """Return the cursor row of a priority, as the mutation leaves it."""
        return self.moved.get(priority) or self._read.cursor(priority)

    def move(self, priority: int, cursor: int, boundary: int) -> None:
        """Move cursor and boundary forward, never back."""
        old = self.cursor(priority)
        cursor = policy.cursor_at(cursor, boundary)
        new = old._replace(cursor=max(cursor, old.cursor), boundary=max(boundary, old.boundary))
        if new != old:
            self._place(new)

    def _place(self, at: CursorRow) -> None:
        tally = wrapped(self._read.cursor(at.priority).tally + tally_share(self.owner))
        self.moved[at.priority] = at._replace(tally=tally)


@dataclass(slots=True)
class Learned:
    """What a claim's reads have shown, to be remembered for later claims."""

    next: ReadAhead | None = None  # where the next claim's slice begins, with messages already read of it
    floors: dict[int, int] = field(default_factory=dict)  # of an open wide row, by priority
    took: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """(priority, old boundary, ids passed above that boundary) of each slice."""


@dataclass(slots=True, kw_only=True)
class Draft:
    """A claim on one wide row while it is put together: what it may take, and what it has taken."""

    spec: QueueSpec
    memory: RowMemory
    gate: SuspectGate
    now_us: int
    head: HeadDraft
    want: int
    stay: bool
    grants: list[Grant] = field(default_factory=list)
    learned: Learned = field(default_factory=Learned)
    more: bool = False
    reserved: bool = False  # the gate lets this claim take a suspect
    retire: bool = False  # the mutation drops the wide row
    named: ReadMessages | None = None  # reads what a hint named, beside the mutation

    @property
    def left(self) -> int:
        """Return how many more messages the claim takes: none beside a suspect, which comes alone."""
        if any(grant.lease.suspect for grant in self.grants):
            return 0
        return self.want - sum([len(grant.rows) for grant in self.grants])

    @property
    def listable(self) -> int:
        """Return how many more messages the claim takes over from slots, `MAX_LISTED` in all."""
        return min(self.left, MAX_LISTED - (self.want - self.left))

    @property
    def fence(self) -> int:
        """Return the fence that the mutation sets."""
        return policy.next_fence(self.memory.remembered.fence, self.now_us)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to write: no message taken, no slot changed, no cursor moved."""
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
        abandoned: bool = False,
        due_again_ms: int | None = None,
    ) -> None:
        """List messages in place of the slot `within`, else in one or more free slots."""
        for some in [rows] if within else _portions(rows):
            listed = tuple([row.id for row in some])
            lease = self._lease(priority, listed, attempt, within=within, died_at_ms=died_at_ms)
            lease.gate = self.gate if suspect else None
            lease.abandoned, lease.due_again_ms = abandoned, due_again_ms
            self.grants.append(Grant(lease, some))

    def grant_named(self, priority: int, named: tuple[int, ...]) -> None:
        """List messages in a free slot by their ids; they are read beside the mutation."""
        self.named = ReadMessages(self.memory.wide_row, priority, named)
        self.grants.append(Grant(self._lease(priority, named, 1), ()))

    def _lease(
        self,
        priority: int,
        listed: tuple[int, ...],
        attempt: int,
        *,
        within: SlotRow | None = None,
        died_at_ms: int | None = None,
    ) -> Lease:
        slot = SlotRow(
            priority=priority,
            number=within.number if within else self.head.free_number(priority),
            state=SlotState.CLAIMED,
            ids=listed,
            due_ms=self.now_us // 1000 + self.spec.visibility_ms,
            attempt=attempt,
            owner=self.head.owner,
            rev=0,  # `HeadDraft` sets it
            died_at_ms=died_at_ms,
        )
        return Lease(self.memory.wide_row, self.head.list_in(slot), self.fence, keyed=self.spec.keyed)

    @property
    def renews(self) -> bool:
        """Return whether the lock is kept, because there is more to take."""
        return self.stay and self.more and bool(self.grants) and not self.retire

    def mutation(self) -> Mutate:
        """Return the claim's mutation: one conditional batch of slots, cursors and the lock.

        Where it takes nothing, the fence stands, so that claims of others under way are not in vain.
        """
        head, remembered = self.head, self.memory.remembered
        takes = bool(self.grants or head.changes)  # of slots that it frees now it is the holder
        head.free_finished(FREED_AT_ONCE if self.grants else None)
        until_ms = self.now_us // 1000 + min(self.spec.lease_ms, STAY_MS) if self.renews else 0
        state = LockState.RETIRED if self.retire else LockState.LOCKED if until_ms else LockState.FREE
        lock = LockRow(state, head.owner, until_ms, self.fence)
        if policy.fence_stands(takes=takes, locked=remembered.locked or self.retire):
            lock = head.keep_tallies() or lock
        if self.retire:  # nothing else is left
            return Mutate(self.memory.wide_row, lock=lock, expect_fence=remembered.fence, retire=True)
        return Mutate(
            self.memory.wide_row,
            lock=head.left_with(lock).lock,
            expect_fence=remembered.fence,
            cursors=tuple(head.moved.values()),
            slots=tuple(head.changes.values()),
        )

    def claim(self) -> Claim:
        """Return the claim's result, after the mutation was applied."""
        claim = Claim(more=self.more and bool(self.grants))
        lists = {
            Disposition.DELIVER: claim.taken, Disposition.BURY: claim.dead, Disposition.DELETE: claim.expired
        }  # fmt: skip
        for grant in self.grants:
            lease = grant.lease
            if lease.suspect:
                self.gate.hold(lease)
            if self.named is not None:  # perhaps not all that was named lives
                gone = lease.outstanding.difference([row.id for row in grant.rows])
                self.memory.finished += [lease] if lease.acked(gone) else []
            dying = lease.slot.died_at_ms is not None
            if not dying and {row.expires for row in grant.rows} <= {None}:
                claim.taken += [Taken(row, lease) for row in grant.rows]
                continue
            for row in grant.rows:
                expired = row.expires is not None and row.expires <= self.now_us // 1000
                goes = policy.disposition(self.spec, expired=expired, dying=dying)
                lists[goes].append(Taken(row, lease))
        return claim


def _portions(rows: Sequence[MessageRow]) -> Iterator[Sequence[MessageRow]]:
    """Split messages into parts that one slot may list; messages of one pack stay together."""
    start = 0
    while (end := start + MAX_LISTED) < len(rows):
        while end > start + 1 and ids.share_row(rows[end - 1].id, rows[end].id):
            end -= 1
        yield rows[start:end]
        start = end
    yield rows[start:]


def free_number(slots: Mapping[int, SlotRow], written: Collection[int], pick: int) -> int:
    """Pick the number of a free slot at random, so that holders do not collide; else a new number.

    A new number lies above those that a claim may be about to use.
    slots: those of one priority, by number. written: numbers that the same mutation writes.
    """
    free = [
        number for number, slot in slots.items() if slot.state is SlotState.FREE and number not in written
    ]
    if free:
        return free[pick % len(free)]
    taken = {*slots, *written}
    return next(n for n in count(len(taken) + MAX_NEW_SLOTS + pick % 4) if n not in taken)


def freed(slot: SlotRow) -> SlotRow:
    """Return the slot as free: with an empty list and a state, never null, which would be a tombstone."""
    return slot._replace(state=SlotState.FREE, ids=(), due_ms=0, attempt=0, died_at_ms=None)


def listed_above(slots: Iterable[SlotRow], at: CursorRow, now_us: int) -> set[int]:
    """Return the due ids above a priority's boundary that slots list: strays, and what was put off by id."""
    present = ids.highest_at(now_us)
    return {
        id_
        for slot in slots
        if slot.priority == at.priority and slot.state is not SlotState.FREE
        if slot.ids and max(slot.ids) > at.boundary
        for id_ in slot.ids
        if at.boundary < id_ <= present
    }


def within_bytes(rows: Sequence[MessageRow]) -> int:
    """Return how many of `rows`, at least one, have bodies of `MAX_CLAIM_BYTES` in all."""
    sizes = [row.size if row.size is not None else len(row.body or b"") for row in rows]
    if sum(sizes) <= MAX_CLAIM_BYTES:
        return len(rows)
    return max(1, bisect_right(list(accumulate(sizes)), MAX_CLAIM_BYTES))
