"""Probe wide rows for work by small reads, without locks.

A wide row has work when a due message that no slot lists stands above the boundary or in the look-back, when
a timeout has passed, when a sweep is due, or when the wide row can be retired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cqueue import ids
from cqueue.errors import TooManyTombstones
from cqueue.protocol import policy
from cqueue.protocol.budget import TARGET_TOMBSTONES
from cqueue.protocol.claim_draft import listed_above
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.policy import Disposition
from cqueue.protocol.retire import finish_retirement
from cqueue.protocol.row_memory import RowMemory
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.unclaimed import look_back
from cqueue.store.operations import (
    Head,
    IdSlice,
    Now,
    Operation,
    ReadHead,
    ReadIds,
    SlotRow,
    SlotState,
    Together,
)

MAX_REST_US = 2_000_000
"""µs between probes of a wide row that is over and has a claimed slot: a message that its holder gives back
waits no longer than this."""
MAX_WAITING_REST_US = 5_000_000
"""µs between probes of a wide row that is over and has only waiting slots, as thousands may for days: a
message that somebody makes due soon by its id, and whose hint is lost, waits no longer than this."""
LONGEST_OPEN_REST_US = 300_000_000
"""µs between probes of an open wide row without slots at most. A late message that another consumer took, and
that this one has not seen, waits no longer than this after its holder died."""
RESTS_AN_AGE = 16
"""Probes of such a row in the time that has passed since its end: a day of them is kept."""
PROBE_IDS = 200
"""Ids that one probe reads at most. A full answer counts as work."""


def probe(memories: Sequence[RowMemory], spec: QueueSpec, gate: SuspectGate) -> Proto[list[RowMemory]]:
    """Return those of these wide rows, of which there are some, that have work.

    Raises:
        NotDone: all reads failed.
    """
    now_us = yield from Now()
    heads = yield from _some_of([ReadHead(memory.wide_row) for memory in memories])
    busy: list[RowMemory] = []
    ask: list[RowMemory] = []
    for memory, head in zip(memories, heads, strict=True):
        if isinstance(head, Head):
            memory.remembered.note_read(head, now_us)
            if policy.is_retired(head, memory.end_us, now_us):
                memory.retired = True
                yield from finish_retirement(memory, spec)
            elif not policy.is_held(head.lock, spec, now_us):
                has_work = memory.reads.budget.is_refused or head_has_work(memory, spec, gate, now_us)
                (busy if has_work else ask).append(memory)
    return (yield from _with_fresh(busy, ask, spec, now_us))


def _some_of(reads: Sequence[Operation[Any]]) -> Proto[list[Any]]:
    """Run reads side by side; return results and errors. Raise the first error if all reads failed."""
    answers = yield from Together(tuple(reads), retried=False)  # the next poll reads again anyway
    if all(isinstance(answer, Exception) for answer in answers):
        raise answers[0]
    return answers


def head_has_work(memory: RowMemory, spec: QueueSpec, gate: SuspectGate, now_us: int) -> bool:
    """Return whether the head alone shows work: by a cursor or slot, or because the row can be retired."""
    head = memory.remembered.head or Head()
    used = [slot for slot in head.slots if slot.in_use]
    if any(can_take(slot, spec, gate, now_us) for slot in used):
        return True
    if memory.open:
        floors, may_go = memory.reads.floors, not used and now_us >= memory.retire_at_us(spec)
        return now_us >= floors.pass_at_us or any(floors.named.values()) or may_go
    if any(
        policy.is_lost(at, now_us) or policy.sweep_is_due(at, spec, now_us) for at in head.cursors.values()
    ):
        return True
    return not used and now_us >= memory.retire_at_us(spec)


def has_suspect(memory: RowMemory, spec: QueueSpec, now_us: int) -> bool:
    """Return whether the head, as last read, shows a suspect: a message to be tried again alone."""
    head = memory.remembered.head or Head()
    due = [slot for slot in head.slots if policy.is_slot_due(slot, spec, now_us)]
    return any(policy.disposition_of(slot, spec) is Disposition.ALONE for slot in due)


def can_take(slot: SlotRow, spec: QueueSpec, gate: SuspectGate, now_us: int) -> bool:
    """Return whether a slot is work: its timeout has passed, and this process may hold its messages."""
    if not policy.is_slot_due(slot, spec, now_us):
        return False
    return policy.disposition_of(slot, spec) is not Disposition.ALONE or not gate.busy(now_us // 1000)


def _with_fresh(
    busy: list[RowMemory], memories: list[RowMemory], spec: QueueSpec, now_us: int
) -> Proto[list[RowMemory]]:
    """Return `busy`, and those of `memories` that have a due message that no slot lists; let the others rest.

    Raises:
        NotDone: all reads failed, and nothing is known to have work.
    """
    asked: list[RowMemory] = []
    reads: list[ReadIds] = []
    for memory in memories:
        for priority in sorted(memory.priorities):
            for read in _looks(memory, spec, priority, now_us):
                asked.append(memory)
                reads.append(read)
    answers = (yield from Together(tuple(reads), retried=False)) if reads else []
    found = [*busy]
    for memory, read, answer in zip(asked, reads, answers, strict=True):
        if memory not in found and _shows_work(memory, spec, read, answer, now_us):
            memory.reads.looked_back_us.clear()  # so that the claim looks back, too
            found.append(memory)
    if not found and answers and all(isinstance(answer, Exception) for answer in answers):
        raise answers[0]
    unknown = [memory for memory, answer in zip(asked, answers, strict=True) if isinstance(answer, Exception)]
    for memory in memories:
        if memory not in found and memory not in unknown:
            memory.rest_until_us = _rest_until(memory, spec, now_us)
    return found


def _looks(memory: RowMemory, spec: QueueSpec, priority: int, now_us: int) -> list[ReadIds]:
    """Return the reads that show whether a priority has messages, each with just enough ids to tell."""
    row, present = memory.wide_row, ids.highest_at(min(now_us, memory.end_us))
    if memory.open:
        since = max(memory.reads.floors.by_priority.get(priority, 0), ids.lowest_at(row.time_shard * 1000))
        return [ReadIds(row, priority, since, present, PROBE_IDS)] if since < present else []
    head = memory.remembered.head or Head()
    at = head.cursor(priority)
    above = len(listed_above(head.slots, at, now_us))
    looks = [ReadIds(row, priority, at.boundary, present, min(1 + above, PROBE_IDS))]
    back = look_back(memory, spec, at, now_us)
    if back is not None:
        memory.reads.looked_back_us[priority] = now_us
        looks.append(ReadIds(row, priority, back.after, back.upto, PROBE_IDS))
    return looks


def _shows_work(memory: RowMemory, spec: QueueSpec, read: ReadIds, answer: Any, now_us: int) -> bool:
    """Return whether an answer has an id that no slot lists, or may be followed by one.

    Many tombstones above the boundary are work, too: a claim moves the boundary over them.
    """
    if isinstance(answer, TooManyTombstones):
        memory.reads.budget.note_refusal(read.priority)
        return True
    if not isinstance(answer, IdSlice):
        return False
    head = memory.remembered.head or Head()
    many = answer.tombstones > TARGET_TOMBSTONES and not memory.open
    if many and head.cursor(read.priority).boundary <= read.after < policy.horizon(spec, now_us):
        return True
    listed = head.listing(read.priority)
    return len(answer.ids) >= read.limit or any(id_ not in listed for id_ in answer.ids)


def _rest_until(memory: RowMemory, spec: QueueSpec, now_us: int) -> int:
    """Return when to probe a wide row without work again; 0 for at once, as new messages may land in it.

    A row that is over gets no new messages, so it rests until a timeout passes: for two seconds at most if a
    holder may give something back, else for five. An open one rests for longer, the older it is.
    """
    if now_us < memory.end_us + spec.settle_us + spec.skew_us:
        return 0
    used = [slot for slot in (memory.remembered.head or Head()).slots if slot.in_use]
    if any(policy.is_slot_due(slot, spec, now_us) for slot in used):
        return 0  # a suspect that may be taken as soon as this process has finished another one
    is_held_by_some = any(slot.state is SlotState.CLAIMED for slot in used)
    longest_us = MAX_REST_US if is_held_by_some or not used else MAX_WAITING_REST_US
    wake_us = [
        memory.retire_at_us(spec),
        *(policy.slot_due_at_us(slot, spec) for slot in used),
    ]
    if memory.open:
        wake_us.append(memory.reads.floors.pass_at_us)
        if not used:
            age_us = (now_us - memory.end_us) // RESTS_AN_AGE
            longest_us = max(longest_us, min(LONGEST_OPEN_REST_US, age_us))
    return min([at for at in wake_us if at > now_us] + [now_us + longest_us])
