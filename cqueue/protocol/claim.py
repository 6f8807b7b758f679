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

from cqueue.protocol import fresh, lock, policy, retire
from cqueue.protocol.draft import Claim, Draft
from cqueue.protocol.fresh import beside_head, next_slice
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import make_ready, new_owner, settle, settle_beside
from cqueue.protocol.retire import finish_retirement
from cqueue.protocol.ripe import is_ripe, take_ripe
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import Ahead, RowView, fence_of
from cqueue.store.operations import Head, Mutate, Now

TRIES = 3
"""Where somebody else was quicker a claim is made again: on a head that is read anew, then with the lock."""


def claim(view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool = True) -> Proto[Claim]:
    """Take up to `want` messages from one wide row; an empty claim if there is nothing to take.

    stay: keep the lock for a moment if more is there, because the next claim will follow at once.

    Raises:
        NotDone: a read failed, or the mutation certainly did.
        OutcomeUnknown: the mutation may be applied; nothing is delivered, its messages come again.
    """
    claimed = yield from _claim_on(view, spec, gate, want, stay=stay)
    for _ in range(TRIES):
        if claimed is None:
            claimed = yield from _claim(view, spec, gate, want, stay=stay)
    return claimed or Claim(contended=True)


def _claim_on(
    view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool
) -> Proto[Claim | None]:
    """Take what nobody has claimed yet, going by the head as our last claim left it; None: read it."""
    now_us, head = (yield from Now()), view.head
    if head is None or not view.remembers_head(now_us):
        return None
    owner = yield from new_owner()
    draft = Draft(spec, view, head, now_us, owner, want=want, stay=stay)
    if any(is_ripe(slot, spec, now_us) for slot in draft.in_use()):
        return None
    draft.changed = [lease for lease in view.finished if lease not in draft.finished.values()]
    if not view.is_current(now_us):
        return None
    yield from fresh.take_fresh(draft)
    if draft.grants:
        return (yield from _commit(draft, gate))
    if view.locked or now_us >= view.retire_at_us(spec):
        return None  # there is a lock to let go of, or a wide row to retire
    view.floors.by_priority.update(draft.floors)
    return Claim()  # a hint of what we have taken already


def _claim(
    view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool
) -> Proto[Claim | None]:
    """Read the head, and take what is there; None if somebody else was quicker."""
    if view.fence is None and not (yield from make_ready(view, spec)):
        return Claim(contended=not view.retired)
    owner = yield from new_owner()
    now_us = yield from Now()  # before all reads: cursors and retirement hang on when those began
    before, beside = view.head, beside_head(view, spec, now_us, want)
    head, found = yield from lock.read_whole(view.wide_row, beside.all if beside else ())
    is_ours = fence_of(head) == view.fence
    view.saw(head, now_us)
    if not is_ours:
        return None
    view.whole_us = now_us
    draft = Draft(spec, view, head, now_us, owner, want=want, stay=stay)
    if beside is not None and found is not None and before is not None:
        draft.beside = beside.known(found)
        draft.skip_listed(before)
    view.finished = list(draft.finished.values())
    try:
        yield from take_ripe(draft, gate)
        yield from fresh.take_fresh(draft)
        if not draft.grants:
            yield from retire.try_retire(draft)
        return (yield from _commit(draft, gate))
    finally:
        if draft.suspect:
            gate.settle()


def _commit(draft: Draft, gate: SuspectGate) -> Proto[Claim | None]:
    """What is ours now; None if a slot or the lock was changed meanwhile: the next head read tells."""
    view = draft.view
    if not view.locked and draft.is_empty:
        view.floors.by_priority.update(draft.floors)
        return Claim(passed_over=draft.passed_over)
    mutation, read_us = draft.mutation(), view.whole_us
    # What the head is like is not known until the mutation is known to be applied.
    view.whole_us, view.head_us, view.ahead = 0, 0, None
    if mutation.lock is None or not (yield from _settle(draft, mutation)):
        return None
    view.whole_us = view.head_us = read_us
    _remember(draft, mutation)
    if draft.retire:
        yield from finish_retirement(view, draft.spec)
    return draft.claim(gate, mutation.lock.fence)


def _settle(draft: Draft, mutation: Mutate) -> Proto[bool]:
    """Write, and while that is on its way read what the next claim will want at once.

    Of what is kept for that, nothing may be listed now: when it is claimed, its slot may be free again.
    """
    view, ahead, read = draft.view, draft.next, next_slice(draft)
    if ahead is None or not draft.renews:
        return (yield from settle(mutation))
    if read is None:
        view.ahead = draft.without_listed(ahead)
        return (yield from settle(mutation))
    applied, found = yield from settle_beside(mutation, read)
    if applied and found is not None:
        rows = [*ahead.rows, *found.rows]
        began_us = ahead.began_us if ahead.rows else draft.now_us
        view.ahead = draft.without_listed(Ahead(ahead.priority, ahead.after, rows, began_us))
    return applied


def _remember(draft: Draft, mutation: Mutate) -> None:
    """Bring the view up to date with an applied mutation."""
    view, written = draft.view, mutation.lock
    view.claims += 1
    view.finished = [*draft.changed, *draft.finished.values()]  # the next claims' to free
    view.retired = draft.retire
    view.seen_us = 0 if draft.more or draft.passed_over else view.head_us
    view.floors.by_priority.update(draft.floors)
    for took in draft.took:
        view.budget.took(*took)
    if written is not None:
        view.fence, view.locked = written.fence, bool(written.until_ms)
    slots = policy.slots_after(draft.slots, draft.changes)
    view.head = Head(written, {**draft.cursors, **draft.moved}, tuple(slots.values()))
