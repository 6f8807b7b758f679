"""Messages that nobody has claimed yet: the slice above the boundary, a look-back, and the sweep.

Rows become visible out of order: a producer's clock may lag, its write may be slow. The slice reads
on from the boundary; the look-back finds at once most of what landed just below it; the sweep finds
all the rest, and is what lets the cursor move. A sweep counts only if it *began* W + ε after the
time up to which the cursor moves: an acknowledged message cannot appear there any more.

Open wide rows have no cursor, because messages may land in them at any time: each poll reads what
became due since the last one, whole passes follow at growing intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from cqueue import ids
from cqueue.protocol import policy
from cqueue.protocol.draft import MAX_CLAIM_BYTES, MOST_LISTED, Draft, Known, listed_above, within_bytes
from cqueue.protocol.sanity import is_lost
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import Ahead, RowView, fence_of
from cqueue.store.operations import (
    CursorRow,
    IdSlice,
    MessageRow,
    Operation,
    ReadIds,
    ReadMessages,
    ReadSlice,
    Slice,
    Together,
)

READ_BYTES = 4 << 20
UNREAD_SHARE = MAX_CLAIM_BYTES // READ_BYTES
"""Bodies that no slice holds are loaded once claimed: of those a read shows as many as a claim takes."""
MAX_IDS = 2000
LOOK_BACK_GAP_US = 100_000
SWEEP_GAP_US = 100_000
"""A sweep that cannot reach the boundary yet, because messages land there all the time, waits so long."""
LOWER_PRIORITIES_SHARE = 10
"""One claim in so many begins with a less urgent priority, so that none starves."""
MAX_PIECES = 16
AHEAD_US = 500_000
"""What was read ahead of a claim that came later than this is read again."""


class Late(NamedTuple):
    """Reads below the boundary: first a piece of the sweep up to `upto`, if that is above the cursor.

    looks: they look back as well.
    """

    upto: int
    reads: list[ReadIds]
    looks: bool


def take_fresh(draft: Draft) -> Proto[None]:
    """Take what is due and unlisted, priority by priority."""
    for priority in _order(draft.view):
        if draft.left <= 0:
            draft.more = True
            return
        if draft.view.open:
            yield from _take_open(draft, priority)
        else:
            yield from _take_normal(draft, priority)


def _order(view: RowView) -> list[int]:
    urgent = sorted(view.priorities)
    turn, share = divmod(view.claims, LOWER_PRIORITIES_SHARE)
    if len(urgent) > 1 and share == LOWER_PRIORITIES_SHARE - 1:
        first = 1 + turn % (len(urgent) - 1)
        return urgent[first:] + urgent[:first]
    return urgent


# ── normal wide rows ──


def _take_normal(draft: Draft, priority: int) -> Proto[None]:
    draft.view.budget.restart()
    for _ in range(MAX_PIECES):
        goes_on = yield from _take_piece(draft, priority)
        if not goes_on or draft.grants or draft.left <= 0:
            return


def _take_piece(draft: Draft, priority: int) -> Proto[bool]:
    """Read slice, look-back and one piece of the sweep side by side; True if there is more to read.

    Further pieces come without the slice, if it was read to its end.
    """
    at = draft.cursor(priority)
    known, draft.beside = draft.beside, None
    if known is None or known.at != at:
        known = yield from _read(draft, at)
    slice_, upto, pieces = known.slice, known.upto, known.pieces
    rows, began_us = slice_.rows, slice_.began_us
    counts_us = policy.counts_from_us(began_us, draft.now_us)
    if known.looked:
        draft.view.looked_us[priority] = draft.now_us
    late = [id_ for piece in pieces for id_ in _readable(piece)]
    if upto > at.cursor:
        upto = _swept_end(draft, pieces[0], upto)
    upto = yield from _take_late(draft, priority, draft.unlisted(priority, late), upto)
    boundary, whole = _take_slice(draft, priority, rows, whole=slice_.whole)
    if whole:
        boundary = max(boundary, slice_.damaged_to)
    passed = [row.id for row in rows if row.id <= boundary]
    if passed:
        draft.took.append((priority, at.boundary, passed))
    if max(upto, at.cursor) >= at.boundary:  # the slice goes on where the sweep ends
        upto = max(upto, min(boundary, policy.horizon(draft.spec, counts_us)))
    draft.move(priority, upto, max(boundary, at.boundary))
    draft.more = draft.more or not whole
    if whole:
        draft.sliced.add(priority)
    if boundary and not whole and (draft.next is None or draft.next.priority == priority):
        left = [row for row in rows if row.id > boundary]
        draft.next = Ahead(priority, boundary, left, began_us)
    moved = draft.cursor(priority)
    goes_on = _sweep_end(draft.view, draft.spec, moved, draft.now_us) > moved.cursor
    if upto > at.cursor and not goes_on:
        draft.view.swept_us[priority] = draft.now_us
    return goes_on or not whole


def _read(draft: Draft, at: CursorRow) -> Proto[Known]:
    """The slice above the boundary, and the late reads beside it."""
    view, now_us = draft.view, draft.now_us
    late, known = _late(view, draft.spec, at, now_us), _known_slice(draft, at)
    if known is not None:
        pieces = (yield from together(*late.reads)) if late.reads else []
        return Known(at, known, late.upto, pieces, late.looks)
    limit = _rows_at_once(view, at.priority, draft.left + len(listed_above(draft.slots.values(), at)))
    slice_ = ReadSlice(view.wide_row, at.priority, at.boundary, ids.highest_at(now_us), limit)
    reads = Reads(at, now_us, limit, slice_, late)
    return reads.known((yield from together(*reads.all)))


def _known_slice(draft: Draft, at: CursorRow) -> Ahead | None:
    """The slice, if it need not be read: there is no more of it, or it was read ahead.

    What was read ahead has to be young enough, and to fill a claim.
    """
    if at.priority in draft.sliced:
        return Ahead(at.priority, at.boundary, [], draft.now_us, whole=True)
    ahead = draft.view.ahead
    if ahead is None or ahead[:2] != (at.priority, at.boundary):
        return None
    fills = len(ahead.rows) >= _rows_at_once(draft.view, at.priority, draft.left)
    return ahead if fills and draft.now_us - ahead.began_us < AHEAD_US else None


class Reads(NamedTuple):
    """Reads of one priority, side by side from `now_us` on: a slice of up to `limit` rows, and late ones."""

    at: CursorRow
    now_us: int
    limit: int
    slice: ReadSlice
    late: Late

    @property
    def all(self) -> tuple[Operation[Any], ...]:
        """As operations."""
        return (self.slice, *self.late.reads)

    def known(self, answers: Sequence[Any]) -> Known:
        """What they gave."""
        found, pieces = cast("Slice", answers[0]), list(answers[1:])
        rows = found.rows
        whole, damaged_to = len(rows) < self.limit, max(found.damaged, default=0)
        slice_ = Ahead(self.at.priority, self.at.boundary, rows, self.now_us, whole, damaged_to=damaged_to)
        return Known(self.at, slice_, self.late.upto, pieces, self.late.looks)


def beside_head(view: RowView, spec: QueueSpec, now_us: int, want: int) -> Reads | None:
    """What a claim will want to read if the head's fence is still the one that we know, as is likely."""
    head = view.head
    if head is None or view.fence is None or fence_of(head) != view.fence or not policy.is_whole(head):
        return None
    if view.open or not (view.expects_no_rival(now_us) and view.is_current(now_us)):
        return None
    priority = _order(view)[0]
    at = head.cursors.get(priority) or CursorRow(priority, 0, 0)
    if is_lost(at, now_us) or (view.ahead is not None and view.ahead[:2] == (at.priority, at.boundary)):
        return None
    view.budget.restart()
    limit = _rows_at_once(view, priority, want + len(listed_above(head.slots, at)))
    slice_ = ReadSlice(view.wide_row, priority, at.boundary, ids.highest_at(now_us), limit)
    return Reads(at, now_us, limit, slice_, _late(view, spec, at, now_us))


