"""Lock, read, one mutation: how a consumer comes by messages.

The order is the protocol. The lock first; then cursors and slots; then messages, which are skipped
if any slot lists them; then one conditional mutation that lists what is taken, moves the cursors and
releases the lock. Only when that is known to be applied is anything delivered.

A consumer that finds the fence that it wrote itself need not lock again: nobody has claimed since, and
if somebody does before its mutation, that fails on the fence. What keeps claims apart is the fence; the
lock only keeps others from reading in vain.

For a moment it need not even look at the head again. Only a claim lists ids that no slot listed, and a
claim changes the fence; holders merely move ids from slot to slot. So as long as the fence stands, all
that is listed now was listed when it was written, and the mutation fails if the fence does not stand.

And what this process has begun to send since then need not be read at all: see `news`.
"""

from __future__ import annotations

from cqueue.protocol import fresh, lock, policy, retire
from cqueue.protocol.draft import Claim, Draft
from cqueue.protocol.fresh import beside_head, next_slice, read_on, take_told
from cqueue.protocol.lock import acquire, new_owner, settle, settle_beside
from cqueue.protocol.retire import finish_retirement
from cqueue.protocol.ripe import is_ripe, take_ripe
from cqueue.protocol.spec import Proto, QueueSpec, SuspectGate
from cqueue.protocol.view import Ahead, Coming, RowView
from cqueue.store.operations import Head, MessageRow, Mutate, Now


def claim(view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool = True) -> Proto[Claim]:
    """Take up to `want` messages from one wide row; an empty claim if there is nothing to take.

    stay: keep the lock for a moment if more is there, because the next claim will follow at once.

    Raises:
        NotDone: a read failed, or the mutation certainly did.
        OutcomeUnknown: the mutation may be applied; nothing is delivered, its messages come again.
    """
    claimed = yield from _claim_on(view, spec, gate, want, stay=stay)
    if claimed is not None:
        return claimed
    known = view.fence is not None
    if not known and not (yield from acquire(view, spec)):
        return Claim()
    owner = yield from new_owner()
    now_us = yield from Now()  # before all reads: cursors and retirement hang on when those began
    view.heard.begin(now_us)
    before, beside = view.head, beside_head(view, spec, now_us, want) if known else None
    head, found = yield from lock.read_whole(view.wide_row, beside.all if beside else ())
    if head.lock is None or head.lock.fence != view.fence:
        view.rivals.met(head, view.fence)
        view.fence, view.locked = None, False  # somebody else has claimed meanwhile
        view.head, view.rival_us = head, now_us
        return (yield from claim(view, spec, gate, want, stay=stay)) if known else Claim()
    draft = Draft(spec, view, head, now_us, owner, want=want, stay=stay)
    if beside is not None and found is not None and before is not None:
        draft.beside = beside.known(found)
        draft.skip_listed(before)
    view.head, view.head_us = head, now_us
    view.finished = list(draft.finished.values())
    try:
        yield from _fill(draft, gate)
        return (yield from _commit(draft, gate)) or Claim(passed_over=draft.passed_over)
    finally:
        if draft.suspect:
            gate.settle()


def _claim_on(
    view: RowView, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool
) -> Proto[Claim | None]:
    """Take what nobody has claimed yet, going by the head as our last claim left it; None: read it."""
    now_us = yield from Now()
    head = view.head
    if head is None or not view.remembers_head(now_us):
        return None
    owner = yield from new_owner()
    draft = Draft(spec, view, head, now_us, owner, want=want, stay=stay)
    if any(is_ripe(slot, spec, now_us) for slot in draft.in_use()):
        return None
    draft.changed = [lease for lease in view.finished if lease not in draft.finished.values()]
    if not take_told(draft):
        if not view.is_current(now_us):
            return None
        yield from fresh.take_fresh(draft)
    return (yield from _commit(draft, gate)) if draft.grants else None


def _fill(draft: Draft, gate: SuspectGate) -> Proto[None]:
    yield from take_ripe(draft, gate)
    yield from fresh.take_fresh(draft)
    if not draft.grants:
        yield from retire.try_retire(draft)


def _commit(draft: Draft, gate: SuspectGate) -> Proto[Claim | None]:
    """What is ours now; None if a slot or the lock was changed meanwhile: the next head read tells."""
    view = draft.view
    if not view.locked and draft.is_empty:
        return None
    mutation, read_us = draft.mutation(), view.head_us
    # What the head is like is not known until the mutation is known to be applied.
    view.head_us, view.ahead = 0, None
    if mutation.lock is None or not (yield from _settle(draft, mutation)):
        return None
    view.head_us = read_us
    _remember(draft, mutation)
    if draft.retire:
        yield from finish_retirement(view, draft.spec)
    return draft.claim(gate, mutation.lock.fence)


def _settle(draft: Draft, mutation: Mutate) -> Proto[bool]:
    """Write, and while that is on its way read what the next claim will want at once.

    Of what is kept for that, nothing may be listed now: when it is claimed, its slot may be free again.
    """
    view, ahead, coming = draft.view, draft.next, next_slice(draft)
    if coming is None or ahead is None:
        view.ahead = draft.without_listed(ahead) if ahead is not None and draft.renews else None
        return (yield from settle(mutation))
    applied, found = yield from settle_beside(mutation, coming.read)
    if applied and found is not None:
        view.ahead = yield from _kept(draft, ahead, coming, found.rows)
    return applied


def _kept(draft: Draft, ahead: Ahead, coming: Coming, rows: list[MessageRow]) -> Proto[Ahead]:
    """What the next claim will find read; what stands behind that is being read if it will want it."""
    is_full, began_us = len(rows) >= coming.limit, coming.began_us
    if coming is ahead.coming and ahead.rows:  # what the claim left stands before it
        rows, began_us = [*ahead.rows, *rows], ahead.began_us
    kept = draft.without_listed(Ahead(ahead.priority, ahead.after, rows, began_us), coming.listed)
    # Behind the last one that is kept, where the boundary will stand: nothing before that counts as read.
    behind = (yield from read_on(draft, kept)) if is_full else None
    return kept._replace(coming=behind)


def _remember(draft: Draft, mutation: Mutate) -> None:
    """Bring the view up to date with an applied mutation."""
    view, written = draft.view, mutation.lock
    view.claims += 1
    view.finished = [*draft.changed, *draft.finished.values()]  # the next claims' to free
    view.retired = draft.retire
    for grant in draft.grants:
        view.heard.took(grant.slot.priority, grant.slot.ids, read=draft.looked)
    for priority, at in draft.moved.items():
        view.heard.passed(priority, at.boundary)
    if draft.looked:
        view.seen_us = 0 if draft.more or draft.passed_over else view.head_us
        view.heard.whole = not draft.more
    view.floors.update(draft.floors)
    for priority, stretches in draft.taken.items():
        for stretch in stretches:
            view.took(priority, stretch)
    for priority, stretches in draft.passed.items():
        for stretch in stretches:
            view.note_passed(priority, stretch)
    if written is not None:
        view.fence, view.tally, view.locked = written.fence, written.tally, bool(written.until_ms)
    slots = policy.slots_after(draft.slots, draft.changes)
    view.head = Head(written, {**draft.cursors, **draft.moved}, tuple(slots.values()))
