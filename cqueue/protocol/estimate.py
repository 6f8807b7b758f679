"""Estimate what a queue holds, cheaply enough for a monitor that asks twice a minute.

An estimate reads the head of each wide row, and the ids above the boundary of each priority. It misses late
messages below a boundary until a consumer's sweep finds them. Of messages that may be claimed again it reads
no more than tells since when the oldest may be. Reads and ids are bounded, the oldest come first, and a
backlog of millions costs no more than one of ten thousand. `Counts.at_least` names the figures that may be
higher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from cqueue import ids
from cqueue.errors import TooManyTombstones
from cqueue.protocol import policy, registry
from cqueue.protocol.inspection import (
    END,
    Counts,
    Registered,
    count_slots,
    count_unlisted,
    first_wide_rows,
)
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.sequences import parts
from cqueue.store.operations import (
    Head,
    IdSlice,
    Now,
    ReadHead,
    ReadIds,
    ReadMessages,
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
MAX_DUE = 128
"""Slots of which a message is looked for, as all those of a slot may be acked before it is freed."""
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
    heads = yield from _heads(rows[:MAX_ROWS])
    for _, _, head in heads:
        count_slots(counts, head)
    yield from _ids(counts, [scan for each in heads for scan in _scans(*each, now_us)], now_us)
    yield from _due_again(spec, counts, heads, now_us)
    return counts


def _has_begun(wide_row: WideRow, now_us: int) -> bool:
    return wide_row.time_shard * 1000 <= now_us


def _leave(counts: Counts, *, due: bool, slots: bool = False) -> None:
    """Mark the figures that left-out rows may raise. due: due messages may be among them."""
    names = {"delayed", "live"}
    if due:
        names |= {"ready", "claimed", "waiting"} if slots else {"ready"}
    counts.at_least |= names


def _heads(rows: Sequence[Registered]) -> Proto[list[tuple[WideRow, frozenset[int], Head]]]:
    found: list[tuple[WideRow, frozenset[int], Head]] = []
    for some in parts(rows, AT_ONCE):
        heads: list[Head] = yield from together(*(ReadHead(row) for row, _ in some))
        found += [(*each, head) for each, head in zip(some, heads, strict=True)]
    return found


def _scans(row: WideRow, priorities: frozenset[int], head: Head, now_us: int) -> Iterator[_Scan]:
    for priority in sorted(priorities):
        yield _Scan(row, priority, _boundary(row, head, priority, now_us), head.listing(priority))


def _boundary(row: WideRow, head: Head, priority: int, now_us: int) -> int:
    """Return the id above which unclaimed messages stand: the start in an open wide row."""
    at = head.cursors.get(priority)
    return ids.START if at is None or registry.is_open(row) or policy.is_lost(at, now_us) else at.boundary


def _ids(counts: Counts, scans: list[_Scan], now_us: int) -> Proto[None]:
    reads = 0
    while scans and reads < MAX_READS and counts.live < MAX_IDS:
        some, scans = scans[:AT_ONCE], scans[AT_ONCE:]
        reads += len(some)
        pages = yield from Together(tuple(ReadIds(*scan[:3], END, PAGE) for scan in some))
        full: list[_Scan] = []
        for scan, page in zip(some, pages, strict=True):
            if isinstance(page, TooManyTombstones):
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
            count_unlisted(counts, ids.time_us(id_), now_us)


def _due_again(
    spec: QueueSpec, counts: Counts, heads: list[tuple[WideRow, frozenset[int], Head]], now_us: int
) -> Proto[None]:
    """Note since when the oldest retry, or message of a dead consumer, may be claimed."""
    due = [
        (min(now_us, policy.slot_due_at_us(slot, spec)), ReadMessages(row, slot.priority, slot.ids, 1))
        for row, _, head in heads
        for slot in head.slots
        if policy.is_slot_due(slot, spec, now_us)
    ]
    due.sort(key=itemgetter(0))
    for some in parts(due[:MAX_DUE], AT_ONCE):
        if counts.oldest_us is not None and counts.oldest_us <= some[0][0]:
            return
        live = yield from together(*(read for _, read in some))
        for (due_us, _), rows in zip(some, live, strict=True):
            if rows:
                counts.note_due(due_us)
