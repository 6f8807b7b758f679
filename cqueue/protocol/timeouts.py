"""Take over slots whose timeout has passed: waiting messages, and messages whose holder let them expire.

Messages that were nacked, snoozed or released are taken in batches. A message that a holder let expire may
have killed that holder. So each such message gets a slot of its own, and a process holds one of them at a
time: a message that kills its worker cannot use up the attempts of others.
"""

from __future__ import annotations

from cqueue.protocol import policy
from cqueue.protocol.claim_draft import Draft
from cqueue.protocol.disposition import Disposition, of_slot
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import ReadMessages, SlotRow, SlotState

BURIED_AT_ONCE = 10
"""Messages that one claim takes to bury from a slot: each needs its own slot, and several requests."""
FREED_AT_ONCE = 20
"""Slots without a live message that one claim frees at most: a holder that died may leave many, and each adds
a row to the claim's mutation."""


def is_slot_due(slot: SlotRow, spec: QueueSpec, now_us: int) -> bool:
    """Return whether a slot's messages may be taken."""
    return slot.in_use and (now_us >= slot_due_at_us(slot, spec) or policy.is_overdue(slot, now_us))


def slot_due_at_us(slot: SlotRow, spec: QueueSpec) -> int:
    """Return when a slot's messages may be taken: waiting ones when they are due, claimed ones ε later."""
    return slot.due_ms * 1000 + (spec.skew_us if slot.state is SlotState.CLAIMED else 0)


def take_due_slots(draft: Draft) -> Proto[None]:
    """Take over due slots, the longest due first; take a suspect alone.

    A slot without a live message is freed, and the claim goes on to the next one.
    """
    due = [slot for slot in draft.head.in_use() if is_slot_due(slot, draft.spec, draft.now_us)]
    for slot in sorted(due, key=lambda slot: slot.due_ms):
        if draft.listable <= 0:
            draft.more = True
            return
        goes = of_slot(slot, draft.spec)
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


def alone_before(slot: SlotRow, spec: QueueSpec) -> int:
    """Return the attempts used by messages of an expired slot, so that each has its last attempt alone."""
    if spec.max_attempts and len(slot.ids) > 1:
        return min(slot.attempt, spec.max_attempts - 1)
    return slot.attempt


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
    had = alone_before(slot, draft.spec)
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
    died_at_ms = kept_time_of_death(slot, draft.spec, draft.now_us // 1000)
    abandoned = slot.state is SlotState.CLAIMED and slot.died_at_ms is None  # else the burial was cut off
    for index, row in enumerate(rows):
        last = index == len(rows) - 1 and not rest
        within = slot if last else None
        draft.grant(
            slot.priority, [row], slot.attempt, within=within, died_at_ms=died_at_ms, abandoned=abandoned
        )
    if rest or not rows:
        draft.head.keep(slot, rest)


def kept_time_of_death(slot: SlotRow, spec: QueueSpec, now_ms: int) -> int:
    """Return the slot's time of death, or now if it has none, or one ahead or older than half of gc_grace."""
    died_at_ms = slot.died_at_ms
    if died_at_ms is None or not -policy.AHEAD_US // 1000 <= now_ms - died_at_ms <= spec.gc_grace_us // 2000:
        return now_ms
    return died_at_ms
