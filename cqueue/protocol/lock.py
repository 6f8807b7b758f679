"""The lock of a wide row, and how the outcome of a conditional mutation is found out."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from cqueue.errors import LASTING, NotDone, OutcomeUnknown
from cqueue.protocol import policy
from cqueue.protocol.row_memory import RowMemory, fence_of
from cqueue.protocol.spec import Proto, QueueSpec
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
"""Seconds to wait after each failed read of a mutation's outcome.

They add up to 3.6 s: enough for a short fault of the network, and well within a call's deadline of 10 s.
"""
READS = 8
"""Most reads of a head until one is whole.

Each read that fails needs another client's change in that moment, so eight failures mean heavy contention.
"""


def new_owner() -> Proto[bytes]:
    """Return a random 128-bit token that tells one attempt's mutation from every other."""
    bits = yield from RandomBits(128)
    return bits.to_bytes(16, "big")


def prepare_fence(memory: RowMemory, spec: QueueSpec) -> Proto[bool]:
    """Prepare a claim's fence. Return False if the wide row is dropped, or locked by another consumer.

    The stored fence is enough: the claim fails if another claim comes before it. The claim takes the lock
    first in two cases. Where other consumers claim as well, the lock keeps them from reading in vain. Where
    no fence is stored yet, the lock writes one: a claim that was prepared before the wide row was dropped,
    and arrives after that, must not find its condition true again.
    """
    remembered = memory.remembered
    if remembered.head is None:
        now_us = yield from Now()
        remembered.note_read((yield from ReadHead(memory.wide_row)), now_us)
    head, now_us = remembered.head or Head(), (yield from Now())
    if policy.is_retired(head, memory.end_us, now_us):
        memory.retired = True
        return False
    if policy.is_held(head.lock, spec, now_us):
        remembered.head = None  # the lock's holder will have changed the head by the time it lets go
        return False
    if head.lock is not None and head.lock.state is LockState.LOCKED:
        remembered.read_us = 0  # a lock that overtook may be newer than what was read beside it
    if policy.locks_first(head, has_rival=not remembered.expects_no_rival(now_us)):
        return (yield from acquire(memory, spec))
    remembered.fence = fence_of(head)
    return True


