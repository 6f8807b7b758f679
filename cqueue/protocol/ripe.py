"""Timeouts that are due: waiting messages come back, and what a holder gave up is taken over.

What was nacked, snoozed or released is taken in batches, as it was. What a holder let expire may
have killed it, so from then on each such message gets a slot of its own and a process holds one of
them at a time: one that kills its worker cannot burn the attempts of its neighbours.
"""

from __future__ import annotations

from cqueue.protocol.disposition import Disposition, of_slot
from cqueue.protocol.draft import Draft
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.sanity import AHEAD_US, is_overdue
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import ReadMessages, SlotRow, SlotState

BURIED_AT_ONCE = 10
FREED_AT_ONCE = 20
"""Slots that a claim frees because nothing that they list is alive: a holder that died may leave many."""


def is_ripe(slot: SlotRow, spec: QueueSpec, now_us: int) -> bool:
    """Whether a slot's messages may be taken."""
    return slot.in_use and (now_us >= ripe_at_us(slot, spec) or is_overdue(slot, now_us))


def ripe_at_us(slot: SlotRow, spec: QueueSpec) -> int:
    """When a slot's messages may be taken: waiting ones when due, claimed ones ε later."""
    return slot.due_ms * 1000 + (spec.skew_us if slot.state is SlotState.CLAIMED else 0)


def take_ripe(draft: Draft, gate: SuspectGate) -> Proto[None]:
    """Take over what is due, the longest due first; a suspect is taken alone.

    A slot whose messages are all dead is freed, and keeps nothing else waiting.
    """
    ripe = [slot for slot in draft.head.in_use() if is_ripe(slot, draft.spec, draft.now_us)]
    for slot in sorted(ripe, key=lambda slot: slot.due_ms):
        if draft.listable <= 0:
            draft.more = True
            return
        goes = of_slot(slot, draft.spec)
        if goes is Disposition.BURY:
            yield from _take_dead(draft, slot)
        elif goes is Disposition.DELIVER:
            yield from _take_waiting(draft, slot)
        elif _looks_for_suspect(draft) and (draft.reserved or gate.reserve(draft.now_us // 1000)):
            draft.reserved = True  # reserved until the claim is over, for the first one that lives
            yield from take_suspect(draft, slot)


def _looks_for_suspect(draft: Draft) -> bool:
    """Whether a claim looks for a suspect that lives: it has taken nothing, and freed few slots."""
    return not draft.grants and len(draft.head.changes) < FREED_AT_ONCE


def alone_before(slot: SlotRow, spec: QueueSpec) -> int:
    """Attempts that messages of an expired slot have had, the last one left for each alone."""
    if spec.max_attempts and len(slot.ids) > 1:
        return min(slot.attempt, spec.max_attempts - 1)
    return slot.attempt


def _take_waiting(draft: Draft, slot: SlotRow) -> Proto[None]:
    chunk, rest = slot.ids[: draft.listable], slot.ids[draft.listable :]
    rows = yield from ReadMessages(draft.view.wide_row, slot.priority, chunk)
    if rows:
        draft.grant(slot.priority, rows, slot.attempt + 1, within=None if rest else slot)
    if rest or not rows:
        draft.head.keep(slot, rest)
        draft.more = draft.more or bool(rest)


def take_suspect(draft: Draft, slot: SlotRow) -> Proto[None]:
    """Take the first live message alone; those before it in order are dead, the others stay listed."""
    rows = yield from ReadMessages(draft.view.wide_row, slot.priority, slot.ids, limit=1)
    if not rows:
        draft.head.keep(slot, ())
        return
    draft.more = True
    rest = [id_ for id_ in slot.ids if id_ > rows[0].id]
    had = alone_before(slot, draft.spec)
    draft.grant(slot.priority, rows, had + 1, within=None if rest else slot, suspect=True)
    if rest:
        draft.head.keep(slot._replace(attempt=had), rest)


def _take_dead(draft: Draft, slot: SlotRow) -> Proto[None]:
    """Take messages to bury: each in a slot of its own, which says since when it is dead.

    A later taker keeps that time, so that it derives the same dead-letter id; unless it is so old
    that an insert under it could be lost.
    """
    chunk, rest = slot.ids[:BURIED_AT_ONCE], slot.ids[BURIED_AT_ONCE:]
    rows = yield from ReadMessages(draft.view.wide_row, slot.priority, chunk)
    died_at_ms = kept_time_of_death(slot, draft.spec, draft.now_us // 1000)
    for index, row in enumerate(rows):
        last = index == len(rows) - 1 and not rest
        within = slot if last else None
        draft.grant(slot.priority, [row], slot.attempt, within=within, died_at_ms=died_at_ms)
    if rest or not rows:
        draft.head.keep(slot, rest)


def kept_time_of_death(slot: SlotRow, spec: QueueSpec, now_ms: int) -> int:
    """The slot's own time of death; now if it has none, one older than half of gc_grace, or one ahead."""
    died_at_ms = slot.died_at_ms
    if died_at_ms is None or not -AHEAD_US // 1000 <= now_ms - died_at_ms <= spec.gc_grace_us // 2000:
        return now_ms
    return died_at_ms
