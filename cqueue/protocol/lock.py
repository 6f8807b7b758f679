"""The lock of a wide row, and how the outcome of a conditional mutation is found out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from cqueue.errors import LASTING, NotDone, OutcomeUnknown
from cqueue.protocol import policy, sanity
from cqueue.protocol.sanity import is_held, is_retired
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import RowView, fence_of
from cqueue.store.operations import (
    Head,
    LockRow,
    LockState,
    Mutate,
    Now,
    Operation,
    Pause,
    RandomBits,
    ReadHead,
    SlotRow,
    Together,
    WideRow,
)

T = TypeVar("T")

OUTCOME_PAUSES_S = (0.02, 0.1, 0.5, 1.0, 2.0)
"""Waits between attempts to read what became of a mutation."""
READS = 8
"""How often a head is read until it is whole; each time somebody must have changed it meanwhile."""


def new_owner() -> Proto[bytes]:
    """A random token, new for every attempt."""
    bits = yield from RandomBits(128)
    return bits.to_bytes(16, "big")


def make_ready(view: RowView, spec: QueueSpec) -> Proto[bool]:
    """Know a fence to claim on; False if the wide row is gone, or another consumer's for now.

    The fence that stands will do: the claim fails if anybody claims before it. Where others claim, too, the
    lock is taken first, so that they do not read in vain; and where there is no fence yet: a claim that was
    made up before the wide row was dropped must not find things as it left them when it is sent at last.
    """
    known = view.known
    if known.head is None:
        now_us = yield from Now()
        known.saw((yield from ReadHead(view.wide_row)), now_us)
    head, now_us = known.head or Head(), (yield from Now())
    if is_retired(head.lock, view.end_us, now_us):
        view.retired = True
    if view.retired:
        return False
    if is_held(head.lock, spec, now_us):
        known.head = None  # it will be another one when the lock is free
        return False
    if policy.locks_first(head, has_rival=not known.expects_no_rival(now_us)):
        return (yield from acquire(view, spec))
    known.fence = fence_of(head)
    return True


def acquire(view: RowView, spec: QueueSpec) -> Proto[bool]:
    """Lock the wide row, whose lock is free or has run out as far as is known. True: it is ours."""
    owner, now_us = (yield from new_owner()), (yield from Now())
    lock = LockRow(LockState.LOCKED, owner, now_us // 1000 + spec.lease_ms, 0)
    return (yield from _write(view, lock, now_us))


def unlock(view: RowView) -> Proto[None]:
    """Give back a lock that is held between claims. Best effort: its lease ends by itself."""
    if view.known.locked:
        now_us = yield from Now()
        yield from _write(view, LockRow(LockState.FREE, b"", 0, 0), now_us)


def _write(view: RowView, lock: LockRow, now_us: int) -> Proto[bool]:
    """Write this lock, with the next fence; whether it stands."""
    head = view.known.head or Head()
    stored, tally = (head.lock.fence, head.lock.tally) if head.lock else (None, 0)
    lock = lock._replace(fence=sanity.next_fence(stored, now_us), tally=tally)
    view.known.forget()
    if not (yield from settle(Mutate(view.wide_row, lock=lock, expect_fence=stored))):
        return False
    # The rest of the head was read before, and perhaps in part: no claim goes by it unread.
    view.known.wrote(replace(head, lock=lock), whole=False)
    return True


def read_whole(
    wide_row: WideRow, beside: Sequence[Operation[Any]] = ()
) -> Proto[tuple[Head, list[Any] | None]]:
    """A head that shows no mutation of several rows in part: what a claim may go by.

    beside: reads to be made at the same time, and what they gave; None if there are none, or one failed.

    One that adds up to the same wrong sum twice in a row was not torn by the read, as the second read began
    when all that the first one had seen was stored: the rows themselves are damaged (restored from files of
    two moments, say), and the next claim puts the sum right.

    Raises:
        NotDone: a read failed, or others change the head faster than it can be read.
    """
    found: list[Any] | None = None
    if not beside:
        head = yield from ReadHead(wide_row)
    else:
        head, *answers = yield from Together((ReadHead(wide_row), *beside))
        if isinstance(head, Exception):
            raise head
        found = None if any(isinstance(answer, Exception) for answer in answers) else answers
    for _ in range(READS):
        if policy.is_whole(head):
            return head, found
        before, head = head, (yield from ReadHead(wide_row))
        if head == before:
            return head, found
    raise NotDone("the wide row is changing too fast to be read in one piece")


def share(owner: bytes) -> int:
    """What a mutation adds to the tallies of its rows: unlike that of any other mutation, and odd.

    So no number of shares from 1 to 2⁶⁴ - 1 adds up to 0.
    """
    return int.from_bytes(owner[:8], "big") | 1


def settle(mutation: Mutate) -> Proto[bool]:
    """Send a conditional mutation once; True when it stands, False when it is not (or no longer) ours.

    It is never sent again: a replayed one answers "not applied" although it was. When the answer is
    missing, a serial read finishes what is under way and shows what stands.

    Raises:
        OutcomeUnknown: there was no answer, and no serial read succeeded either.
    """
    try:
        return (yield from mutation)
    except OutcomeUnknown as exc:
        return (yield from find_out(mutation, exc))


def settle_beside(mutation: Mutate, read: Operation[T]) -> Proto[tuple[bool, T | None]]:
    """As `settle`, and what a read gives that goes side by side with it; None if it failed."""
    applied, found = yield from Together((mutation, read), retried=False)
    if isinstance(applied, OutcomeUnknown):
        applied = yield from find_out(mutation, applied)
    elif isinstance(applied, Exception):
        raise applied
    return applied, None if isinstance(found, Exception) else found


def find_out(mutation: Mutate, unknown: OutcomeUnknown) -> Proto[bool]:
    """Whether a mutation without an answer stands: look, and never send it again."""
    for pause_s in OUTCOME_PAUSES_S:
        try:
            head = yield from policy.outcome_read(mutation.wide_row)
        except LASTING:
            break
        except NotDone:
            yield from Pause(pause_s)
        else:
            return stands(head, mutation)
    raise unknown


def stands(head: Head, mutation: Mutate) -> bool:
    """Whether what the mutation wrote is what is stored: its slots, or without any the lock.

    Of a claim every slot that lists messages has to stand, or some of them may be somebody else's by
    now. A holder's own change of two slots is known by either.
    """
    if not mutation.slots:
        return head.lock is not None and head.lock == mutation.lock
    stored = {(slot.priority, slot.number): slot for slot in head.slots}
    rows = [change.row for change in mutation.slots]
    standing = [_is_written(stored.get((row.priority, row.number)), row) for row in rows]
    listing = [stands for stands, row in zip(standing, rows, strict=True) if row.ids]
    return all(listing) if mutation.lock is not None and listing else any(standing)


def _is_written(stored: SlotRow | None, row: SlotRow) -> bool:
    return stored is not None and (stored.rev, stored.owner) == (row.rev, row.owner)
