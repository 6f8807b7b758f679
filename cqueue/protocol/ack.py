"""What a holder does with its messages: ack, nack, snooze, extend, release.

A message is in the queue if and only if its row is live, so an ack is a delete: plain, idempotent,
good whoever sends it. Everything else changes timeout slots in place, conditional on their
revisions: a stale holder's nack fails, and cannot revive what somebody else has acked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from operator import attrgetter
from typing import Any

from cqueue import ids
from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown
from cqueue.protocol import policy, sanity
from cqueue.protocol.draft import MOST_NEW, freed
from cqueue.protocol.lock import new_owner, settle, share
from cqueue.protocol.spec import Lease, Proto, Taken, Tried
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    Head,
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


def ack(taken: Sequence[Taken]) -> Proto[list[Lease]]:
    """Delete messages; the leases that have become empty, whose slots can be freed.

    Raises:
        NotDone, OutcomeUnknown: the messages may come again.
    """
    groups: dict[tuple[WideRow, int], list[Taken]] = {}
    by_lease = _by_lease(taken)
    for lease, ones in by_lease.items():
        groups.setdefault((lease.wide_row, lease.priority), []).extend(ones)
    deletes: list[Operation[None]] = []
    bodies: list[Operation[None]] = []
    for (wide_row, priority), ones in groups.items():
        for chunk in _chunks(ones):
            deletes.append(DeleteMessages(wide_row, priority, tuple([one.row.id for one in chunk])))
            large = tuple([one.row.id for one in chunk if one.row.size is not None])
            bodies += [DeleteBodies(wide_row, large)] if large else []
    results = yield from Together(tuple(deletes))
    _check_all(results)
    emptied = [lease for lease, ones in by_lease.items() if _discard(lease, ones)]
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


def _by_lease(taken: Sequence[Taken]) -> dict[Lease, list[Taken]]:
    found: dict[Lease, list[Taken]] = {}
    for lease, ones in groupby(taken, attrgetter("lease")):
        found.setdefault(lease, []).extend(ones)
    return found


def _discard(lease: Lease, taken: Sequence[Taken]) -> bool:
    """Note that these are gone; whether the lease has become empty by it, and its slot can be freed."""
    gone = [one.row.id for one in taken]
    if lease.outstanding.isdisjoint(gone):
        return False
    lease.outstanding.difference_update(gone)
    return not (lease.outstanding or lease.lost or lease.given)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where messages go when they leave their lease: state, due and the attempts they then have had."""

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
        return self._slots.get((lease.wide_row, lease.priority, placement))

    def store(self, lease: Lease, placement: Placement, slot: SlotRow, now_ms: int) -> None:
        """Remember a slot; those that are due are forgotten, somebody has taken them."""
        self._slots = {key: value for key, value in self._slots.items() if value.due_ms > now_ms - SHARED_MS}
        self._slots[lease.wide_row, lease.priority, placement] = slot

    def forget(self, lease: Lease, placement: Placement) -> None:
        """The slot was changed by somebody else."""
        self._slots.pop((lease.wide_row, lease.priority, placement), None)


def nack(
    lease: Lease, ids_: Iterable[int], delay_ms: int, shared: Shared, *, count: bool = True
) -> Proto[None]:
    """Make messages of one lease available again after `delay_ms`; `count=False` uses no attempt (snooze).

    Raises:
        LeaseLost: the slot belongs to somebody else.
        NotDone, OutcomeUnknown: the messages stay, or may stay, with the lease.
    """
    now_ms = (yield from Now()) // 1000
    due_ms = now_ms + delay_ms
    up = SHARED_MS - 1 if delay_ms else 0
    placement = Placement(
        SlotState.WAITING,
        (due_ms + up) // SHARED_MS * SHARED_MS,
        lease.attempt if count else lease.attempt - 1,
    )
    yield from move(lease, tuple(ids_), placement, shared)


