"""How much a queue holds, roughly: cheap enough for a monitor that asks twice a minute.

Of each wide row the head is read, and of each priority the ids above its boundary. Below it stand messages
that landed late; they are missed until a consumer's sweep finds them. The number of reads and of ids is
bounded, oldest first, so that a backlog of millions costs no more than one of ten thousand; `at_least` names
the figures that may be higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cqueue import ids
from cqueue.errors import NotDone
from cqueue.protocol import shards
from cqueue.protocol.fresh import together
from cqueue.protocol.sanity import is_lost
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.survey import END, Counts, count_one, count_slots, first_wide_rows, states_of
from cqueue.store.operations import Head, IdSlice, Now, ReadHead, ReadIds, SlotState, Together, WideRow

PAGE = 1000
MOST_IDS = 10_000
"""Ids that an estimate reads of one queue: beyond them the count is a lower bound."""
MOST_READS = 512
"""Pages of ids of one queue, empty ones among them."""
MOST_ROWS = 512
"""Wide rows whose heads are read."""
MOST_EPOCHS = 64
"""Parts of the registry, an hour each at most."""
AT_ONCE = 16


class _Scan(NamedTuple):
    """Where to go on reading the ids of one priority."""

    wide_row: WideRow
    priority: int
    after: int
    states: Mapping[int, SlotState]


def estimate(spec: QueueSpec) -> Proto[Counts]:
    """What a queue holds, counted up to the bounds above. `live` is the sum of the other figures."""
    counts = Counts()
    rows, whole = yield from first_wide_rows(spec, MOST_EPOCHS)
    now_us = yield from Now()
    counts.wide_rows = len(rows)
    counts.future_wide_rows = sum(not _has_begun(row, now_us) for row, _ in rows)
    if not whole:
        _leave(counts, due=False)
    if len(rows) > MOST_ROWS:
        _leave(counts, due=_has_begun(rows[MOST_ROWS][0], now_us), slots=True)
    scans = yield from _heads(counts, rows[:MOST_ROWS], now_us)
    yield from _ids(counts, scans, now_us)
    return counts


def _has_begun(wide_row: WideRow, now_us: int) -> bool:
    return wide_row.time_shard * 1000 <= now_us


def _leave(counts: Counts, *, due: bool, slots: bool = False) -> None:
    """Note that something is not counted. due: messages that are due may be among it."""
    names = {"delayed", "live"}
    if due:
        names |= {"ready", "claimed", "waiting"} if slots else {"ready"}
    counts.at_least |= names


def _heads(counts: Counts, rows: Sequence[tuple[WideRow, frozenset[int]]], now_us: int) -> Proto[list[_Scan]]:
    scans: list[_Scan] = []
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        heads: list[Head] = yield from together(*(ReadHead(row) for row, _ in some))
        for (row, priorities), head in zip(some, heads, strict=True):
            count_slots(counts, head)
            for priority in sorted(priorities):
                after = _boundary(row, head, priority, now_us)
                scans.append(_Scan(row, priority, after, states_of(head, priority)))
    return scans


def _boundary(row: WideRow, head: Head, priority: int, now_us: int) -> int:
    """Above which messages stand that nobody has claimed; open wide rows have none."""
    at = head.cursors.get(priority)
    return ids.START if at is None or shards.is_open(row) or is_lost(at, now_us) else at.boundary


def _ids(counts: Counts, scans: list[_Scan], now_us: int) -> Proto[None]:
    reads = 0
    while scans and reads < MOST_READS and counts.live < MOST_IDS:
        some, scans = scans[:AT_ONCE], scans[AT_ONCE:]
        reads += len(some)
        pages = yield from Together(tuple(ReadIds(*scan[:3], END, PAGE) for scan in some))
        full: list[_Scan] = []
        for scan, page in zip(some, pages, strict=True):
            if isinstance(page, NotDone):  # too many tombstones to cross
                _leave(counts, due=_has_begun(scan.wide_row, now_us))
                continue
            if isinstance(page, Exception):
                raise page
            _count(counts, scan, page, now_us)
            if len(page.ids) == PAGE:
                full.append(scan._replace(after=page.ids[-1]))
        scans = full + scans
    for scan in scans:
        at_us = max(scan.wide_row.time_shard * 1000, ids.time_us(scan.after) if scan.after else 0)
        _leave(counts, due=at_us <= now_us)


def _count(counts: Counts, scan: _Scan, page: IdSlice, now_us: int) -> None:
    counts.quarantined += len(page.damaged)
    for id_ in page.ids:
        if id_ not in scan.states and not ids.is_any_of_row(id_, page.damaged):
            count_one(counts, None, ids.time_us(id_), now_us)
