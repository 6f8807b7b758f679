"""Claim messages from a wide row: a fence, reads, and one conditional mutation.

The order is the protocol. First a claim learns the fence, and takes the lock where other consumers claim too.
Then it reads cursors and slots. Then it reads messages, and skips those that any slot lists. Then it sends
one conditional mutation that lists what it takes, moves the cursors and releases the lock. It delivers
messages only when the mutation is known to be applied.

The fence keeps claims apart; the lock only keeps others from reading in vain. Only a claim lists ids that no
slot listed, and every claim changes the fence. Holders merely move ids from slot to slot. So while a fence
stands, all ids listed now were listed in each head read with that fence. That allows two shortcuts:

- Shortly after a probe, or this consumer's own claim, the head need not be read: it is as it was read, or as
  that claim left it, except for what other consumers gave back.
- Messages that a hint names may be claimed by an earlier head alone, and read beside the mutation. A claim by
  name moves neither cursor nor boundary, so later reads find what no hint has named.

Messages that were nacked, snoozed or released are taken in batches. A message that a holder let expire may
have killed that holder. So each such message gets a slot of its own, and a process holds one of them at a
time: a message that kills its worker cannot use up the attempts of others.
"""

from __future__ import annotations

from contextlib import suppress

from cqueue.errors import LeaseLost, NotDone, OutcomeUnknown, unknown_if_not_done
from cqueue.protocol import ack, claim_draft, lock, policy, retire, unclaimed
from cqueue.protocol.claim_draft import Claim, Draft, HeadDraft
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.lock import mutate_once, mutate_once_beside, new_owner, prepare_fence
from cqueue.protocol.policy import Disposition
from cqueue.protocol.retire import finish_retirement
from cqueue.protocol.row_memory import Hint, ReadAhead, RowMemory, fence_of
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.unclaimed import next_slice
from cqueue.store.operations import Head, Mutate, Now, ReadMessages, SlotRow, SlotState

TRIES = 4
"""Most tries of a claim that other consumers outrun: the second reads the head again, and the third also
takes the lock, so a fourth failure means that the wide row is contended."""

MAX_SLOTS_BY_NAME = 16
"""Slots of one priority that claims by name make at most: every read of the head reads them."""

BURIED_AT_ONCE = 10
"""Messages that one claim takes to bury from a slot: each needs its own slot, and several requests."""
FREED_AT_ONCE = 20
"""Slots without a live message that one claim frees at most: a holder that died may leave many, and each adds
a row to the claim's mutation."""


def claim(
    memory: RowMemory,
    spec: QueueSpec,
    gate: SuspectGate,
    want: int,
    *,
    stay: bool = True,
    hint: Hint | None = None,
    told: bool = False,
) -> Proto[Claim]:
    """Take up to `want` messages from one wide row; return an empty claim if there is nothing to take.

    stay: keep the lock briefly if there are more messages, because the next claim follows at once.
    hint: all that is known of the wide row; the claim may take what it names, and look no further.
    told: a hint has said that there is something, perhaps beside other reasons to look.

    Raises:
        NotDone: a read failed, or the mutation was certainly not applied.
        OutcomeUnknown: the mutation may be applied. Nothing is delivered; its messages come again.
    """
    if memory.retired:
        return Claim()
    claimed, most = None, min(want, claim_draft.MAX_LISTED)
    if hint is not None and len(hint.priorities) == 1 and 0 < len(hint.named) <= most:
        claimed = yield from _claim_named(memory, spec, gate, hint)
    for _ in range(TRIES):
        if claimed is None:
            claimed = yield from _claim(memory, spec, gate, want, stay=stay, told=told)
    return claimed or Claim(contended=True)


def _claim_named(memory: RowMemory, spec: QueueSpec, gate: SuspectGate, hint: Hint) -> Proto[Claim | None]:
    """Claim what a hint names by the remembered head; None if the wide row has to be read."""
    now_us = yield from Now()
    (priority,), named, head = hint.priorities, hint.named, memory.known_head(spec, now_us)
    if head is None or not memory.may_hold(priority, named, now_us):
        return None
    head_draft = HeadDraft(head, memory, (yield from new_owner()), now_us)
    unlisted = head_draft.unlisted(priority, named)
    if not unlisted:
        return Claim()  # claimed already, by this consumer or by another one
    # Claims that read the wide row have probably taken what lies below the boundary.
    is_new = len(unlisted) == len(named) and named[0] > head_draft.cursor(priority).boundary
    is_first = not head_draft.due_slots(spec)
    if not (is_new and is_first and head_draft.free_number(priority) < MAX_SLOTS_BY_NAME):
        return None
    memory.remembered.fence = fence_of(head)
    want = len(named)
    draft = Draft(spec=spec, memory=memory, gate=gate, now_us=now_us, head=head_draft, want=want, stay=False)
    draft.grant_named(priority, named)
    return (yield from _commit(draft))


