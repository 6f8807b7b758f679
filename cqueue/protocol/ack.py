"""Settle claimed messages: ack, nack, snooze, extend and release.

A message is in the queue if and only if its row is live. So an ack is a delete: plain, idempotent, and valid
from any client. Every other call changes timeout slots in place, conditional on their revisions. So a stale
holder's nack fails, and cannot bring back what another consumer has acked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import keys, policy
from cqueue.protocol.claim_draft import free_number, freed
from cqueue.protocol.lease import Change, Lease, Taken
from cqueue.protocol.lock import mutate_once, new_owner, tally_share
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
"""Messages that one delete removes, about: as many as one flush writes, so the batch stays small."""
SHARED_MS = 100
"""ms of due times that share a waiting slot: a nack may come 0.1 s late, and a burst needs few slots."""
TRIES = 8
"""Most tries of a change. Each failed try needs another client's change of the second slot in that moment."""


# ── ack ──


def ack(taken: Sequence[Taken]) -> Proto[list[Lease]]:
    """Delete messages; return the leases that have become empty, whose slots can be freed.

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
        yield from Together(tuple(bodies))  # a body whose delete fails is dropped with its wide row
    if any(lease.keyed for lease in by_lease):
        yield from keys.delete((one.lease.wide_row, one.row) for one in taken if one.lease.keyed)
    return emptied


def _chunks(ones: list[Taken]) -> Iterator[list[Taken]]:
    """Split messages into parts of about ACK_CHUNK; messages of one pack stay together.

    Only a delete that names all live messages of a pack can delete its row.
    """
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
    """Raise unless all deletes are stored; raise `NotDone` only if certainly none of them is."""
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return
    doubt = next((error for error in errors if not isinstance(error, NotDone)), None)
    if doubt is None and len(errors) == len(results):
        raise errors[0]
    raise OutcomeUnknown(f"{len(errors)} of {len(results)} deletes failed") from (doubt or errors[0])


def free(leases: Sequence[Lease]) -> Proto[Sequence[SlotChange]]:
    """Free the slots of finished leases of one wide row, except slots that another client has changed.

    Return the changes that were applied.
    """
    if (changes := (yield from _freed(leases))) is not None:
        return changes
    stored = (yield from policy.outcome_read(leases[0].wide_row)).by_place()
    mine = [lease for lease in leases if lease.is_slot(stored.get(lease.slot.place))]
    return ((yield from _freed(mine)) if mine else None) or ()


def _freed(leases: Sequence[Lease]) -> Proto[Sequence[SlotChange] | None]:
    """Free these slots in one mutation; return None if one of them differs from what its lease knows."""
    now_us = yield from Now()
    owner = yield from new_owner()
    slots = _stamped([SlotChange(lease.slot.rev, freed(lease.slot)) for lease in leases], owner, now_us)
    applied = yield from mutate_once(Mutate(leases[0].wide_row, slots=slots))
    return slots if applied else None


# ── nack, snooze, extend, release ──


class Placement(NamedTuple):
    """How a slot is to list messages: its state, its due time, their attempts, and their time of death."""

    state: SlotState
    due_ms: int
    attempt: int
    died_at_ms: int | None = None


class Shared:
    """Waiting slots that one holder wrote lately, so that its nacks of the same 100 ms share one slot."""

    def __init__(self) -> None:
        self._slots: dict[tuple[WideRow, int, Placement], SlotRow] = {}

    def find(self, lease: Lease, placement: Placement) -> SlotRow | None:
        """Return the slot that already has this placement, if there is one."""
        return self._slots.get((lease.wide_row, lease.slot.priority, placement))

    def store(self, lease: Lease, placement: Placement, slot: SlotRow, now_ms: int) -> None:
        """Remember a slot, and forget those that are due: a consumer has taken their messages."""
        self._slots = {key: value for key, value in self._slots.items() if value.due_ms > now_ms - SHARED_MS}
        self._slots[lease.wide_row, lease.slot.priority, placement] = slot

    def forget(self, lease: Lease, placement: Placement) -> None:
        """Forget a slot that another client has changed."""
        self._slots.pop((lease.wide_row, lease.slot.priority, placement), None)


def nack(
    lease: Lease, ids_: Iterable[int], delay_ms: int, shared: Shared, *, count: bool = True
) -> Proto[None]:
    """Make messages of one lease available again after `delay_ms`; `count=False` uses no attempt (snooze).

    Raises:
        LeaseLost: another client has changed the slot.
        NotDone, OutcomeUnknown: the messages stay, or may stay, with the lease.
    """
    due_ms = (yield from Now()) // 1000 + delay_ms
    up = SHARED_MS - 1 if delay_ms else 0
    attempt = lease.attempt if count else lease.attempt - 1
    placement = Placement(SlotState.WAITING, (due_ms + up) // SHARED_MS * SHARED_MS, attempt)
    yield from place(lease, ids_, placement, shared)


def release(lease: Lease) -> Proto[None]:
    """Give back messages that no handler has started: they are due now, and use no attempt."""
    now_ms = (yield from Now()) // 1000
    yield from place(lease, lease.slot.ids, Placement(SlotState.WAITING, now_ms, lease.attempt - 1))


def extend(lease: Lease, duration_ms: int) -> Proto[None]:
    """Extend the lease of all its messages to `duration_ms` from now; never shorten it.

    Raises:
        LeaseLost: another client has changed the slot.
        NotDone, OutcomeUnknown: the timeout is, or may be, as it was.
    """
    due_ms = (yield from Now()) // 1000 + duration_ms
    placement = Placement(SlotState.CLAIMED, due_ms, lease.attempt, lease.slot.died_at_ms)
    yield from place(lease, lease.slot.ids, placement)


def place(
    lease: Lease, ids_: Iterable[int], placement: Placement, shared: Shared | None = None
) -> Proto[SlotRow]:
    """List messages of a lease as `placement` says, in one mutation conditional on all slots that it changes.

    Return the slot that lists the messages then: the lease's own slot if it lists nothing else and no shared
    slot fits, otherwise another one.

    Raises:
        LeaseLost: none of the messages is outstanding, or another client has changed the slot.
        NotDone, OutcomeUnknown: the messages are, or may be, listed as before.
    """
    asked = frozenset(ids_)
    for _ in range(TRIES):
        moving = lease.held(asked)
        if placement.state is SlotState.CLAIMED and placement.died_at_ms is None:
            # An extension by id may have come since.
            placement = placement._replace(due_ms=max(placement.due_ms, lease.due_ms))
        if lease.gate is not None and placement.state is SlotState.CLAIMED:
            lease.gate.extend(lease, placement.due_ms)
        now_us = yield from Now()
        owner = yield from new_owner()
        plan = yield from _plan(lease, moving, placement, shared, owner)
        slots = _stamped(plan, owner, now_us)
        stays = len(slots) == 1 and placement.state is SlotState.CLAIMED
        change = Change(slots[0].row, slots[-1].row, () if stays else moving)
        try:
            applied = yield from mutate_once(Mutate(lease.wide_row, slots=slots))
        except OutcomeUnknown:
            lease.note_unresolved(change)
            raise
        if applied:
            lease.changed(change)
            if shared:
                shared.store(lease, placement, change.target, now_us // 1000)
            return change.target
        if shared:
            shared.forget(lease, placement)
        stored = (yield from policy.outcome_read(lease.wide_row)).by_place()
        found = lease.found(stored.get(lease.slot.place))
        if found and set(moving) <= set(found.moving) and found.target.state is placement.state:
            return found.target
    raise LeaseLost("the message's wide row is changing too fast; it stays until its timeout")


def _plan(
    lease: Lease, moving: tuple[int, ...], placement: Placement, shared: Shared | None, owner: bytes
) -> Proto[list[SlotChange]]:
    """Plan the change of the lease's slot, and of a second slot if the messages move to another one."""
    slot = lease.slot
    rest = tuple(sorted(lease.outstanding.difference(moving)))
    placed = slot._replace(ids=moving, **placement._asdict())
    joined = shared.find(lease, placement) if shared else None
    if not rest and joined is None:
        return [SlotChange(slot.rev, placed)]
    if joined is not None:
        target = SlotChange(joined.rev, joined._replace(ids=tuple(sorted({*joined.ids, *moving}))))
    else:
        head = yield from ReadHead(lease.wide_row)
        slots = {other.number: other for other in head.slots if other.priority == slot.priority}
        number = free_number(slots, (), (yield from RandomBits(16)))
        stored = slots.get(number)
        tally = stored.tally if stored else 0
        target = SlotChange(stored.rev if stored else None, placed._replace(number=number, tally=tally))
    source = SlotChange(slot.rev, slot._replace(ids=rest) if rest else freed(slot))
    return [_add(source, tally_share(owner)), _add(target, -tally_share(owner))]


def _add(change: SlotChange, number: int) -> SlotChange:
    return change._replace(row=change.row._replace(tally=wrapped(change.row.tally + number)))


def _stamped(changes: Iterable[SlotChange], owner: bytes, now_us: int) -> tuple[SlotChange, ...]:
    return tuple(
        SlotChange(expect, row._replace(rev=policy.next_fence(expect, now_us), owner=owner))
        for expect, row in changes
    )