def next_slice(draft: Draft) -> ReadSlice | None:
    """What to read while the mutation is on its way, as the next claim will want it at once."""
    ahead = draft.next
    if ahead is None or not draft.renews:
        return None
    limit = _rows_at_once(draft.view, ahead.priority, draft.asked)
    if len(ahead.rows) >= limit:
        return None
    after, missing = (ahead.rows[-1].id if ahead.rows else ahead.after), limit - len(ahead.rows)
    return ReadSlice(draft.view.wide_row, ahead.priority, after, ids.highest_at(draft.now_us), missing)


def _sweep_end(view: RowView, spec: QueueSpec, at: CursorRow, now_us: int) -> int:
    """Up to where one piece of the sweep reads: not beyond the boundary, the horizon, or its pace."""
    seen = policy.horizon(spec, now_us)
    last = min(at.boundary, seen)
    if last <= at.cursor:
        return at.cursor
    if seen < at.boundary and now_us - view.swept_us.get(at.priority, 0) < SWEEP_GAP_US:
        return at.cursor
    known = view.budget.known_end(at.priority, at.cursor, last)
    if known is not None:
        return known
    start_us = max(ids.time_us(at.cursor), view.wide_row.time_shard * 1000)
    return min(last, max(at.cursor, ids.lowest_at(start_us + view.budget.pace_us)))


def _late(view: RowView, spec: QueueSpec, at: CursorRow, now_us: int) -> Late:
    """One piece of the sweep, and the look-back."""
    upto, reads = _sweep_end(view, spec, at, now_us), list[ReadIds]()
    if upto > at.cursor:
        reads.append(ReadIds(view.wide_row, at.priority, at.cursor, upto, MAX_IDS))
    back = look_back(view, spec, at, now_us)
    if back is not None and max(back.after, upto) < back.upto:
        after = max(back.after, upto)
        reads.append(ReadIds(view.wide_row, at.priority, after, back.upto, MAX_IDS))
    return Late(upto, reads, back is not None)


class LookBack(NamedTuple):
    """Where to look once more: after < id <= upto."""

    after: int
    upto: int


