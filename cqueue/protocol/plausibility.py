"""Recognise times that no client can have written: locks, cursors, slots and fences too far ahead.

A damaged or forged time must not stop a wide row for years, so each counts as the value that is safe in any
case. A lock counts as free, because the fence keeps claims apart. A cursor counts as one at the start,
because a sweep from there misses nothing. A timeout counts as expired, because delivery is at least once.
"""

from __future__ import annotations

from cqueue import ids
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import CursorRow, Head, LockRow, LockState, SlotRow, SlotState

AHEAD_US = 60_000_000
"""µs that another client's time may be ahead of ours: 1 min, so far above ε that only damage exceeds it."""
LONGEST_CLAIM_US = 12 * 3_600_000_000
"""µs of the longest visibility timeout and of the longest extension that the API accepts: 12 h."""
LONGEST_WAIT_US = 3650 * 24 * 3_600_000_000
"""µs of the longest delay that the API accepts: ten years."""
LAST_FENCE = 253_402_300_800_000_000
"""End of the year 9999 in µs since 1970: a fence is a time or a little more, so a higher one is damaged."""


def next_fence(stored: int | None, now_us: int) -> int:
    """Return the next fence or revision. It always grows, even after the wide row was dropped."""
    if stored is None or not 0 <= stored < LAST_FENCE:
        return now_us
    return max(stored + 1, now_us)


def is_held(lock: LockRow | None, spec: QueueSpec, now_us: int) -> bool:
    """Return whether the lock is held, for no longer than a client can have asked for."""
    if lock is None or lock.state is not LockState.LOCKED:
        return False
    left_us = lock.until_ms * 1000 - now_us
    return 0 < left_us <= spec.lease_ms * 1000 + AHEAD_US


def is_retired(head: Head, end_us: int, now_us: int) -> bool:
    """Return whether a wide row that ends at `end_us` was dropped.

    Nobody drops one before its end, and no cursor or slot is left beside the marker.
    """
    is_marked = head.lock is not None and head.lock.state is LockState.RETIRED
    return is_marked and now_us >= end_us and not head.cursors and not head.slots


def is_lost(at: CursorRow, now_us: int) -> bool:
    """Return whether no claim can have written this cursor, so that unlisted messages may lie below it."""
    return at.cursor > at.boundary or at.boundary > ids.highest_at(now_us + AHEAD_US)


def restarted(at: CursorRow, now_us: int) -> CursorRow:
    """Return the cursor that replaces a damaged one: a sweep reads all due messages, the slice later ones."""
    return at._replace(cursor=ids.START, boundary=ids.highest_at(now_us))


def is_overdue(slot: SlotRow, now_us: int) -> bool:
    """Return whether a slot's timeout lies further ahead than any client can have set it."""
    longest_us = LONGEST_CLAIM_US if slot.state is SlotState.CLAIMED else LONGEST_WAIT_US
    return slot.due_ms * 1000 - now_us > longest_us + AHEAD_US