def _claim(
    memory: RowMemory, spec: QueueSpec, gate: SuspectGate, want: int, *, stay: bool, told: bool
) -> Proto[Claim | None]:
    """Claim by the head, as it is remembered or as it is read; None if it has to be read (again)."""
    remembered = memory.remembered
    if remembered.fence is None and not (yield from prepare_fence(memory, spec)):
        return Claim(contended=not memory.retired)
    fence, owner = remembered.fence, (yield from new_owner())
    now_us = yield from Now()  # before all reads: cursors and retirement depend on when reads began
    if is_read := not memory.has_current_head(now_us):
        remembered.note_read((yield from lock.read_whole(memory.wide_row)), now_us)
        if remembered.fence != fence:
            return None
    head = HeadDraft(remembered.head or Head(), memory, owner, now_us)
    if is_read:
        memory.finished = list(head.finished.values())
    draft = Draft(spec=spec, memory=memory, gate=gate, now_us=now_us, head=head, want=want, stay=stay)
    try:
        yield from take_due_slots(draft)
        yield from unclaimed.take_unclaimed(draft)
        if told and not (is_read or draft.grants):
            remembered.read_us = 0  # a slot may have been moved to now since, which no fence shows
            return None
        may_go = policy.retires(remembered.read_us, memory.retire_at_us(spec))
        if may_go and not (yield from retire.try_retire(draft)):
            return None
        return (yield from _commit(draft))
    finally:
        if draft.reserved:
            gate.end_reservation()


# ── slots whose timeout has passed ──


