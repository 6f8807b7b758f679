"""Take messages that nobody has claimed yet: by a slice above the boundary, a look-back, and a sweep.

Rows become visible out of order: a producer's clock may lag, or its write be slow. The slice reads above the
boundary. The look-back soon finds most messages that landed just below the boundary. The sweep finds all the
others, and only the sweep lets the cursor move. A sweep counts only if it *began* W + ε after the time up to
which the cursor moves: no acknowledged message can appear there any more.

Open wide rows have no cursor, because messages may land in them at any time. Each poll reads what became due
since the last poll, and by its id what a hint named before that; passes over the whole row follow at growing
intervals.
"""

from __future__ import annotations

from typing import NamedTuple

from cqueue import ids
from cqueue.errors import TooManyTombstones
from cqueue.protocol import policy
from cqueue.protocol.budget import TARGET_TOMBSTONES
from cqueue.protocol.claim_draft import MAX_CLAIM_BYTES, MAX_LISTED, Draft, listed_above, within_bytes
from cqueue.protocol.row_memory import ReadAhead, RowMemory
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    CursorRow,
    IdSlice,
    MessageRow,
    ReadIds,
    ReadMessages,
    ReadSlice,
    together,
)

READ_BYTES = 4 << 20
"""Bytes of bodies that one slice aims at: large enough for a batch, small beside a client's memory."""
LARGE_BODY_DIVISOR = MAX_CLAIM_BYTES // READ_BYTES
"""Divisor for the size of a large body. A slice does not load large bodies; the claim does afterwards, within
`MAX_CLAIM_BYTES`. So a slice may list this many times more bytes of them."""
MAX_IDS = 2000
"""Ids that one look-back or one piece of a sweep reads: a small answer, and twice what one slot can list."""
LOOK_BACK_GAP_US = 100_000
"""Least µs between two look-backs of one priority: late messages wait 0.1 s, a busy consumer reads little."""
SWEEP_GAP_US = 100_000
"""Least µs between two sweeps that cannot reach the boundary, because messages land there all the time."""
LOWER_PRIORITY_EVERY = 10
"""One claim in ten begins with a less urgent priority, so that none starves."""
MAX_PIECES = 16
"""Pieces of one priority that a claim reads at most: they bound how long a claim takes."""
READ_AHEAD_AGE_US = 500_000
"""Age in µs at which messages read ahead are read again: by then another client may have purged them."""


class ReadAnswers(NamedTuple):
    """Answers to the reads of one priority: a slice above the boundary, and pieces below it to `upto`.

    has_look_back: a look-back is among the pieces.
    """

    slice: ReadAhead
    upto: int
    pieces: list[IdSlice]
    has_look_back: bool


def take_unclaimed(draft: Draft) -> Proto[None]:
    """Take due messages that no slot lists, priority by priority."""
    for priority in _order(draft.memory):
        if draft.left <= 0:
            draft.more = True
            return
        if draft.memory.open:
            yield from _take_open(draft, priority)
        else:
            yield from _take_normal(draft, priority)


def _order(memory: RowMemory) -> list[int]:
    urgent = sorted(memory.priorities)
    turn, share = divmod(memory.claims, LOWER_PRIORITY_EVERY)
    if len(urgent) > 1 and share == LOWER_PRIORITY_EVERY - 1:
        first = 1 + turn % (len(urgent) - 1)
        return urgent[first:] + urgent[:first]
    return urgent


# ── normal wide rows ──


def _take_normal(draft: Draft, priority: int) -> Proto[None]:
    at = draft.head.cursor(priority)
    if at.cursor < at.boundary:  # a sweep begins
        draft.memory.reads.budget.restart()
    whole = False
    for number in range(MAX_PIECES):
        try:
            whole, goes_on = yield from _take_piece(draft, priority, sliced=whole)
        except TooManyTombstones:
            draft.memory.reads.budget.note_refusal(priority)
            if not (number or draft.grants or draft.head.moved):
                raise
            whole = False  # what was read before is written
            break
        if (whole and not goes_on) or draft.grants:
            break
    draft.more = draft.more or not whole


