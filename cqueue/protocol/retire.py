"""Retire a wide row: drop it whole when it is over and empty, and nothing can land in it any more."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import lock, policy
from cqueue.protocol.budget import TARGET_TOMBSTONES
from cqueue.protocol.claim_draft import Draft
from cqueue.protocol.registry import epoch_of
from cqueue.protocol.row_memory import RowMemory
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    DeleteMessages,
    DropBodies,
    HasMessages,
    IdSlice,
    ReadIds,
    ReadSlice,
    SlotState,
    UnregisterShard,
    together,
)

PRIORITIES = range(10)
"""All priorities: a pass reads those, too, that no registration names."""
SIDE_BY_SIDE = 4
"""Pieces that a pass reads at once: a pass is not urgent, and must not crowd out other reads."""
QUARANTINE_REST_US = 60_000_000
"""µs until the next pass over a wide row that only rows in quarantine keep: an operator has to mend them."""
PASS_IDS = 100
"""Ids that one read of a pass asks for: one live id is enough to keep the wide row."""
READS_AT_ONCE = 60
"""Reads that one claim makes at most for a pass: messages of other wide rows wait meanwhile."""
LiveIds = dict[int, list[int]]
"""Live ids, by priority."""
GROWTH = 4
"""Factor by which pieces above the boundary get longer while they cross few tombstones."""


class Piece(NamedTuple):
    """Ids of one priority that a pass reads: after < id <= upto."""

    priority: int
    after: int
    upto: int


def is_idle(draft: Draft) -> bool:
    """Return whether a pass is due: no slot is in use, and no sweep is open."""
    changes = draft.head.changes
    if any(change.row.ids for change in changes.values()):
        return False
    if any(slot.place not in changes for slot in draft.head.in_use()):
        return False
    return all(draft.head.cursor(p).cursor >= draft.head.cursor(p).boundary for p in draft.memory.priorities)


def try_retire(draft: Draft) -> Proto[bool]:
    """Drop the row, which is over, if nothing in it is alive. Return False if the claim has to begin again.

    One read shows that, where it crosses few tombstones; elsewhere a pass does, by a consumer that holds the
    lock. Both began after end + W + ε, because the claim did.
    """
    if not is_idle(draft):
        return True
    if draft.memory.remembered.locked:
        yield from _pass(draft)
        return True
    draft.retire = yield from _is_bare(draft)
    if not draft.retire:
        yield from lock.acquire(draft.memory, draft.spec)  # one consumer passes over a wide row at a time
    return draft.retire


def _is_bare(draft: Draft) -> Proto[bool]:
    """Return whether one read shows that nothing is left; False also where it might cross many tombstones."""
    memory = draft.memory
    named = sum(map(len, memory.reads.named.values()))
    if memory.open or not memory.reads.budget.crosses_few(draft.head.cursors.values(), named=named):
        return False
    try:
        return not (yield from HasMessages(memory.wide_row))
    except NotDone:
        memory.reads.budget.note_failure()
        raise


def _pass(draft: Draft) -> Proto[None]:
    """Pass over the row from its start; drop it if nothing is alive, otherwise take the strays found.

    A long pass continues in the next claims. What it has passed stays empty, as nothing acknowledged lands
    there any more, and each claim checks that no slot is in use.
    """
    memory = draft.memory
    passed = memory.reads.retirement_pass
    if not passed.upto:
        memory.reads.budget.restart()
    found = yield from _pass_others(draft)
    left = READS_AT_ONCE
    for priority in sorted(memory.priorities):
        if not found and left > 0:
            found, reads = yield from _pass_priority(draft, priority, left)
            left -= reads
    if found:
        passed.restart()
        yield from _take_strays(draft, found)
    elif all(passed.upto.get(priority, 0) >= _end(draft) for priority in PRIORITIES):
        draft.retire = not passed.quarantine
        if passed.quarantine:
            passed.restart()
            memory.rest_until_us = draft.now_us + QUARANTINE_REST_US


def _end(draft: Draft) -> int:
    return ids.highest_at(draft.memory.end_us)


def _pass_others(draft: Draft) -> Proto[LiveIds]:
    """Return live ids of the unregistered priorities, each read at once, as they should be empty."""
    upto = draft.memory.reads.retirement_pass.upto
    others = [p for p in PRIORITIES if p not in draft.memory.priorities and p not in upto]
    found, _ = yield from _pass_over(draft, [Piece(priority, ids.START, _end(draft)) for priority in others])
    if not found:
        upto.update(dict.fromkeys(others, _end(draft)))
    return found


def _pass_priority(draft: Draft, priority: int, most: int) -> Proto[tuple[LiveIds, int]]:
    """Pass over one priority until live ids are found or `most` reads are made; return both.

    Below the boundary the tombstone budget bounds the pieces. Above the boundary few messages were taken, so
    pieces grow until they do cross tombstones, e.g. those of a purge.
    """
    memory, at, end, reads = draft.memory, draft.head.cursor(priority), _end(draft), 0
    budget, passed = memory.reads.budget, memory.reads.retirement_pass.upto
    after = passed.get(priority, ids.lowest_at(memory.wide_row.time_shard * 1000) - 1)
    longest_us = budget.piece_us
    while after < end and reads < most:
        pieces: list[Piece] = []
        while len(pieces) < SIDE_BY_SIDE and after < end:
            piece_us = budget.piece_us if memory.open or after < at.boundary else longest_us
            upto = budget.piece_end(priority, after, end, piece_us)
            pieces.append(Piece(priority, after, upto))
            after = upto
        reads += len(pieces)
        try:
            found, crossed = yield from _pass_over(draft, pieces)
        except NotDone:
            budget.note_failure()
            raise
        if found:
            return found, reads
        passed[priority] = after
        budget.note_tombstones(crossed)
        is_clear = crossed <= TARGET_TOMBSTONES and not budget.cautious
        longest_us = longest_us * GROWTH if is_clear else budget.piece_us
    return {}, reads


def _pass_over(draft: Draft, pieces: list[Piece]) -> Proto[tuple[LiveIds, int]]:
    """Read pieces side by side; return their live ids, and the most tombstones that one read crossed."""
    if not pieces:
        return {}, 0
    row, found = draft.memory.wide_row, dict[int, list[int]]()
    answers: list[IdSlice] = yield from together(*(ReadIds(row, *piece, PASS_IDS) for piece in pieces))
    for piece, answer in zip(pieces, answers, strict=True):
        some = yield from _not_in_quarantine(draft, piece, answer)
        if some:
            found.setdefault(piece.priority, []).extend(some)
    return found, max(answer.tombstones for answer in answers)


def _not_in_quarantine(draft: Draft, piece: Piece, answer: IdSlice) -> Proto[list[int]]:
    """Return live ids of a piece that are not in quarantine, reading on where a page holds only such ids."""
    aside = _set_aside(draft, piece.priority)
    while True:
        some = [i for i in answer.ids if i not in aside and not ids.is_any_of_row(i, answer.damaged)]
        draft.memory.reads.retirement_pass.quarantine |= len(some) < len(answer.ids)
        if some or len(answer.ids) < PASS_IDS:
            return some
        rest = piece._replace(after=answer.ids[-1])
        answer = yield from ReadIds(draft.memory.wide_row, *rest, PASS_IDS)


def _take_strays(draft: Draft, found: LiveIds) -> Proto[None]:
    """Take messages found behind a cursor, which were sent late or brought back by a repair.

    An unreadable message stays, and so does its wide row, until the next pass after a rest.
    """
    memory, any_damaged = draft.memory, False
    for priority, strays in found.items():
        memory.priorities.add(priority)
        wanted = draft.head.unlisted(priority, sorted(strays))[: draft.left]
        if wanted:
            read = ReadSlice(memory.wide_row, priority, wanted[0] - 1, wanted[-1], len(wanted))
            rows, _, damaged = yield from read
            any_damaged |= bool(damaged)
            reached = policy.seen_upto(rows, wanted)
            rows = [row for row in rows if row.id in wanted]
            if rows:
                draft.grant(priority, rows, 1)
            gone = {id_ for id_ in wanted if id_ <= reached} - {row.id for row in rows}
            phantoms = {id_ for id_ in gone if not ids.is_any_of_row(id_, damaged)}
            yield from _delete_phantoms(draft, priority, phantoms)
    if any_damaged and not draft.grants:
        memory.rest_until_us = draft.now_us + QUARANTINE_REST_US


def _set_aside(draft: Draft, priority: int) -> set[int]:
    """Return the ids that slots in quarantine list."""
    slots = [slot for slot in draft.head.slots.values() if slot.state is SlotState.QUARANTINED]
    return {id_ for slot in slots if slot.priority == priority for id_ in slot.ids}


def _delete_phantoms(draft: Draft, priority: int, phantoms: set[int]) -> Proto[None]:
    """Delete ids that a read of ids showed, but that have no message.

    Such a message was acked a moment ago, or its send was never acknowledged: read repair copied some columns
    of an insert to other replicas before the only whole copy was lost. Left alone, the id would keep the wide
    row for ever. A sender that repeats such a send now would not be acknowledged, whether the wide row is
    retired first or not.
    """
    if phantoms:
        with suppress(NotDone, OutcomeUnknown):
            yield from DeleteMessages(draft.memory.wide_row, priority, tuple(sorted(phantoms)))


def finish_retirement(memory: RowMemory, spec: QueueSpec) -> Proto[None]:
    """Drop the bodies and the registry row of a retired wide row. A repeat is harmless."""
    queue, time_shard, shard = memory.wide_row
    yield from together(
        DropBodies(memory.wide_row, policy.bodies_dropped_at_us(memory.end_us)),
        UnregisterShard(queue, epoch_of(spec, memory.wide_row), time_shard, shard),
    )
