"""Lock, read, one mutation: how a consumer comes by messages.

The order is the protocol. A fence first, with the lock where others claim too; then cursors and slots; then
messages, which are skipped if any slot lists them; then one conditional mutation that lists what is taken,
moves the cursors and releases the lock. Only when that is known to be applied is anything delivered.

What keeps claims apart is the fence; the lock only keeps others from reading in vain. Only a claim lists ids
that no slot listed, and a claim changes the fence; holders merely move ids from slot to slot. So while the
fence stands that a head was read with, all that is listed now was listed there. Hence two shortcuts:

- Messages may be read beside the head, where an earlier head is known: what neither of them lists may be
  claimed if both have the same fence.
- For a moment after a claim of ours the head need not be read at all: it is as that claim left it, but for
  what others gave back.
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
"""Where somebody else was quicker a claim is made again: on a head that is read anew, then with the lock."""


def claim(view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool = True) -> Proto[Claim]:
    """Take up to `want` messages from one wide row; an empty claim if there is nothing to take.

    stay: keep the lock for a moment if more is there, because the next claim will follow at once.

    Raises:
        NotDone: a read failed, or the mutation certainly did.
        OutcomeUnknown: the mutation may be applied; nothing is delivered, its messages come again.
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
    """Take what nobody has claimed yet, going by the head as our last claim left it; None: read it."""
    now_us, head = (yield from Now()), view.known.head
    if head is None or not view.known.is_remembered(now_us):
        return None
    known = HeadDraft(head, view, (yield from new_owner()), now_us)
    if any(is_ripe(slot, spec, now_us) for slot in known.in_use()) or not view.is_current(now_us):
        return None
    draft = Draft(spec=spec, view=view, now_us=now_us, head=known, want=want, stay=stay)
    yield from fresh.take_fresh(draft)
    if not draft.grants and (view.known.locked or now_us >= view.retire_at_us(spec)):
        return None  # there is a lock to let go of, or a wide row to retire
    return (yield from _commit(draft, gate)) if draft.grants else _nothing(draft)


def _claim(
    view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool
) -> Proto[Claim | None]:
    """Read the head, and take what is there; None if somebody else was quicker."""
    if view.known.fence is None and not (yield from make_ready(view, spec)):
        return Claim(contended=not view.retired)
    fence, before = view.known.fence, view.known.head
    owner = yield from new_owner()
    now_us = yield from Now()  # before all reads: cursors and retirement hang on when those began
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
    """A claim that has nothing to write."""
    draft.view.reading.floors.by_priority.update(draft.learned.floors)
    return Claim()


def _commit(draft: Draft, gate: SuspectGate) -> Proto[Claim | None]:
    """What is ours now; None if a slot or the lock was changed meanwhile: the next head read tells."""
    view, known = draft.view, draft.view.known
    if not known.locked and draft.is_empty:
        return _nothing(draft)
    mutation, read_us = draft.mutation(), known.read_us
    # What the head is like is not known until the mutation is known to be applied.
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
    """Write, and while that is on its way read what the next claim will want at once.

    Of what is kept for that, nothing may be listed now: when it is claimed, its slot may be free again.
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
    """Bring the view up to date with an applied mutation."""
    view, changes = draft.view, draft.head.changes
    view.claims += 1
    view.finished = [  # the next claims' to free
        lease for lease in view.finished if (lease.slot.priority, lease.slot.number) not in changes
    ]
    view.retired = draft.retire
    view.seen_us = 0 if draft.more else view.known.read_us
    view.reading.floors.by_priority.update(draft.learned.floors)
    for took in draft.learned.took:
        view.reading.budget.took(*took)