def acquire(memory: RowMemory, spec: QueueSpec, *, overtakes: bool = False) -> Proto[bool]:
    """Lock a wide row whose lock is free or expired, as far as is known; return whether it worked.

    overtakes: lock it also if another client holds the lock or claims meanwhile. Claims and changes that are
        under way there fail on the fence. It lies ε ahead, as does that of a client whose clock is.
    """
    owner, now_us = (yield from new_owner()), (yield from Now())
    lock = LockRow(LockState.LOCKED, owner, now_us // 1000 + spec.lease_ms, 0)
    fence_us = now_us + spec.skew_us if overtakes else now_us
    return (yield from _write(memory, lock, fence_us, overtakes=overtakes))


def unlock(memory: RowMemory) -> Proto[None]:
    """Release a lock that is held between claims. A failure is not told: the lock's lease ends by itself."""
    if memory.remembered.locked:
        now_us = yield from Now()
        with suppress(NotDone, OutcomeUnknown):
            yield from _write(memory, LockRow(LockState.FREE, b"", 0, 0), now_us)


def _write(memory: RowMemory, lock: LockRow, now_us: int, *, overtakes: bool = False) -> Proto[bool]:
    """Write `lock` with the next fence, of `now_us` at least; return whether it was applied."""
    head = memory.remembered.head or Head()
    stored, tally = (head.lock.fence, head.lock.tally) if head.lock else (None, 0)
    lock = lock._replace(fence=policy.next_fence(stored, now_us), tally=tally)
    memory.remembered.forget()
    mutation = Mutate(memory.wide_row, lock=lock, expect_fence=stored, overtakes=overtakes)
    if not (yield from mutate_once(mutation)):
        return False
    memory.remembered.note_write(replace(head, lock=lock))
    return True


def read_whole(wide_row: WideRow) -> Proto[Head]:
    """Read a head until it shows no mutation in part; a claim may rely on it.

    Two equal heads in a row whose tallies have the same wrong sum are accepted. The second read began after
    all that the first one saw was stored, so the read did not tear the head: the stored rows are damaged,
    e.g. restored from files of two moments. The next claim corrects the sum.

    Raises:
        NotDone: a read failed, or others change the head faster than it can be read.
    """
    head = yield from ReadHead(wide_row)
    for _ in range(READS):
        if policy.is_whole(head):
            return head
        before, head = head, (yield from ReadHead(wide_row))
        if head == before:
            return head
    raise NotDone("the wide row is changing too fast to be read in one piece")


def tally_share(owner: bytes) -> int:
    """Return the odd number that a mutation adds to the tallies of its rows; other mutations add others.

    Because the number is odd, adding it up to 2⁶⁴ - 1 times never gives 0 modulo 2⁶⁴.
    """
    return int.from_bytes(owner[:8], "big") | 1


def mutate_once(mutation: Mutate) -> Proto[bool]:
    """Send a conditional mutation once; return whether it was applied and still stands.

    The mutation is never sent again: a repeated one answers "not applied" although the first was applied.
    Without an answer, a serial read finishes what replicas have accepted and shows the outcome.

    Raises:
        OutcomeUnknown: the mutation had no answer, and no serial read succeeded.
    """
    applied, _ = yield from mutate_once_or_unsure(mutation)
    return applied


def mutate_once_or_unsure(mutation: Mutate) -> Proto[tuple[bool, bool]]:
    """As `mutate_once`; return also whether that is sure.

    It is not if the mutation had no answer and does not stand: others may have written over it meanwhile.
    """
    try:
        return (yield from mutation), True
    except OutcomeUnknown as exc:
        applied = yield from read_outcome(mutation, exc)
        return applied, applied


def mutate_once_beside(mutation: Mutate, read: Operation[T]) -> Proto[tuple[bool, T | None]]:
    """As `mutate_once`, with a read beside it; return also the read's answer, or None if the read failed."""
    applied, found = yield from Together((mutation, read), retried=False)
    if isinstance(applied, OutcomeUnknown):
        applied = yield from read_outcome(mutation, applied)
    elif isinstance(applied, Exception):
        raise applied
    return applied, None if isinstance(found, Exception) else found


def read_outcome(mutation: Mutate, unknown: OutcomeUnknown) -> Proto[bool]:
    """Read whether a mutation without an answer was applied; never send the mutation again."""
    for pause_s in OUTCOME_PAUSES_S:
        try:
            head = yield from policy.outcome_read(mutation.wide_row)
        except LASTING:
            break
        except NotDone:
            yield from Pause(pause_s)
        else:
            return was_applied(head, mutation)
    raise unknown


def was_applied(head: Head, mutation: Mutate) -> bool:
    """Return whether a head holds what the mutation wrote: its slots, or its lock if it wrote no slot.

    Of a claim, every slot that lists messages must be there; otherwise another consumer may hold some of
    them. A holder's change of two slots was applied as a whole if either slot is there.

    A claim that only moves cursors leaves the lock as it was, so it counts as applied while that stands, also
    if it was not. That is safe: its cursors say what its reads have shown, whether they are stored or not.
    """
    if not mutation.slots:
        return head.lock is not None and head.lock == mutation.lock_beside(head.lock)
    stored, rows = head.by_place(), [change.row for change in mutation.slots]
    standing = [_is_written(stored.get(row.place), row) for row in rows]
    listing = [is_there for is_there, row in zip(standing, rows, strict=True) if row.ids]
    return all(listing) if mutation.lock is not None and listing else any(standing)


def _is_written(stored: SlotRow | None, row: SlotRow) -> bool:
    return stored is not None and (stored.rev, stored.owner) == (row.rev, row.owner)
