"""Retiring a wide row: dropped whole when it is over, empty, and nothing can land in it any more."""

from __future__ import annotations

from typing import NamedTuple

from cqueue import ids
from cqueue.errors import NotDone
from cqueue.protocol.draft import Draft
from cqueue.protocol.fresh import together
from cqueue.protocol.shards import epoch_of
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import GENTLE_TOMBSTONES, RowView
from cqueue.store.operations import DropBodies, IdSlice, ReadIds, ReadMessages, UnregisterShard

PRIORITIES = range(10)
SIDE_BY_SIDE = 4
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
    if any(change.row.ids for change in draft.changes.values()):
        return False
    idle = {key for key, change in draft.changes.items() if not change.row.ids}
    if any((slot.priority, slot.number) not in idle for slot in draft.in_use()):
        return False
    return all(draft.cursor(p).cursor >= draft.cursor(p).boundary for p in draft.view.priorities)


def try_retire(draft: Draft) -> Proto[None]:
    """Pass over the row from its start; drop it if nothing is alive, else take what was found.

    The pass began after end + W + ε, because `draft.now_us` was read before everything else.
    """
    if not may_retire(draft):
        return
    draft.view.set_out()
    others = [Piece(p, ids.START, _end(draft)) for p in PRIORITIES if p not in draft.view.priorities]
    found, _ = yield from _pass_over(draft, others)
    for priority in sorted(draft.view.priorities):
        if not found:
            found = yield from _pass_priority(draft, priority)
    if found:
        yield from _take_strays(draft, found)
    else:
        draft.retire = True


def _end(draft: Draft) -> int:
    return ids.highest_at(draft.view.end_us)


def _pass_priority(draft: Draft, priority: int) -> Proto[dict[int, list[int]]]:
    """Live ids of one priority, the row read from its start until some are found.

    Below the boundary lie tombstones, so that pieces are cut by what is known of them. Above it nobody took
    anything: pieces grow there, until they cross tombstones after all (of a purge).
    """
    view, at, end = draft.view, draft.cursor(priority), _end(draft)
    after = ids.lowest_at(view.wide_row.time_shard * 1000) - 1
    longest_us = view.pace_us
    while after < end:
        pieces: list[Piece] = []
        while len(pieces) < SIDE_BY_SIDE and after < end:
            pace_us = view.pace_us if view.open or after < at.boundary else longest_us
            upto = view.gentle_end(priority, after, end)
            if upto is None:
                upto = min(end, ids.lowest_at(ids.time_us(after) + 1 + pace_us) - 1)
            pieces.append(Piece(priority, after, upto))
            after = upto
        try:
            found, crossed = yield from _pass_over(draft, pieces)
        except NotDone:
            view.be_cautious()
            raise
        if found:
            return found
        view.keep_pace(crossed)
        longest_us = view.pace_us if view.cautious or crossed > GENTLE_TOMBSTONES else longest_us * GROWTH
    return {}


def _pass_over(draft: Draft, pieces: list[Piece]) -> Proto[tuple[dict[int, list[int]], int]]:
    """Live ids by priority in some pieces of the row, read side by side; tombstones crossed at most."""
    if not pieces:
        return {}, 0
    row, found = draft.view.wide_row, dict[int, list[int]]()
    answers: list[IdSlice] = yield from together(*(ReadIds(row, *piece, 100) for piece in pieces))
    for piece, answer in zip(pieces, answers, strict=True):
        if answer.ids:
            found.setdefault(piece.priority, []).extend(answer.ids)
    return found, max(answer.tombstones for answer in answers)


def _take_strays(draft: Draft, found: dict[int, list[int]]) -> Proto[None]:
    """Messages behind a cursor: sent late, so never acknowledged. Delivering them is the safe answer."""
    for priority, strays in found.items():
        draft.view.priorities.add(priority)
        wanted = tuple(draft.unlisted(priority, strays)[: max(0, draft.left)])
        if wanted:
            rows = yield from ReadMessages(draft.view.wide_row, priority, wanted)
            if rows:
                draft.grant(priority, rows, 1)


def finish_retirement(view: RowView, spec: QueueSpec) -> Proto[None]:
    """Drop the bodies and the registry row of a retired wide row; repeating it is harmless."""
    queue, time_shard, shard = view.wide_row
    yield from together(
        DropBodies(view.wide_row, view.end_us),  # above all of them, and long past on any clock
        UnregisterShard(queue, epoch_of(spec, view.wide_row), time_shard, shard),
    )
