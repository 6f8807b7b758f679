"""What a holder does with its messages: ack, nack, snooze, extend, release.

A message is in the queue if and only if its row is live, so an ack is a delete: plain, idempotent,
good whoever sends it. Everything else changes timeout slots in place, conditional on their
revisions: a stale holder's nack fails, and cannot revive what somebody else has acked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby
from operator import attrgetter
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import policy, sanity
from cqueue.protocol.draft import MOST_NEW, freed
from cqueue.protocol.lease import Change, Lease, Taken
from cqueue.protocol.lock import new_owner, settle, share
from cqueue.protocol.spec import Proto
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    Mutate,
    Now,
    Operation,
    RandomBits,
    ReadHead,
    SlotChange,
    SlotRow,
    SlotState,
    Together,
    WideRow,
    wrapped,
)

ACK_CHUNK = 500
SHARED_MS = 100
"""Nacks of one holder whose due times fall into the same stretch of this length share a slot."""
TRIES = 8
"""How often a change is tried: each time somebody else must have changed the other slot that it needs."""


# ── ack ──


def ack(taken: Sequence[Taken]) -> Proto[list[Lease]]:
    """Delete messages; the leases that have become empty, whose slots can be freed.

    Raises:
        NotDone, OutcomeUnknown: the messages may come again.
    """
    by_lease: dict[Lease, list[Taken]] = {}
    for lease, ones in groupby(taken, attrgetter("lease")):
        by_lease.setdefault(lease, []).extend(ones)
    groups: dict[tuple[WideRow, int], list[Taken]] = {}
    for lease, some in by_lease.items():
        groups.setdefault((lease.wide_row, lease.slot.priority), []).extend(some)
    deletes: list[Operation[None]] = []
    bodies: list[Operation[None]] = []
    for (wide_row, priority), some in groups.items():
        for chunk in _chunks(some):
            deletes.append(DeleteMessages(wide_row, priority, tuple([one.row.id for one in chunk])))
            large = tuple([one.row.id for one in chunk if one.row.size is not None])
            bodies += [DeleteBodies(wide_row, large)] if large else []
    _check_all((yield from Together(tuple(deletes))))
    emptied = [lease for lease, some in by_lease.items() if lease.acked([one.row.id for one in some])]
    if bodies:
        yield from Together(tuple(bodies))  # one that fails is dropped with its wide row
    return emptied


def _chunks(ones: list[Taken]) -> Iterator[list[Taken]]:
    """Parts of about ACK_CHUNK; messages that share a row stay together, so that it can be deleted."""
    start = 0
    if len(ones) > ACK_CHUNK:
        ones = sorted(ones, key=lambda one: one.row.id)
    while start < len(ones):
        end = min(start + ACK_CHUNK, len(ones))
        while end < len(ones) and ids.share_row(ones[end - 1].row.id, ones[end].row.id):
            end += 1
        yield ones[start:end]
        start = end


def _check_all(results: list[Any]) -> None:
    """Raise unless all deletes are stored: not done only if certainly none of them is."""
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return
    doubt = next((error for error in errors if not isinstance(error, NotDone)), None)
    if doubt is None and len(errors) == len(results):
        raise errors[0]
    raise OutcomeUnknown(f"{len(errors)} of {len(results)} deletes failed") from (doubt or errors[0])


def free(leases: Sequence[Lease]) -> Proto[None]:
    """Free the slots of finished leases of one wide row, those left out that somebody else has changed."""
    if (yield from _freed(leases)):
        return
    slots = yield from _slots(leases[0].wide_row)
    mine = [lease for lease in leases if lease.is_slot(slots.get((lease.slot.priority, lease.slot.number)))]
    if mine:
        yield from _freed(mine)


def _freed(leases: Sequence[Lease]) -> Proto[bool]:
    """False if the slot of one of them is not as its lease knows it."""
    now_us = yield from Now()
    owner = yield from new_owner()
    slots = [SlotChange(lease.slot.rev, freed(lease.slot)) for lease in leases]
    return (yield from settle(Mutate(leases[0].wide_row, slots=_stamped(slots, owner, now_us))))


# ── nack, snooze, extend, release ──


class Placement(NamedTuple):
    """How messages are to be listed: state, due, the attempts they then have had, and since when they die."""

    state: SlotState
    due_ms: int
    attempt: int
    died_at_ms: int | None = None


class Shared:
    """Waiting slots that one holder wrote lately, so that its nacks of 100 ms share one."""

    def __init__(self) -> None:
        self._slots: dict[tuple[WideRow, int, Placement], SlotRow] = {}

    def find(self, lease: Lease, placement: Placement) -> SlotRow | None:
        """The slot to join, if there is one."""
        return self._slots.get((lease.wide_row, lease.slot.priority, placement))

    def store(self, lease: Lease, placement: Placement, slot: SlotRow, now_ms: int) -> None:
        """Remember a slot; those that are due are forgotten, somebody has taken them."""
        self._slots = {key: value for key, value in self._slots.items() if value.due_ms > now_ms - SHARED_MS}
        self._slots[lease.wide_row, lease.slot.priority, placement] = slot

    def forget(self, lease: Lease, placement: Placement) -> None:
        """The slot was changed by somebody else."""
        self._slots.pop((lease.wide_row, lease.slot.priority, placement), None)


def nack(
    lease: Lease, ids_: Iterable[int], delay_ms: int, shared: Shared, *, count: bool = True
) -> Proto[None]:
    """Make messages of one lease available again after `delay_ms`; `count=False` uses no attempt (snooze).

    Raises:
        LeaseLost: the slot belongs to somebody else.
        NotDone, OutcomeUnknown: the messages stay, or may stay, with the lease.
    """
    due_ms = (yield from Now()) // 1000 + delay_ms
    up = SHARED_MS - 1 if delay_ms else 0
    attempt = lease.attempt if count else lease.attempt - 1
    placement = Placement(SlotState.WAITING, (due_ms + up) // SHARED_MS * SHARED_MS, attempt)
    yield from place(lease, ids_, placement, shared)


def release(lease: Lease) -> Proto[None]:
    """Give back messages that were not started: due now, no attempt used. They stay listed."""
    now_ms = (yield from Now()) // 1000
    yield from place(lease, lease.slot.ids, Placement(SlotState.WAITING, now_ms, lease.attempt - 1))


def extend(lease: Lease, duration_ms: int) -> Proto[None]:
    """Hold the lease until `duration_ms` from now, for all its messages; it is never shortened.

    Raises:
        LeaseLost: the slot belongs to somebody else.
        NotDone, OutcomeUnknown: the timeout is, or may be, as it was.
    """
    due_ms = max(lease.due_ms, (yield from Now()) // 1000 + duration_ms)
    placement = Placement(SlotState.CLAIMED, due_ms, lease.attempt, lease.slot.died_at_ms)
    yield from place(lease, lease.slot.ids, placement)


def place(
    lease: Lease, ids_: Iterable[int], placement: Placement, shared: Shared | None = None
) -> Proto[SlotRow]:
    """List messages of a lease as `placement` says, in one mutation, conditional on all revisions it needs.

    Returns the slot that lists them now: the lease's own if that lists nothing else, and none is shared.

    Raises:
        LeaseLost: none of them is outstanding, or the slot belongs to somebody else.
        NotDone, OutcomeUnknown: they are, or may be, listed as before.
    """
    asked = frozenset(ids_)
    for _ in range(TRIES):
        moving = lease.held(asked)
        if lease.gate is not None and placement.state is SlotState.CLAIMED:
            lease.gate.extend(lease, placement.due_ms)
        now_us = yield from Now()
        owner = yield from new_owner()
        plan = yield from _plan(lease, moving, placement, shared, owner)
        slots = _stamped(plan, owner, now_us)
        stays = len(slots) == 1 and placement.state is SlotState.CLAIMED
        change = Change(slots[0].row, slots[-1].row, () if stays else moving)
        try:
            applied = yield from settle(Mutate(lease.wide_row, slots=slots))
        except OutcomeUnknown:
            lease.doubted(change)
            raise
        if applied:
            lease.changed(change)
            if shared:
                shared.store(lease, placement, change.target, now_us // 1000)
            return change.target
        if shared:
            shared.forget(lease, placement)
        slots_now = yield from _slots(lease.wide_row)
        found = lease.found(slots_now.get((lease.slot.priority, lease.slot.number)))
        if found and set(moving) <= set(found.moving) and found.target.state is placement.state:
            return found.target
    raise LeaseLost("the message's wide row is changing too fast; it stays until its timeout")


def _plan(
    lease: Lease, moving: tuple[int, ...], placement: Placement, shared: Shared | None, owner: bytes
) -> Proto[list[SlotChange]]:
    """The change of the lease's slot, and that of the other one unless its own will do."""
    slot = lease.slot
    rest = tuple(sorted(lease.outstanding.difference(moving)))
    placed = slot._replace(ids=moving, **placement._asdict())
    joined = shared.find(lease, placement) if shared else None
    if not rest and joined is None:
        return [SlotChange(slot.rev, placed)]
    if joined is not None:
        target = SlotChange(joined.rev, joined._replace(ids=tuple(sorted({*joined.ids, *moving}))))
    else:
        number, stored = yield from _free_slot(lease)
        tally = stored.tally if stored else 0
        target = SlotChange(stored.rev if stored else None, placed._replace(number=number, tally=tally))
    source = SlotChange(slot.rev, slot._replace(ids=rest) if rest else freed(slot))
    return [_add(source, share(owner)), _add(target, -share(owner))]