def look_back(view: RowView, spec: QueueSpec, at: CursorRow, now_us: int) -> LookBack | None:
    """What to read below the boundary: ε of it where messages lie sparsely, else what we took last.

    What others took they look back to themselves: nobody else knows how many tombstones lie there.
    None: it is not due, or there is nothing to look at.
    """
    recent = view.budget.recent(at.priority)
    if recent is None or at.cursor >= at.boundary:
        return None
    if now_us - view.looked_us.get(at.priority, 0) < LOOK_BACK_GAP_US:
        return None
    sparse = view.budget.is_sparse(at.priority, spec.skew_us)
    upto = at.boundary if sparse else min(recent[1], at.boundary)
    after = max(at.cursor, ids.lowest_at(ids.time_us(upto) - spec.skew_us), 0 if sparse else recent[0])
    return LookBack(after, upto) if after < upto else None


def _readable(piece: IdSlice) -> list[int]:
    if not piece.damaged:
        return piece.ids
    return [id_ for id_ in piece.ids if not ids.is_any_of_row(id_, piece.damaged)]


def _swept_end(draft: Draft, piece: IdSlice, upto: int) -> int:
    """How far a piece really got: not past the last id of a truncated read."""
    draft.view.budget.crossed(piece.tombstones)
    return min(upto, piece.ids[-1]) if len(piece.ids) == MAX_IDS else upto


def _take_late(draft: Draft, priority: int, late: list[int], upto: int) -> Proto[int]:
    """Take rows that landed below the boundary; the cursor stays below the first one left behind."""
    if not late:
        return upto
    late.sort()
    wanted = late[: min(draft.left, MOST_LISTED)]
    rows = yield from ReadMessages(draft.view.wide_row, priority, tuple(wanted))
    if rows:
        draft.grant(priority, rows, 1)
    if len(late) > len(wanted):
        draft.more = True
        return min(upto, late[len(wanted)] - 1)
    return upto


def _take_slice(draft: Draft, priority: int, rows: list[MessageRow], *, whole: bool) -> tuple[int, bool]:
    """Take a slice's unlisted rows; the new boundary, and whether all that there is was taken."""
    listed = draft.listed.get(priority, ())
    fresh = [row for row in rows if row.id not in listed] if listed else rows
    count = min(within_bytes(fresh), max(0, draft.left))
    whole = whole and count == len(fresh)
    _learn(draft.view, priority, rows)
    if count < len(fresh):
        fresh = fresh[:count]
        rows = fresh
    if fresh:
        draft.grant(priority, fresh, 1)
    return (rows[-1].id if rows else 0), whole


def _learn(view: RowView, priority: int, rows: list[MessageRow]) -> None:
    """Adjust the estimates by which the next reads are bounded."""
    if not rows:
        return
    sizes = [len(row.body) if row.body is not None else (row.size or 0) // UNREAD_SHARE for row in rows]
    view.sizes.saw(priority, sum(sizes) // len(rows) + 64, len(rows))
    if view.open:  # of others it is known between two boundaries
        span_us = ids.time_us(rows[-1].id) - ids.time_us(rows[0].id)
        view.budget.saw(len(rows), ids.rows_of([row.id for row in rows]), span_us)


def _rows_at_once(view: RowView, priority: int, want: int) -> int:
    """How many of so many rows one read may give, going by how large they were."""
    return max(1, min(want, view.sizes.within(priority, READ_BYTES)))


# ── open wide rows ──


def _take_open(draft: Draft, priority: int) -> Proto[None]:
    """Read on from the floor in pieces until something is found or the present is reached."""
    view, now_us = draft.view, draft.now_us
    present = ids.highest_at(now_us)
    recent = ids.lowest_at(now_us - draft.spec.settle_us - draft.spec.skew_us)
    floor = _floor(draft, priority)
    limit = _rows_at_once(view, priority, draft.left)
    while floor < present and draft.left > 0:
        upto = min(present, ids.highest_at(ids.time_us(floor) + view.budget.pace_us))
        found = yield from ReadSlice(view.wide_row, priority, floor, upto, limit)
        view.budget.crossed(found.tombstones)
        last, whole = _take_slice(draft, priority, found.rows, whole=len(found.rows) < limit)
        if not whole:
            draft.floors[priority] = min(max(floor, last), recent)  # what is younger may still land
            draft.more = True
        floor = upto if whole else max(floor, last)
        if draft.grants and not whole:
            return
    if floor >= present:
        draft.floors[priority] = recent
    else:  # enough was found; nobody has looked behind it
        draft.more = True


def _floor(draft: Draft, priority: int) -> int:
    """Where to read on: W + ε before the last poll began, or the start when a whole pass is due."""
    view = draft.view
    start = ids.lowest_at(view.wide_row.time_shard * 1000)
    if draft.now_us >= view.floors.pass_at_us:
        view.floors.start_pass(draft.now_us)
        view.budget.restart()
    return max(start, view.floors.by_priority.get(priority, start))


def together(*operations: Operation[Any]) -> Proto[list[Any]]:
    """Run reads side by side; the first error of any is raised."""
    if len(operations) == 1:
        return [(yield from operations[0])]
    results = yield from Together(operations)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
