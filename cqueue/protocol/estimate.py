"""Estimate what a queue holds, cheaply enough for a monitor that asks twice a minute.

An estimate reads the head of each wide row, and the ids above the boundary of each priority. It misses late
messages below a boundary until a consumer's sweep finds them. Reads and ids are bounded, the oldest come
first, and a backlog of millions costs no more than one of ten thousand. `Counts.at_least` names the figures
that may be higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cqueue import ids
from cqueue.errors import NotDone
from cqueue.protocol import policy, shards
from cqueue.protocol.inspection import END, Counts, count_one, count_slots, first_wide_rows
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.sequences import parts
from cqueue.store.operations import (
    Head,
    IdSlice,
    Now,
    ReadHead,
    ReadIds,
    SlotRow,
    Together,
    WideRow,
    together,
)

PAGE = 1000
"""Ids that one read asks for: few enough for a quick answer, so that 16 reads side by side are light."""
MAX_IDS = 10_000
"""Ids read of one queue. A larger count is a lower bound; an operator needs it no more exactly than that."""
MAX_READS = 512
"""Pages of ids read of one queue, empty pages included: 32 rounds of 16 reads side by side."""
MAX_ROWS = 512
"""Wide rows whose heads are read: 32 rounds of 16 reads side by side."""
MAX_EPOCHS = 64
"""Epochs read of the registry: more than two days, as each covers an hour at most."""
AT_ONCE = 16
"""Reads side by side: as many as a consumer's search makes, so a monitor is no heavier than a consumer."""


class _Scan(NamedTuple):
    """The next page of ids to read, of one priority of a wide row. listing: see `Head.listing`."""

    wide_row: WideRow
    priority: int
    after: int
    listing: Mapping[int, SlotRow]


def estimate(spec: QueueSpec) -> Proto[Counts]:
    """Count what a queue holds, up to the limits above. `live` is the sum of the other figures."""
    counts = Counts()
    rows, whole = yield from first_wide_rows(spec, MAX_EPOCHS)
    now_us = yield from Now()
    counts.wide_rows = len(rows)
    counts.future_wide_rows = sum(not _has_begun(row, now_us) for row, _ in rows)
    if not whole:
        # Those left out come after all that are read.
        _leave(counts, due=not rows or _has_begun(rows[-1][0], now_us), slots=True)
    if len(rows) > MAX_ROWS:
        _leave(counts, due=_has_begun(rows[MAX_ROWS][0], now_us), slots=True)
    scans = yield from _heads(counts, rows[:MAX_ROWS], now_us)
    yield from _ids(counts, scans, now_us)
    return counts


def _has_begun(wide_row: WideRow, now_us: int) -> bool:
    return wide_row.time_shard * 1000 <= now_us


def _leave(counts: Counts, *, due: bool, slots: bool = False) -> None:
    """Mark the figures that left-out rows may raise. due: due messages may be among them."""
    names = {"delayed", "live"}
    if due:
        names |= {"ready", "claimed", "waiting"} if slots else {"ready"}
    counts.at_least |= names


def _heads(counts: Counts, rows: Sequence[tuple[WideRow, frozenset[int]]], now_us: int) -> Proto[list[_Scan]]:
    scans: list[_Scan] = []
    for some in parts(rows, AT_ONCE):
        heads: list[Head] = yield from together(*(ReadHead(row) for row, _ in some))
        for (row, priorities), head in zip(some, heads, strict=True):
            count_slots(counts, head)
            for priority in sorted(priorities):
                after = _boundary(row, head, priority, now_us)
                scans.append(_Scan(row, priority, after, head.listing(priority)))
    return scans


def _boundary(row: WideRow, head: Head, priority: int, now_us: int) -> int:
    """Return the id above which unclaimed messages stand: the start in an open wide row."""
    at = head.cursors.get(priority)
    return ids.START if at is None or shards.is_open(row) or policy.is_lost(at, now_us) else at.boundary


def _ids(counts: Counts, scans: list[_Scan], now_us: int) -> Proto[None]:
    reads = 0
    while scans and reads < MAX_READS and counts.live < MAX_IDS:
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
        at_us = max(scan.wide_row.time_shard * 1000, ids.time_us(scan.after))
        _leave(counts, due=at_us <= now_us)


def _count(counts: Counts, scan: _Scan, page: IdSlice, now_us: int) -> None:
    counts.quarantined += len(page.damaged)
    for id_ in page.ids:
        if id_ not in scan.listing and not ids.is_any_of_row(id_, page.damaged):
            count_one(counts, None, ids.time_us(id_), now_us)