def _take_piece(draft: Draft, priority: int, *, sliced: bool) -> Proto[tuple[bool, bool]]:
    """Take from a slice, a look-back and one piece of the sweep, read side by side.

    Return whether the slice was taken to its end, and whether the sweep has more pieces.
    sliced: an earlier piece read the slice to its end, so this one reads no slice.
    """
    memory, head, spec = draft.memory, draft.head, draft.spec
    at = head.cursor(priority)
    slice_, upto, pieces, has_look_back = yield from _read(draft, at, sliced=sliced)
    rows, began_us = slice_.rows, slice_.began_us
    counts_us = policy.counts_from_us(began_us, draft.now_us)
    if has_look_back:
        memory.reads.looked_back_us[priority] = draft.now_us
    late = [id_ for piece in pieces for id_ in _readable(piece)]
    if upto > at.cursor:
        upto = _swept_end(draft, pieces[0], upto)
    upto = yield from _take_late(draft, priority, head.unlisted(priority, late), upto)
    boundary, whole = _take_slice(draft, priority, rows, whole=slice_.whole)
    if whole:
        boundary = max(boundary, slice_.damaged_to, _passed_in_vain(memory, spec, slice_, counts_us))
        whole = not slice_.upto
    passed = [row.id for row in rows if row.id <= boundary]
    if passed:
        draft.learned.took.append((priority, at.boundary, passed))
    if max(upto, at.cursor) >= at.boundary:  # the slice begins where the sweep ends, so it is the sweep
        upto = max(upto, min(boundary, policy.horizon(spec, counts_us)))
    head.move(priority, upto, max(boundary, at.boundary))
    if draft.learned.next is None or draft.learned.next.priority == priority:
        left = [row for row in rows if row.id > boundary]
        goes_behind = bool(boundary) and not whole
        draft.learned.next = ReadAhead(priority, boundary, left, began_us) if goes_behind else None
    moved = head.cursor(priority)
    goes_on = _sweep_end(memory, spec, moved, draft.now_us) > moved.cursor
    if upto > at.cursor and not goes_on:
        memory.reads.swept_us[priority] = draft.now_us
    return whole, goes_on


def _read(draft: Draft, at: CursorRow, *, sliced: bool) -> Proto[ReadAnswers]:
    """Read the slice above the boundary, and beside it what lies below the boundary.

    That is a piece of the sweep, if one is due, and a look-back.
    """
    memory, spec, now_us, priority = draft.memory, draft.spec, draft.now_us, at.priority
    row, upto = memory.wide_row, _sweep_end(memory, spec, at, now_us)
    late = [ReadIds(row, priority, at.cursor, upto, MAX_IDS)] if upto > at.cursor else []
    back = look_back(memory, spec, at, now_us)
    if back is not None and max(back.after, upto) < back.upto:
        late.append(ReadIds(row, priority, max(back.after, upto), back.upto, MAX_IDS))
    slice_ = ReadAhead(priority, at.boundary, [], now_us, whole=True) if sliced else _ahead(draft, at)
    if slice_ is not None:
        return ReadAnswers(slice_, upto, (yield from together(*late)), back is not None)
    listed = listed_above(draft.head.slots.values(), at, now_us)
    limit, present = _rows_at_once(memory, priority, draft.left + len(listed)), _present(memory, now_us)
    end = memory.reads.budget.reach(priority, at.boundary, present)
    found, *pieces = yield from together(ReadSlice(row, priority, at.boundary, end, limit), *late)
    slice_ = ReadAhead(
        priority,
        at.boundary,
        found.rows,
        now_us,
        whole=len(found.rows) < limit,
        damaged_to=max(found.damaged, default=0),
        upto=end if end < present else 0,
        tombstones=found.tombstones,
    )
    return ReadAnswers(slice_, upto, pieces, back is not None)


def _ahead(draft: Draft, at: CursorRow) -> ReadAhead | None:
    """Return the slice that was read ahead, if it is young enough and fills a claim."""
    ahead = draft.memory.remembered.read_ahead
    if ahead is None or ahead[:2] != (at.priority, at.boundary):
        return None
    fills = len(ahead.rows) >= _rows_at_once(draft.memory, at.priority, draft.left)
    return ahead if fills and draft.now_us - ahead.began_us < READ_AHEAD_AGE_US else None