def move(lease: Lease, ids_: tuple[int, ...], placement: Placement, shared: Shared | None) -> Proto[SlotRow]:
    """Move messages from their slot to another in one mutation, conditional on both revisions.

    Returns the slot that lists them now: the same one if it held nothing else.
    """
    for _ in range(TRIES):
        moving = tuple(sorted(lease.outstanding.intersection(ids_)))
        _check_held(lease, moving, ids_)
        now_us = yield from Now()
        owner = yield from new_owner()
        joined = shared.find(lease, placement) if shared else None
        source, target = yield from _plan(lease, moving, placement, joined)
        if target is not None:
            source, target = _add(source, share(owner)), _add(target, -share(owner))
        rows = [_stamp(change, owner, now_us) for change in (source, target) if change is not None]
        tried = Tried(rows[0].row, rows[-1].row, moving)
        if (yield from _try(lease, tuple(rows), tried)):
            _moved(lease, moving, tried.source)
            if shared:
                shared.store(lease, placement, tried.target, now_us // 1000)
            return tried.target
        if shared:
            shared.forget(lease, placement)
        found = yield from _check_revision(lease)
        if found is not None and set(moving) <= set(found.moving):
            return found.target
    raise LeaseLost("the message's wide row is changing too fast; it stays until its timeout")


def _plan(
    lease: Lease, moving: tuple[int, ...], placement: Placement, joined: SlotRow | None
) -> Proto[tuple[SlotChange, SlotChange | None]]:
    """The change of the source slot, and that of the target unless the source itself will do."""
    rest = tuple(sorted(lease.outstanding.difference(moving)))
    source = SlotRow(
        lease.priority, lease.number, SlotState.CLAIMED, rest, lease.due_ms, lease.attempt,
        lease.owner, lease.rev, lease.died_at_ms, lease.tally,
    )  # fmt: skip
    if joined is not None:
        joined_ids = tuple(sorted({*joined.ids, *moving}))
        source_row = source if rest else freed(source)
        return SlotChange(lease.rev, source_row), SlotChange(joined.rev, joined._replace(ids=joined_ids))
    if not rest:
        return SlotChange(lease.rev, _placed(source, lease.number, moving, placement)), None
    head = yield from ReadHead(lease.wide_row)
    number, stored = yield from _free_slot(head, lease.priority)
    target = _placed(source, number, moving, placement)._replace(tally=stored.tally if stored else 0)
    return SlotChange(lease.rev, source), SlotChange(stored.rev if stored else None, target)


def _placed(like: SlotRow, number: int, ids_: tuple[int, ...], placement: Placement) -> SlotRow:
    return like._replace(
        number=number,
        state=placement.state,
        ids=ids_,
        due_ms=placement.due_ms,
        attempt=placement.attempt,
        died_at_ms=placement.died_at_ms,
    )


def _free_slot(head: Head, priority: int) -> Proto[tuple[int, SlotRow | None]]:
    """A free slot, any of them so that holders do not collide, or else a new one above those of a claim."""
    mine = [slot for slot in head.slots if slot.priority == priority]
    free = [slot for slot in mine if slot.state is SlotState.FREE]
    pick = yield from RandomBits(16)
    if free:
        slot = free[pick % len(free)]
        return slot.number, slot
    used = {slot.number for slot in mine}
    return next(n for n in count(len(used) + MOST_NEW + pick % 4) if n not in used), None


def _add(change: SlotChange, number: int) -> SlotChange:
    return change._replace(row=change.row._replace(tally=wrapped(change.row.tally + number)))


def _stamp(change: SlotChange, owner: bytes, now_us: int) -> SlotChange:
    row = change.row._replace(rev=sanity.next_fence(change.expect_rev, now_us), owner=owner)
    return SlotChange(change.expect_rev, row)


def _try(lease: Lease, changes: tuple[SlotChange, ...], tried: Tried) -> Proto[bool]:
    """Change the lease's slot; what is left unknown is remembered, to be told from a stranger's change."""
    try:
        return (yield from settle(Mutate(lease.wide_row, slots=changes)))
    except OutcomeUnknown:
        lease.tried[tried.source.rev] = tried
        raise


def _moved(lease: Lease, moving: tuple[int, ...], source: SlotRow) -> None:
    # Before the ids go: an ack on another thread must not take the empty lease for a finished one.
    lease.given = source.state is SlotState.WAITING
    lease.rev, lease.owner, lease.tally = source.rev, source.owner, source.tally
    lease.outstanding.difference_update(moving)
    lease.ids = source.ids
    lease.tried.clear()
    if source.state is SlotState.CLAIMED:
        lease.due_ms, lease.died_at_ms = source.due_ms, source.died_at_ms


def _check_held(lease: Lease, moving: tuple[int, ...], asked: tuple[int, ...]) -> None:
    if lease.lost or not moving:
        raise LeaseLost(
            "the visibility timeout passed and the message was given to another consumer"
            if lease.lost
            else f"already acked, nacked or given back: {len(asked)} message(s)"
        )


def _check_revision(lease: Lease) -> Proto[Tried | None]:
    """An earlier change of ours that is found to stand after all; None if the slot is as we know it."""
    head = yield from policy.outcome_read(lease.wide_row)
    stored = next((s for s in head.slots if (s.priority, s.number) == (lease.priority, lease.number)), None)
    if stored is not None and stored.rev == lease.rev:
        return None
    found = lease.tried.get(stored.rev) if stored is not None else None
    if stored is None or found is None or found.source.owner != stored.owner:
        lease.lost = True
        raise LeaseLost("the visibility timeout passed and the message was given to another consumer")
    _moved(lease, found.moving, found.source)
    return found


def extend(lease: Lease, duration_ms: int) -> Proto[None]:
    """Hold the lease until `duration_ms` from now, for all its messages; it is never shortened.

    Raises:
        LeaseLost: the slot belongs to somebody else.
        NotDone, OutcomeUnknown: the timeout is, or may be, as it was.
    """
    now_us = yield from Now()
    due_ms = max(lease.due_ms, now_us // 1000 + duration_ms)
    yield from overwrite(lease, Placement(SlotState.CLAIMED, due_ms, lease.attempt, lease.died_at_ms))


def overwrite(lease: Lease, placement: Placement) -> Proto[None]:
    """Give the lease's own slot another state, due or attempt, conditional on its revision."""
    for _ in range(TRIES):
        ids_ = tuple(sorted(lease.outstanding))
        _check_held(lease, ids_, lease.ids)
        if lease.suspect and placement.state is SlotState.CLAIMED:
            hold_on(lease, placement.due_ms)
        now_us = yield from Now()
        owner = yield from new_owner()
        row = SlotRow(
            lease.priority, lease.number, placement.state, ids_, placement.due_ms, placement.attempt,
            owner, 0, placement.died_at_ms, lease.tally,
        )  # fmt: skip
        change = _stamp(SlotChange(lease.rev, row), owner, now_us)
        moving = () if placement.state is SlotState.CLAIMED else ids_
        if (yield from _try(lease, (change,), Tried(change.row, change.row, moving))):
            _moved(lease, moving, change.row)
            return
        yield from _check_revision(lease)
    raise LeaseLost("the message's slot is changing too fast; it stays until its timeout")


def hold_on(lease: Lease, due_ms: int) -> None:
    """Say that a suspect is being extended; too late once its time has passed and the gate was asked.

    Otherwise an expired suspect could come back while the process holds the next one.
    """
    lease.asked_ms = max(lease.asked_ms, due_ms)
    if lease.over:
        raise LeaseLost("the visibility timeout passed, and the next suspect may have been taken")


def release(lease: Lease) -> Proto[None]:
    """Give back messages that were not started: due now, no attempt used. They stay listed."""
    now_ms = (yield from Now()) // 1000
    yield from overwrite(lease, Placement(SlotState.WAITING, now_ms, lease.attempt - 1))


def free(leases: Sequence[Lease]) -> Proto[bool]:
    """Free the slots of finished leases of one wide row; False if one of them has changed meanwhile."""
    now_us = yield from Now()
    owner = yield from new_owner()
    changes = []
    for lease in leases:
        slot = SlotRow(lease.priority, lease.number, SlotState.FREE, (), 0, 0, owner, 0, None, lease.tally)
        changes.append(_stamp(SlotChange(lease.rev, slot), owner, now_us))
    return (yield from settle(Mutate(leases[0].wide_row, slots=tuple(changes))))
