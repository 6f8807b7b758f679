"""Lock, read, one mutation: how a consumer comes by messages.

The order is the protocol. The lock first; then cursors and slots; then messages, which are skipped
if any slot lists them; then one conditional mutation that lists what is taken, moves the cursors and
releases the lock. Only when that is known to be applied is anything delivered.

A consumer that finds the fence that it wrote itself need not lock again: nobody has claimed since, and
if somebody does before its mutation, that fails on the fence. What keeps claims apart is the fence; the
lock only keeps others from reading in vain.
"""

from __future__ import annotations

from cqueue.protocol.draft import Claim, Draft
from cqueue.protocol.fresh import take_fresh
from cqueue.protocol.lock import acquire, new_owner, settle
from cqueue.protocol.retire import finish_retirement, try_retire
from cqueue.protocol.ripe import take_ripe
from cqueue.protocol.spec import Proto, QueueSpec, SuspectGate
from cqueue.protocol.view import RowView
from cqueue.store.operations import Head, Mutate, Now, ReadHead


def claim(view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool = True) -> Proto[Claim]:
    """Take up to `want` messages from one wide row; an empty claim if there is nothing to take.

    stay: keep the lock for a moment if more is there, because the next claim will follow at once.

    Raises:
        NotDone: a read failed, or the mutation certainly did.
        OutcomeUnknown: the mutation may be applied; nothing is delivered, its messages come again.
    """
    known = view.fence is not None
    if not known and not (yield from acquire(view, spec)):
        return Claim()
    owner = yield from new_owner()
    now_us = yield from Now()  # before all reads: cursors and retirement hang on when those began
    head = yield from ReadHead(view.wide_row)
    if head.lock is None or head.lock.fence != view.fence:
        view.fence, view.locked = None, False  # somebody else has claimed meanwhile
        view.head = head
        return (yield from claim(view, spec, gate, want, stay=stay)) if known else Claim()
    draft = Draft(spec, view, head, now_us, owner)
    draft.stay = stay
    view.finished = list(draft.finished.values())
    try:
        yield from _fill(draft, gate, want)
        return (yield from _commit(draft, gate))
    finally:
        if draft.suspect:
            gate.settle()


def _fill(draft: Draft, gate: SuspectGate, want: int) -> Proto[None]:
    draft.left = want
    yield from take_ripe(draft, gate)
    yield from take_fresh(draft)
    if not draft.grants:
        yield from try_retire(draft)


def _commit(draft: Draft, gate: SuspectGate) -> Proto[Claim]:
    view = draft.view
    if not view.locked and draft.is_empty:
        return Claim()
    mutation = draft.mutation()
    if mutation.lock is None or not (yield from settle(mutation)):
        return Claim()  # a slot or the lock was changed meanwhile: the next head read tells
    _remember(draft, mutation)
    if draft.retire:
        yield from finish_retirement(view, draft.spec)
    return draft.claim(gate, mutation.lock.fence)


def _remember(draft: Draft, mutation: Mutate) -> None:
    """Bring the view up to date with an applied mutation."""
    view, lock = draft.view, mutation.lock
    view.claims += 1
    view.finished = []
    view.retired = draft.retire
    view.floors.update(draft.floors)
    for priority, stretches in draft.taken.items():
        for stretch in stretches:
            view.took(priority, stretch)
    if lock is not None:
        view.fence, view.locked = lock.fence, bool(lock.until_ms)
    slots = {**draft.slots, **{key: change.row for key, change in draft.changes.items()}}
    view.head = Head(lock, {**draft.cursors, **draft.moved}, tuple(slots.values()))