def next_slice(draft: Draft, ahead: ReadAhead) -> ReadSlice | None:
    """Plan the rest of the next claim's slice, to be read while this claim's mutation is on its way."""
    limit = _rows_at_once(draft.memory, ahead.priority, draft.want)
    if len(ahead.rows) >= limit:
        return None
    after, missing = (ahead.rows[-1].id if ahead.rows else ahead.after), limit - len(ahead.rows)
    end = draft.memory.reads.budget.reach(ahead.priority, after, _present(draft.memory, draft.now_us))
    return ReadSlice(draft.memory.wide_row, ahead.priority, after, end, missing)


def _present(memory: RowMemory, now_us: int) -> int:
    """Return up to which id messages of a wide row may be due: now, or where the wide row ends."""
    return ids.highest_at(min(now_us, memory.end_us))


def _sweep_end(memory: RowMemory, spec: QueueSpec, at: CursorRow, now_us: int) -> int:
    """Return the end of the next piece of the sweep: the boundary, the horizon, or the tombstone budget."""
    seen = policy.horizon(spec, now_us)
    last = min(at.boundary, seen)
    if last <= at.cursor:
        return at.cursor
    if seen < at.boundary and now_us - memory.reads.swept_us.get(at.priority, 0) < SWEEP_GAP_US:
        return at.cursor
    return memory.reads.budget.piece_end(at.priority, at.cursor, last)


class LookBack(NamedTuple):
    """Ids that a look-back reads: after < id <= upto."""

    after: int
    upto: int


def look_back(memory: RowMemory, spec: QueueSpec, at: CursorRow, now_us: int) -> LookBack | None:
    """Return what to read below the boundary; None if no look-back is due, or nothing lies there.

    Where messages are sparse that is the last ε below the boundary, else what this consumer took last.
    Other consumers look back over what they took: only they know how many tombstones lie there.
    """
    recent = memory.reads.budget.recent(at.priority)
    if recent is None or at.cursor >= at.boundary:
        return None
    if now_us - memory.reads.looked_back_us.get(at.priority, 0) < LOOK_BACK_GAP_US:
        return None
    sparse = memory.reads.budget.is_sparse(at.priority, spec.skew_us)
    upto = at.boundary if sparse else min(recent[1], at.boundary)
    after = max(at.cursor, ids.lowest_at(ids.time_us(upto) - spec.skew_us), 0 if sparse else recent[0])
    return LookBack(after, upto) if after < upto else None


def _passed_in_vain(memory: RowMemory, spec: QueueSpec, slice_: ReadAhead, counts_us: int) -> int:
    """Return up to where the boundary may move though a whole slice had nothing there; 0 for nowhere.

    A purge leaves tombstones above the boundary, which each read from there would cross again. What lands
    below a boundary is found by the look-back or the sweep.
    """
    memory.reads.budget.note_reached(slice_.priority, slice_.tombstones, present=not slice_.upto)
    if slice_.upto:
        return slice_.upto
    if slice_.tombstones <= TARGET_TOMBSTONES:
        return 0
    return min(policy.horizon(spec, counts_us), ids.highest_at(memory.end_us))


def _readable(piece: IdSlice) -> list[int]:
    if not piece.damaged:
        return piece.ids
    return [id_ for id_ in piece.ids if not ids.is_any_of_row(id_, piece.damaged)]


def _swept_end(draft: Draft, piece: IdSlice, upto: int) -> int:
    """Return the end that a piece of the sweep reached: the last id of the answer if it was cut off."""
    draft.memory.reads.budget.note_tombstones(piece.tombstones)
    return min(upto, piece.ids[-1]) if len(piece.ids) == MAX_IDS else upto


def _take_late(draft: Draft, priority: int, late: list[int], upto: int) -> Proto[int]:
    """Take messages that landed below the boundary; return how far the cursor may move.

    The cursor stays below the first message that is left behind.
    """
    if not late:
        return upto
    wanted = late[: min(draft.left, MAX_LISTED)]
    rows = yield from ReadMessages(draft.memory.wide_row, priority, tuple(wanted))
    if rows:
        draft.grant(priority, rows, 1)
    if len(late) > len(wanted):
        draft.more = True
        return min(upto, late[len(wanted)] - 1)
    return upto