def _free_slot(lease: Lease) -> Proto[tuple[int, SlotRow | None]]:
    """A free slot, any of them so that holders do not collide, or else a new one above those of a claim."""
    head = yield from ReadHead(lease.wide_row)
    mine = [slot for slot in head.slots if slot.priority == lease.slot.priority]
    free = [slot for slot in mine if slot.state is SlotState.FREE]
    pick = yield from RandomBits(16)
    if free:
        slot = free[pick % len(free)]
        return slot.number, slot
    used = {slot.number for slot in mine}
    return next(n for n in count(len(used) + MOST_NEW + pick % 4) if n not in used), None


def _slots(wide_row: WideRow) -> Proto[dict[tuple[int, int], SlotRow]]:
    """The slots as they stand, by priority and number."""
    head = yield from policy.outcome_read(wide_row)
    return {(slot.priority, slot.number): slot for slot in head.slots}


def _add(change: SlotChange, number: int) -> SlotChange:
    return change._replace(row=change.row._replace(tally=wrapped(change.row.tally + number)))


def _stamped(changes: Iterable[SlotChange], owner: bytes, now_us: int) -> tuple[SlotChange, ...]:
    return tuple(
        SlotChange(expect, row._replace(rev=sanity.next_fence(expect, now_us), owner=owner))
        for expect, row in changes
    )
