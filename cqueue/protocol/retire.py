"""Retiring a wide row: dropped whole when it is over, empty, and nothing can land in it any more."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol import policy
from cqueue.protocol.budget import GENTLE_TOMBSTONES
from cqueue.protocol.draft import Draft
from cqueue.protocol.fresh import together
from cqueue.protocol.shards import epoch_of
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import RowView
from cqueue.store.operations import (
    DeleteMessages,
    DropBodies,
    IdSlice,
    ReadIds,
    ReadSlice,
    SlotState,
    UnregisterShard,
)

PRIORITIES = range(10)
SIDE_BY_SIDE = 4
QUARANTINE_REST_US = 60_000_000
"""A wide row that only rows in quarantine keep from being retired is looked at again after this time."""
PASS_IDS = 100
"""Ids of one read of a pass: one that is alive is enough to keep the wide row."""
READS_AT_ONCE = 60
"""A claim makes no more of them for a pass: messages of other wide rows wait meanwhile."""
Found = dict[int, list[int]]
"""Ids by priority."""
GROWTH = 4
"""How much longer pieces get where none of them crossed anything."""


class Piece(NamedTuple):
    """A part of one priority: after < id <= upto."""

    priority: int
    after: int
    upto: int


def may_retire(draft: Draft) -> bool:
    """Whether a pass is worth it: the row is over since W + ε, no slot in use, no sweep open."""
    if draft.now_us < draft.view.retire_at_us(draft.spec) or draft.grants:
        return False
    if any(change.row.ids for change in draft.head.changes.values()):
        return False
    idle = {key for key, change in draft.head.changes.items() if not change.row.ids}
    if any((slot.priority, slot.number) not in idle for slot in draft.head.in_use()):
        return False
    return all(draft.head.cursor(p).cursor >= draft.head.cursor(p).boundary for p in draft.view.priorities)


def try_retire(draft: Draft) -> Proto[None]:
    """Pass over the row from its start; drop it if nothing is alive, else take what was found.

    The pass began after end + W + ε, because `draft.now_us` was read before everything else. It goes on in
    the next claim where this one has read enough: what it passed stays empty, as nothing acknowledged lands
    there any more, and each claim sees for itself that no slot is in use.
    """
    view = draft.view
    if not may_retire(draft):
        return
    if not view.reading.passed.upto:
        view.reading.budget.restart()
    found = yield from _pass_others(draft)
    left = READS_AT_ONCE
    for priority in sorted(view.priorities):
        if not found and left > 0:
            found, reads = yield from _pass_priority(draft, priority, left)
            left -= reads
    if found:
        view.reading.passed.restart()
        yield from _take_strays(draft, found)
    elif all(view.reading.passed.upto.get(priority, 0) >= _end(draft) for priority in PRIORITIES):
        draft.retire = not view.reading.passed.quarantine
        if view.reading.passed.quarantine:
            view.reading.passed.restart()
            view.rest_until_us = draft.now_us + QUARANTINE_REST_US


def _end(draft: Draft) -> int:
    return ids.highest_at(draft.view.end_us)


def _pass_others(draft: Draft) -> Proto[Found]:
    """Live ids of the priorities that nobody uses: each in one read, as nothing lies there."""
    view = draft.view
    others = [p for p in PRIORITIES if p not in view.priorities and p not in view.reading.passed.upto]
    found, _ = yield from _pass_over(draft, [Piece(priority, ids.START, _end(draft)) for priority in others])
    if not found:
        view.reading.passed.upto.update(dict.fromkeys(others, _end(draft)))
    return found


def _pass_priority(draft: Draft, priority: int, most: int) -> Proto[tuple[Found, int]]:
    """Live ids of one priority, read on until some are found or `most` reads are made; and how many were.

    Below the boundary lie tombstones, so that pieces are cut by what is known of them. Above it nobody took
    much: pieces grow there, until they cross tombstones after all (of a purge).
    """
    view, at, end, reads = draft.view, draft.head.cursor(priority), _end(draft), 0
    after = view.reading.passed.upto.get(priority, ids.lowest_at(view.wide_row.time_shard * 1000) - 1)
    longest_us = view.reading.budget.pace_us
    while after < end and reads < most:
        pieces: list[Piece] = []
        while len(pieces) < SIDE_BY_SIDE and after < end:
            pace_us = view.reading.budget.pace_us if view.open or after < at.boundary else longest_us
            upto = view.reading.budget.piece_end(priority, after, end, pace_us)
            pieces.append(Piece(priority, after, upto))
            after = upto
        reads += len(pieces)
        try:
            found, crossed = yield from _pass_over(draft, pieces)
        except NotDone:
            view.reading.budget.failed()
            raise
        if found:
            return found, reads
        view.reading.passed.upto[priority] = after
        view.reading.budget.crossed(crossed)
        is_clear = crossed <= GENTLE_TOMBSTONES and not view.reading.budget.cautious
        longest_us = longest_us * GROWTH if is_clear else view.reading.budget.pace_us
    return {}, reads


def _pass_over(draft: Draft, pieces: list[Piece]) -> Proto[tuple[Found, int]]:
    """Live ids by priority in some pieces of the row, read side by side; tombstones crossed at most."""
    if not pieces:
        return {}, 0
    row, found = draft.view.wide_row, dict[int, list[int]]()
    answers: list[IdSlice] = yield from together(*(ReadIds(row, *piece, PASS_IDS) for piece in pieces))
    for piece, answer in zip(pieces, answers, strict=True):
        some = yield from _not_in_quarantine(draft, piece, answer)
        if some:
            found.setdefault(piece.priority, []).extend(some)
    return found, max(answer.tombstones for answer in answers)


def _not_in_quarantine(draft: Draft, piece: Piece, answer: IdSlice) -> Proto[list[int]]:
    """Ids of a piece that are not in quarantine; where an answer is full of others, those behind it."""
    aside = _set_aside(draft, piece.priority)
    while True:
        some = [i for i in answer.ids if i not in aside and not ids.is_any_of_row(i, answer.damaged)]
        draft.view.reading.passed.quarantine |= len(some) < len(answer.ids)
        if some or len(answer.ids) < PASS_IDS:
            return some
        rest = piece._replace(after=answer.ids[-1])
        answer = yield from ReadIds(draft.view.wide_row, *rest, PASS_IDS)


def _take_strays(draft: Draft, found: Found) -> Proto[None]:
    """Messages behind a cursor: sent late, or brought back by a repair. Deliver them.

    What cannot be read stays, and with it the wide row: it is looked at again after a while.
    """
    view, damaged = draft.view, tuple[int, ...]()
    for priority, strays in found.items():
        view.priorities.add(priority)
        wanted = draft.head.unlisted(priority, sorted(strays))[: max(0, draft.left)]
        if wanted:
            read = ReadSlice(view.wide_row, priority, wanted[0] - 1, wanted[-1], len(wanted))
            rows, _, damaged = yield from read
            reached = policy.seen_upto(rows, wanted)
            rows = [row for row in rows if row.id in wanted]
            if rows:
                draft.grant(priority, rows, 1)
            gone = {id_ for id_ in wanted if id_ <= reached} - {row.id for row in rows}
            phantoms = {id_ for id_ in gone if not ids.is_any_of_row(id_, damaged)}
            yield from _delete_phantoms(draft, priority, phantoms)
    if damaged and not draft.grants:
        view.rest_until_us = draft.now_us + QUARANTINE_REST_US


def _set_aside(draft: Draft, priority: int) -> set[int]:
    """What slots in quarantine list."""
    slots = [slot for slot in draft.head.slots.values() if slot.state is SlotState.QUARANTINED]
    return {id_ for slot in slots if slot.priority == priority for id_ in slot.ids}


def _delete_phantoms(draft: Draft, priority: int, phantoms: set[int]) -> Proto[None]:
    """Delete ids that seemed to be live, but have no message.

    They were acked a moment ago, or never acknowledged: read repair has brought some columns of an insert to
    other replicas, and then its only copy was lost. Left there they would keep the wide row for ever. Whoever
    sends one of them again now would not be acknowledged, whether the wide row is retired first or not.
    """
    if phantoms:
        with suppress(NotDone, OutcomeUnknown):
            yield from DeleteMessages(draft.view.wide_row, priority, tuple(sorted(phantoms)))


def finish_retirement(view: RowView, spec: QueueSpec) -> Proto[None]:
    """Drop the bodies and the registry row of a retired wide row; repeating it is harmless."""
    queue, time_shard, shard = view.wide_row
    yield from together(
        DropBodies(view.wide_row, policy.bodies_dropped_at_us(view.end_us)),
        UnregisterShard(queue, epoch_of(spec, view.wide_row), time_shard, shard),
    )