def _take_slice(draft: Draft, priority: int, rows: list[MessageRow], *, whole: bool) -> tuple[int, bool]:
    """Take a slice's unlisted messages; return the new boundary, and whether everything was taken."""
    listed = draft.head.listed.get(priority, ())
    unlisted = [row for row in rows if row.id not in listed] if listed else rows
    count = min(within_bytes(unlisted), draft.left)
    whole = whole and count == len(unlisted)
    _update_estimates(draft.memory, priority, rows)
    if count < len(unlisted):
        unlisted = unlisted[:count]
        rows = unlisted
    if unlisted:
        draft.grant(priority, unlisted, 1)
    return (rows[-1].id if rows else 0), whole


def _update_estimates(memory: RowMemory, priority: int, rows: list[MessageRow]) -> None:
    """Update the estimates of size and density that bound the next reads."""
    if not rows:
        return
    sizes = [len(row.body) if row.body is not None else (row.size or 0) // LARGE_BODY_DIVISOR for row in rows]
    memory.reads.sizes.note_read(priority, sum(sizes) // len(rows) + 64, len(rows))
    if memory.open:  # of a normal wide row, the density between two boundaries is known exactly
        span_us = ids.time_us(rows[-1].id) - ids.time_us(rows[0].id)
        memory.reads.budget.note_density(len(rows), ids.rows_of([row.id for row in rows]), span_us)


def _rows_at_once(memory: RowMemory, priority: int, want: int) -> int:
    """Return how many of `want` messages one read may ask for, by their usual size."""
    return max(1, min(want, memory.reads.sizes.count_within(priority, READ_BYTES)))


# ── open wide rows ──


def _take_open(draft: Draft, priority: int) -> Proto[None]:
    """Read an open wide row in pieces, from its floor until messages are found, or up to now or its end."""
    memory, now_us = draft.memory, draft.now_us
    budget, present = memory.reads.budget, _present(memory, now_us)
    recent = ids.lowest_at(now_us - draft.spec.settle_us - draft.spec.skew_us)
    floor = begin = _floor(draft, priority)
    if not (yield from _take_named(draft, priority, floor)):
        draft.more = True
        return
    limit = _rows_at_once(memory, priority, draft.left)
    while floor < present and draft.left > 0:
        reach = budget.reach(priority, floor, present)
        upto = min(reach, budget.piece_end(priority, floor, present))
        try:
            found = yield from ReadSlice(memory.wide_row, priority, floor, upto, limit)
        except TooManyTombstones:
            budget.note_refusal(priority)
            if not (floor > begin or draft.grants):
                raise
            draft.learned.floors[priority], draft.more = min(floor, recent), True
            return
        budget.note_tombstones(found.tombstones)
        if upto == reach:
            budget.note_reached(priority, found.tombstones, present=reach == present)
        last, whole = _take_slice(draft, priority, found.rows, whole=len(found.rows) < limit)
        if not whole:
            draft.learned.floors[priority] = min(max(floor, last), recent)  # later ones may still land
            draft.more = True
        floor = upto if whole else max(floor, last)
        if draft.grants and not whole:
            return
    if floor >= present:
        budget.note_reached(priority, 0, present=True)
        draft.learned.floors[priority] = recent
    else:  # the claim is full, and nothing behind its last message was read
        draft.more = True


def _take_named(draft: Draft, priority: int, floor: int) -> Proto[bool]:
    """Take what hints have named up to the floor, by its ids; return whether that is all."""
    named = draft.memory.reads.floors.named.get(priority, ())
    late = sorted(draft.head.unlisted(priority, [id_ for id_ in named if id_ <= floor]))
    if not late:
        return True
    limit = _rows_at_once(draft.memory, priority, draft.left)
    rows = yield from ReadMessages(draft.memory.wide_row, priority, tuple(late), limit)
    _, whole = _take_slice(draft, priority, rows, whole=len(rows) < limit)
    return whole


def _floor(draft: Draft, priority: int) -> int:
    """Return where reading begins: W + ε before the last poll began, or the start if a pass is due."""
    memory = draft.memory
    start = ids.lowest_at(memory.wide_row.time_shard * 1000)
    if draft.now_us >= memory.reads.floors.pass_at_us:
        memory.reads.floors.start_pass(draft.now_us, memory.end_us)
        memory.reads.budget.restart()
    return max(start, memory.reads.floors.by_priority.get(priority, start))
