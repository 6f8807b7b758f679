"""What the doctor reads of one queue: heads and ids of its oldest wide rows, and letters of the last hour.

Nothing is locked, claimed or written. The reads are bounded, and the oldest wide rows come first, because
messages that are stuck stand there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cqueue import ids
from cqueue.protocol import policy, registry
from cqueue.protocol.inspection import END, Walk, first_wide_rows, wide_rows
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.sequences import parts
from cqueue.store.operations import (
    CursorRow,
    Head,
    LockState,
    Now,
    ReadHead,
    ReadIds,
    ReadMessages,
    SlotState,
    WideRow,
    together,
)

LATE_US: Final = 60_000_000
"""µs for which a message may be due before it counts as late, and for which nothing need be claimed."""
MAX_EPOCHS: Final = 64
"""Epochs of the registry that are read: more than two days."""
MAX_ROWS: Final = 64
"""Wide rows whose heads and ids are read."""
MAX_READS: Final = 1024
"""Reads of ids in one queue. A wide row of a day takes about 130, each across few tombstones."""
PAGE: Final = 1000
"""Ids that one read asks for."""
AT_ONCE: Final = 16
"""Reads of heads side by side."""


@dataclass(slots=True)
class Figures:
    """What was read of one queue. Times are µs since 1970 by the cluster's clock.

    Attributes:
        now_us: when the reads began.
        late: messages that were due a minute ago or longer, and that nobody has.
        oldest_us: due time of the oldest of them.
        oldest_row: the wide row in which it stands.
        stragglers: those of them that stand below the cursor of their wide row.
        in_open_rows: those of them that no slot lists in an open wide row, where messages may come late.
        claims: the last claim in each wide row that was read.
        held: messages that consumers have, at most: acked ones count until all of their claim are acked.
        implausible: locks, cursors and timeouts that lie further ahead than any client can have put them.
        reads: reads of ids.
        partial: whether there are more.
    """

    now_us: int = 0
    late: int = 0
    oldest_us: int | None = None
    oldest_row: WideRow | None = None
    stragglers: int = 0
    in_open_rows: int = 0
    claims: dict[WideRow, int] = field(default_factory=dict)
    held: int = 0
    implausible: int = 0
    reads: int = 0
    partial: bool = False

    @property
    def claimed_us(self) -> int | None:
        """Return when the wide row of the oldest late message was claimed from last; None if never."""
        return None if self.oldest_row is None else self.claims.get(self.oldest_row)

    def note_late(self, wide_row: WideRow, due_us: int) -> None:
        """Note a late message of a wide row, which was due at `due_us`."""
        self.late += 1
        if self.oldest_us is None or due_us < self.oldest_us:
            self.oldest_us, self.oldest_row = due_us, wide_row


def read(spec: QueueSpec) -> Proto[Figures]:
    """Read what may be late or damaged in a queue.

    Raises:
        NotDone: something could not be read.
    """
    found = Figures()
    found.now_us = yield from Now()
    registered, whole = yield from first_wide_rows(spec, MAX_EPOCHS)
    begun = [one for one in registered if one[0].time_shard * 1000 <= found.now_us - LATE_US]
    found.partial = not whole or len(begun) > MAX_ROWS
    for some in parts(begun[:MAX_ROWS], AT_ONCE):
        heads: list[Head] = yield from together(*(ReadHead(wide_row) for wide_row, _ in some))
        for (wide_row, priorities), head in zip(some, heads, strict=True):
            _note_head(found, wide_row, head)
            yield from _note_slots(found, wide_row, head)
            for priority in sorted(priorities):
                yield from _note_ids(found, spec, wide_row, priority, head)
    return found


def _note_head(found: Figures, wide_row: WideRow, head: Head) -> None:
    now_us = found.now_us
    if head.lock is not None and head.lock.fence <= now_us + policy.AHEAD_US:
        found.claims[wide_row] = head.lock.fence
    locks = [head.lock] if head.lock is not None and head.lock.state is LockState.LOCKED else []
    found.implausible += sum(lock.until_ms * 1000 > now_us + 24 * 3_600_000_000 for lock in locks)
    if not registry.is_open(wide_row):
        found.implausible += sum(policy.is_lost(at, now_us) for at in head.cursors.values())
    found.implausible += sum(policy.is_overdue(slot, now_us) for slot in head.slots if slot.in_use)


def _note_slots(found: Figures, wide_row: WideRow, head: Head) -> Proto[None]:
    """Note timeouts that passed a while ago. Nothing is late if all messages of such a slot are acked."""
    for slot in head.slots:
        if slot.state is SlotState.CLAIMED and slot.due_ms * 1000 > found.now_us:
            found.held += len(slot.ids)
        if slot.in_use and slot.due_ms * 1000 <= found.now_us - LATE_US:
            live = yield from ReadMessages(wide_row, slot.priority, slot.ids, 1)
            if live:
                found.note_late(wide_row, slot.due_ms * 1000)


def _note_ids(found: Figures, spec: QueueSpec, wide_row: WideRow, priority: int, head: Head) -> Proto[None]:
    listing = head.listing(priority)
    cursor = _cursor(wide_row, head.cursors.get(priority), found.now_us)
    walk = Walk(spec, wide_row, priority, last=ids.highest_at(found.now_us - LATE_US))
    while found.reads < MAX_READS:
        found.reads += 1
        page = yield from walk.next_ids()
        for id_ in page.ids:
            if id_ not in listing and not ids.is_any_of_row(id_, page.damaged):
                found.note_late(wide_row, ids.time_us(id_))
                found.stragglers += id_ <= cursor
                found.in_open_rows += registry.is_open(wide_row)
        if walk.done:
            return
    found.partial = True


def _cursor(wide_row: WideRow, at: CursorRow | None, now_us: int) -> int:
    """Return the id up to which consumers have taken everything, as far as they know."""
    return ids.START if at is None or registry.is_open(wide_row) or policy.is_lost(at, now_us) else at.cursor


def letters_since(spec: QueueSpec, since_us: int) -> Proto[tuple[int, bool]]:
    """Count the letters of a dead-letter queue that died at `since_us` or later.

    Returns the number, and whether there may be more.
    """
    count, more = 0, False
    for wide_row, priorities in (yield from wide_rows(spec)):
        if registry.end_us(spec, wide_row) <= since_us:
            continue
        for priority in sorted(priorities):
            page = yield from ReadIds(wide_row, priority, ids.lowest_at(since_us), END, PAGE)
            count += len(page.ids)
            more = more or len(page.ids) == PAGE
    return count, more