def take_due_slots(draft: Draft) -> Proto[None]:
    """Take over due slots, the longest due first; take a suspect alone.

    A slot without a live message is freed, and the claim goes on to the next one.
    """
    for slot in sorted(draft.head.due_slots(draft.spec), key=lambda slot: slot.due_ms):
        if draft.listable <= 0:
            draft.more = True
            return
        goes = policy.disposition_of(slot, draft.spec)
        if goes is Disposition.BURY:
            yield from _take_dead(draft, slot)
        elif goes is Disposition.DELIVER:
            yield from _take_waiting(draft, slot)
        elif _looks_for_suspect(draft) and (draft.reserved or draft.gate.reserve(draft.now_us // 1000)):
            draft.reserved = True  # reserved until the claim is over, for the first one that lives
            yield from take_suspect(draft, slot)


def _looks_for_suspect(draft: Draft) -> bool:
    """Return whether the claim may still take a suspect: it has taken nothing, and freed few slots."""
    return not draft.grants and len(draft.head.changes) < FREED_AT_ONCE


def _take_waiting(draft: Draft, slot: SlotRow) -> Proto[None]:
    chunk, rest = slot.ids[: draft.listable], slot.ids[draft.listable :]
    rows = yield from ReadMessages(draft.memory.wide_row, slot.priority, chunk)
    if rows:
        within = None if rest else slot
        draft.grant(slot.priority, rows, slot.attempt + 1, within=within, due_again_ms=slot.due_ms)
    if rest or not rows:
        draft.head.keep(slot, rest)
        draft.more = draft.more or bool(rest)


def take_suspect(draft: Draft, slot: SlotRow) -> Proto[None]:
    """Take the first live message of a slot alone. Ids before it are dead; those behind it stay listed."""
    rows = yield from ReadMessages(draft.memory.wide_row, slot.priority, slot.ids, limit=1)
    if not rows:
        draft.head.keep(slot, ())
        return
    draft.more = True
    rest = [id_ for id_ in slot.ids if id_ > rows[0].id]
    had = policy.alone_before(slot, draft.spec)
    within = None if rest else slot
    draft.grant(slot.priority, rows, had + 1, within=within, suspect=True, due_again_ms=slot.due_ms)
    if rest:
        draft.head.keep(slot._replace(attempt=had), rest)


def _take_dead(draft: Draft, slot: SlotRow) -> Proto[None]:
    """Take messages to bury, each in a slot of its own with its time of death.

    A consumer that takes the slot over later keeps that time and so derives the same letter id, unless the
    time is so old that tombstones could swallow the insert.
    """
    chunk, rest = slot.ids[:BURIED_AT_ONCE], slot.ids[BURIED_AT_ONCE:]
    rows = yield from ReadMessages(draft.memory.wide_row, slot.priority, chunk)
    died_at_ms = policy.kept_time_of_death(slot, draft.spec, draft.now_us // 1000)
    abandoned = slot.state is SlotState.CLAIMED and slot.died_at_ms is None  # else the burial was cut off
    for index, row in enumerate(rows):
        last = index == len(rows) - 1 and not rest
        within = slot if last else None
        draft.grant(
            slot.priority, [row], slot.attempt, within=within, died_at_ms=died_at_ms, abandoned=abandoned
        )
    if rest or not rows:
        draft.head.keep(slot, rest)


# ── the mutation ──


def _nothing(draft: Draft) -> Claim:
    """Finish a claim that has nothing to write."""
    draft.memory.reads.floors.note_read(draft.learned.floors)
    return Claim()


def _commit(draft: Draft) -> Proto[Claim | None]:
    """Write the claim's mutation; None if another client changed a slot or the lock meanwhile."""
    memory, remembered = draft.memory, draft.memory.remembered
    if not remembered.locked and draft.is_empty:
        return _nothing(draft)
    mutation, read_us = draft.mutation(), remembered.read_us
    # The head is unknown until the mutation is known to be applied.
    remembered.read_us, remembered.read_ahead = 0, None
    try:
        if mutation.lock is None or not (yield from _send_mutation(draft, mutation)):
            return None
    except OutcomeUnknown:
        if draft.grants:
            memory.left_until_ms = draft.grants[0].lease.due_ms + draft.spec.skew_us // 1000
        raise
    remembered.read_us = read_us
    remembered.note_write(draft.head.left_with(mutation.lock))
    _remember(draft)
    if draft.retire:
        yield from finish_retirement(memory, draft.spec)
    return draft.claim()


def _send_mutation(draft: Draft, mutation: Mutate) -> Proto[bool]:
    """Send the mutation, and read the next claim's slice side by side with it.

    A message read ahead is dropped if a slot lists it now. By the time of the next claim it may be acked and
    its slot be free again.
    """
    if draft.named is not None:
        return (yield from _send_beside_named(draft, mutation, draft.named))
    ahead = draft.learned.next
    if ahead is None or not draft.renews:
        return (yield from mutate_once(mutation))
    if (read := next_slice(draft, ahead)) is None:
        draft.memory.remembered.read_ahead = draft.head.without_listed(ahead)
        return (yield from mutate_once(mutation))
    applied, found = yield from mutate_once_beside(mutation, read)
    if applied and found is not None:
        rows = [*ahead.rows, *found.rows]
        began_us = ahead.began_us if ahead.rows else draft.now_us
        read_ahead = ReadAhead(ahead.priority, ahead.after, rows, began_us)
        draft.memory.remembered.read_ahead = draft.head.without_listed(read_ahead)
    return applied


def _send_beside_named(draft: Draft, mutation: Mutate, read: ReadMessages) -> Proto[bool]:
    """Send the mutation of a claim by name, and read its messages side by side with it.

    Raises:
        NotDone: the messages could not be read, and are given back.
        OutcomeUnknown: they could not be given back either, and come again after their timeout.
    """
    applied, rows = yield from mutate_once_beside(mutation, read)
    (grant,) = draft.grants
    if applied and rows is None:
        try:
            rows = yield from read
        except (NotDone, OutcomeUnknown):
            with suppress(LeaseLost), unknown_if_not_done("messages are claimed, and cannot be read"):
                yield from ack.release(grant.lease)
            raise
    grant.rows = rows or ()
    return applied


def _remember(draft: Draft) -> None:
    """Bring what is remembered of the wide row up to date with an applied mutation."""
    memory, changes = draft.memory, draft.head.changes
    memory.claims += 1
    # Later claims free these slots.
    memory.finished = [lease for lease in memory.finished if lease.slot.place not in changes]
    memory.retired = draft.retire
    if draft.named is None:
        memory.emptied_us = 0 if draft.more else memory.remembered.read_us
    else:
        memory.reads.named.setdefault(draft.named.priority, []).extend(draft.named.ids)
    memory.reads.floors.note_read(draft.learned.floors)
    for took in draft.learned.took:
        memory.reads.note_taken(*took)
