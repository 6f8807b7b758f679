"""Retiring a wide row: dropped whole when it is over, empty, and nothing can land in it any more."""

from __future__ import annotations

from cqueue import ids
from cqueue.protocol.draft import Draft
from cqueue.protocol.fresh import together
from cqueue.protocol.shards import epoch_of
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import RowView
from cqueue.store.operations import DropBodies, IdSlice, ReadIds, ReadMessages, UnregisterShard

PRIORITIES = range(10)
SIDE_BY_SIDE = 4


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
    others = [p for p in PRIORITIES if p not in draft.view.priorities]
    found = yield from _pass_over(draft, others, [(ids.START, _end(draft))])
    start_us = draft.view.wide_row.time_shard * 1000
    while not found and start_us < draft.view.end_us:
        pieces: list[tuple[int, int]] = []
        while len(pieces) < SIDE_BY_SIDE and start_us < draft.view.end_us:
            upto_us = start_us + draft.view.pace_us
            upto = ids.lowest_at(upto_us) - 1 if upto_us < draft.view.end_us else _end(draft)
            pieces.append((ids.lowest_at(start_us) - 1, upto))
            start_us = upto_us
        found = yield from _pass_over(draft, sorted(draft.view.priorities), pieces)
    if found:
        yield from _take_strays(draft, found)
    else:
        draft.retire = True


def _end(draft: Draft) -> int:
    return ids.highest_at(draft.view.end_us)


def _pass_over(
    draft: Draft, priorities: list[int], pieces: list[tuple[int, int]]
) -> Proto[dict[int, list[int]]]:
    """Live ids by priority in some pieces of the row, after < id <= upto, read side by side."""
    if not priorities:
        return {}
    row, found = draft.view.wide_row, dict[int, list[int]]()
    asked = [(p, piece) for piece in pieces for p in priorities]
    answers: list[IdSlice] = yield from together(
        *(ReadIds(row, p, after, upto, 100) for p, (after, upto) in asked)
    )
    for (priority, _), answer in zip(asked, answers, strict=True):
        if answer.ids:
            found.setdefault(priority, []).extend(answer.ids)
    for start in range(0, len(answers), len(priorities)):
        draft.view.keep_pace(max(one.tombstones for one in answers[start : start + len(priorities)]))
    return found


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
