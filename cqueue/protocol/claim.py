"""Claim messages from a wide row: a fence, reads, and one conditional mutation.

The order is the protocol. First a claim learns the fence, and takes the lock where other consumers claim too.
Then it reads cursors and slots. Then it reads messages, and skips those that any slot lists. Then it sends
one conditional mutation that lists what it takes, moves the cursors and releases the lock. It delivers
messages only when the mutation is known to be applied.

The fence keeps claims apart; the lock only keeps others from reading in vain. Only a claim lists ids that no
slot listed, and every claim changes the fence. Holders merely move ids from slot to slot. So while a fence
stands, all ids listed now were listed in each head read with that fence. That allows two shortcuts:

- Messages may be read beside the head if an earlier head is known. What neither head lists may be claimed if
  both have the same fence.
- Shortly after this consumer's own claim the head need not be read: it is as that claim left it, except for
  what other consumers gave back.
"""

from __future__ import annotations

from cqueue.protocol import fresh, lock, retire
from cqueue.protocol.draft import Claim, Draft, HeadDraft
from cqueue.protocol.fresh import beside_head, next_slice
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import make_ready, new_owner, settle, settle_beside
from cqueue.protocol.retire import finish_retirement
from cqueue.protocol.ripe import is_ripe, take_ripe
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import Ahead, RowView
from cqueue.store.operations import Mutate, Now

TRIES = 3
"""Most tries of a claim that other consumers outrun: a retry reads the head again, and the next one also
takes the lock, so a third failure means that the wide row is contended."""


def claim(view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool = True) -> Proto[Claim]:
    """Take up to `want` messages from one wide row; return an empty claim if there is nothing to take.

    stay: keep the lock briefly if there are more messages, because the next claim follows at once.

    Raises:
        NotDone: a read failed, or the mutation was certainly not applied.
        OutcomeUnknown: the mutation may be applied. Nothing is delivered; its messages come again.
    """
    if view.retired:
        return Claim()
    claimed = yield from _claim_on(view, spec, gate, want, stay=stay)
    for _ in range(TRIES):
        if claimed is None:
            claimed = yield from _claim(view, spec, gate, want, stay=stay)
    return claimed or Claim(contended=True)


def _claim_on(
    view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool
) -> Proto[Claim | None]:
    """Claim by the remembered head, as this consumer's last claim left it; None if it must be read."""
    now_us, head = (yield from Now()), view.known.head
    if head is None or not view.known.is_remembered(now_us):
        return None
    known = HeadDraft(head, view, (yield from new_owner()), now_us)
    if any(is_ripe(slot, spec, now_us) for slot in known.in_use()) or not view.is_current(now_us):
        return None
    draft = Draft(spec=spec, view=view, now_us=now_us, head=known, want=want, stay=stay)
    yield from fresh.take_fresh(draft)
    if not draft.grants and (view.known.locked or now_us >= view.retire_at_us(spec)):
        return None  # only a claim that reads the head releases a lock, or retires a wide row
    return (yield from _commit(draft, gate)) if draft.grants else _nothing(draft)


def _claim(
    view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool
) -> Proto[Claim | None]:
    """Read the head and claim by it; None if another consumer was quicker."""
    if view.known.fence is None and not (yield from make_ready(view, spec)):
        return Claim(contended=not view.retired)
    fence, before = view.known.fence, view.known.head
    owner = yield from new_owner()
    now_us = yield from Now()  # before all reads: cursors and retirement depend on when reads began
    beside = beside_head(view, spec, now_us, want)
    head, found = yield from lock.read_whole(view.wide_row, beside.all if beside else ())
    view.known.saw(head, now_us)
    if view.known.fence != fence:
        return None
    view.known.whole = True
    read = HeadDraft(head, view, owner, now_us)
    view.finished = list(read.finished.values())
    draft = Draft(spec=spec, view=view, now_us=now_us, head=read, want=want, stay=stay)
    if found is not None and before is not None:
        read.skip_listed(before)
    try:
        yield from take_ripe(draft, gate)
        yield from fresh.take_fresh(draft, beside.known(found) if beside and found is not None else None)
        if retire.may_retire(draft) and not view.known.locked:
            yield from lock.acquire(view, spec)  # one consumer passes over a wide row at a time
            return None
        yield from retire.try_retire(draft)
        return (yield from _commit(draft, gate))
    finally:
        if draft.reserved:
            gate.settle()


def _nothing(draft: Draft) -> Claim:
    """Finish a claim that has nothing to write."""
    draft.view.reading.floors.by_priority.update(draft.learned.floors)
    return Claim()


def _commit(draft: Draft, gate: SuspectGate) -> Proto[Claim | None]:
    """Write the claim's mutation; None if another client changed a slot or the lock meanwhile."""
    view, known = draft.view, draft.view.known
    if not known.locked and draft.is_empty:
        return _nothing(draft)
    mutation, read_us = draft.mutation(), known.read_us
    # The head is unknown until the mutation is known to be applied.
    known.whole, known.read_us, known.ahead = False, 0, None
    if mutation.lock is None or not (yield from _settle(draft, mutation)):
        return None
    known.read_us = read_us
    known.wrote(draft.head.left_with(mutation.lock), whole=True)
    _remember(draft)
    if draft.retire:
        yield from finish_retirement(view, draft.spec)
    return draft.claim(gate, mutation.lock.fence)


def _settle(draft: Draft, mutation: Mutate) -> Proto[bool]:
    """Send the mutation, and read the next claim's slice side by side with it.

    A message read ahead is dropped if a slot lists it now. By the time of the next claim it may be acked and
    its slot be free again.
    """
    ahead, read = draft.learned.next, next_slice(draft)
    if ahead is None or not draft.renews:
        return (yield from settle(mutation))
    if read is None:
        draft.view.known.ahead = draft.head.without_listed(ahead)
        return (yield from settle(mutation))
    applied, found = yield from settle_beside(mutation, read)
    if applied and found is not None:
        rows = [*ahead.rows, *found.rows]
        began_us = ahead.began_us if ahead.rows else draft.now_us
        read_ahead = Ahead(ahead.priority, ahead.after, rows, began_us)
        draft.view.known.ahead = draft.head.without_listed(read_ahead)
    return applied


def _remember(draft: Draft) -> None:
    """Bring what is remembered of the wide row up to date with an applied mutation."""
    view, changes = draft.view, draft.head.changes
    view.claims += 1
    view.finished = [  # later claims free these slots
        lease for lease in view.finished if (lease.slot.priority, lease.slot.number) not in changes
    ]
    view.retired = draft.retire
    view.seen_us = 0 if draft.more else view.known.read_us
    view.reading.floors.by_priority.update(draft.learned.floors)
    for took in draft.learned.took:
        view.reading.budget.took(*took)
