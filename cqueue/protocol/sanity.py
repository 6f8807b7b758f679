"""What no client can have written: times of locks, cursors, slots and fences that lie too far ahead.

A damaged or forged time must not stop a wide row for years. Each is taken for the value that is safe whatever
was meant: a lock for free, because the fence keeps claims apart; a cursor for one at the start, because a
sweep from there misses nothing; a timeout for over, because delivery is at least once.
"""

from __future__ import annotations

from cqueue import ids
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import CursorRow, LockRow, LockState, SlotRow, SlotState

AHEAD_US = 60_000_000
"""How far ahead of our own time another client's may be, far above ε."""
LONGEST_CLAIM_US = 12 * 3_600_000_000
"""The longest visibility timeout, and the longest extension."""
LONGEST_WAIT_US = 3650 * 24 * 3_600_000_000
"""The longest delay."""
LAST_FENCE = 253_402_300_800_000_000
"""The end of the year 9999 in µs since 1970. A fence is a time, or a little more."""


def next_fence(stored: int | None, now_us: int) -> int:
    """Grows with every change, and never restarts, even after the wide row was dropped."""
    if stored is None or not 0 <= stored < LAST_FENCE:
        return now_us
    return max(stored + 1, now_us)


def is_held(lock: LockRow | None, spec: QueueSpec, now_us: int) -> bool:
    """Whether somebody holds the lock within a lease that he can have been given."""
    if lock is None or lock.state is not LockState.LOCKED:
        return False
    left_us = lock.until_ms * 1000 - now_us
    return 0 < left_us <= spec.lease_ms * 1000 + AHEAD_US


def is_retired(lock: LockRow | None, end_us: int, now_us: int) -> bool:
    """Whether a wide row, which ends at `end_us`, was dropped: nobody does that before its end."""
    return lock is not None and lock.state is LockState.RETIRED and now_us >= end_us


def is_lost(at: CursorRow, now_us: int) -> bool:
    """Whether messages that nobody lists may stand below this cursor, as no claim has put it there."""
    return at.cursor > at.boundary or at.boundary > ids.highest_at(now_us + AHEAD_US)


def restarted(at: CursorRow, now_us: int) -> CursorRow:
    """A cursor to go on with instead: a sweep reads all that is due, and the slice what comes from now on."""
    return at._replace(cursor=ids.START, boundary=ids.highest_at(now_us))


def is_overdue(slot: SlotRow, now_us: int) -> bool:
    """Whether a slot's timeout lies further ahead than anybody can have put it."""
    longest_us = LONGEST_CLAIM_US if slot.state is SlotState.CLAIMED else LONGEST_WAIT_US
    return slot.due_ms * 1000 - now_us > longest_us + AHEAD_US
