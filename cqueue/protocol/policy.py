"""Keep the rules of the protocol that are one decision each, one function a rule.

The simulator replaces most of these functions, one at a time, to show what is then lost or doubled
(`tests/simulation/points.py` is the table). So all callers go through the module: `policy.horizon(...)`.

If a function does not use an argument, its rule must not depend on that argument.
"""

# ruff: noqa: ARG001 - see above

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import TYPE_CHECKING

from cqueue import ids
from cqueue.store.operations import (
    CursorRow,
    Head,
    LockRow,
    LockState,
    MessageRow,
    ReadHead,
    SlotChange,
    SlotRow,
    SlotState,
    WideRow,
)

if TYPE_CHECKING:
    from cqueue.protocol.lease import Lease
    from cqueue.protocol.spec import QueueSpec

AHEAD_US = 60_000_000
"""µs that another client's time may be ahead of ours: 1 min, so far above ε that only damage exceeds it."""
LONGEST_CLAIM_US = 12 * 3_600_000_000
"""µs of the longest visibility timeout and of the longest extension that the API accepts: 12 h."""
LONGEST_WAIT_US = 3650 * 24 * 3_600_000_000
"""µs of the longest delay that the API accepts: ten years."""
LAST_FENCE = 253_402_300_800_000_000
"""End of the year 9999 in µs since 1970: a fence is a time or a little more, so a higher one is damaged."""

# ── what slots list ──


def is_skipped(slot: SlotRow, now_ms: int) -> bool:
    """Return whether claims skip the messages that a slot lists, expired or not."""
    return slot.state is not SlotState.FREE


def still_listed(rest: Sequence[int]) -> tuple[int, ...]:
    """Return what a slot lists once a claim has taken some of its messages: all the others."""
    return tuple(rest)


def unlisted(rows: list[MessageRow], listed: AbstractSet[int]) -> list[MessageRow]:
    """Return the messages read ahead of their claim that no slot lists."""
    return [row for row in rows if row.id not in listed]


def slots_after(
    slots: Mapping[tuple[int, int], SlotRow], changes: Mapping[tuple[int, int], SlotChange]
) -> dict[tuple[int, int], SlotRow]:
    """Return the slots as a claim leaves them; they also list what the claim took."""
    return {**slots, **{key: change.row for key, change in changes.items()}}


def is_suspect_held(held: Lease | None, *, reserved: bool) -> bool:
    """Return whether a process may take no further suspect: it holds one, or is claiming one."""
    return reserved or held is not None


# ── changes by id ──


def cancel_moves_fence(unlisted: Sequence[int]) -> bool:
    """Return whether a cancel moves the fence for messages that no slot lists: a claim may have read them."""
    return True


def reschedule_moves_fence(unlisted: Sequence[int]) -> bool:
    """Return whether a slot lists messages that none did under the next fence only, as a claim lists them."""
    return True


def is_movable(slot: SlotRow) -> bool:
    """Return whether others may make a slot's messages due at another time: not while somebody holds them."""
    return slot.state is SlotState.WAITING


# ── heads ──


def is_whole(head: Head) -> bool:
    """Return whether a claim may rely on a head: it shows no mutation of several rows in part."""
    return head.is_whole


def locks_first(head: Head, *, has_rival: bool) -> bool:
    """Return whether a claim takes the lock first: where others claim, and where no fence is stored yet."""
    return head.lock is None or has_rival


def fence_stands(*, takes: bool, locked: bool) -> bool:
    """Return whether a claim leaves the fence: it takes nothing from anybody, and releases no lock.

    takes: it lists messages, or changes a slot that others held.
    """
    return not takes and not locked


def outcome_read(wide_row: WideRow) -> ReadHead:
    """Return the read that shows a mutation's outcome: a serial one, which finishes accepted proposals."""
    return ReadHead(wide_row, serial=True)


# ── cursors ──


def horizon(spec: QueueSpec, began_us: int) -> int:
    """Return the id up to which a read that began at `began_us` saw all acknowledged messages."""
    return ids.lowest_at(began_us - spec.settle_us - spec.skew_us)


def counts_from_us(began_us: int, claimed_us: int) -> int:
    """Return the time that a read counts from: its beginning, however much later its messages are claimed."""
    return began_us


def cursor_at(swept: int, boundary: int) -> int:
    """Return where a claim puts the cursor: at the end of the sweep, not at the boundary."""
    return swept


def sweep_is_due(at: CursorRow, spec: QueueSpec, now_us: int) -> bool:
    """Return whether a sweep is due: the boundary is above the cursor, and W + ε old."""
    return at.boundary > at.cursor and now_us >= ids.time_us(at.boundary) + spec.settle_us + spec.skew_us


def has_no_cursor(wide_row: WideRow) -> bool:
    """Return whether a wide row is open: messages may land at any time, so it has no cursor."""
    return wide_row.shard < 0


# ── retirement ──


def nothing_lands_from_us(spec: QueueSpec, end_us: int, *, open_: bool) -> int:
    """Return the time after which nothing acknowledged lands in a wide row that ends at `end_us`.

    That is W + ε after its end, and gc_grace later for an open wide row.
    """
    return end_us + spec.settle_us + spec.skew_us + (spec.gc_grace_us if open_ else 0)


def retires(began_us: int, from_us: int) -> bool:
    """Return whether a claim that began at `began_us` may retire a wide row in which nothing lands from
    `from_us` on: not if a read of the claim may have begun before.
    """
    return began_us >= from_us


def rows_may_go(spec: QueueSpec) -> bool:
    """Return whether wide rows may be retired: not while another data centre may bring messages back."""
    return spec.retiring


def epochs_may_go(spec: QueueSpec) -> bool:
    """Return whether the oldest epoch may move: not while a data centre may bring registrations back."""
    return spec.retiring


def epochs_stay_known(spec: QueueSpec, *, was_retiring: bool) -> bool:
    """Return whether a consumer may keep its copy of the registry: not once retiring stops or resumes."""
    return was_retiring == spec.retiring


def bodies_dropped_at_us(end_us: int) -> int:
    """Return the tombstone's time for a retired wide row's bodies: above all of them, and long past."""
    return end_us


def seen_upto(rows: Sequence[MessageRow], wanted: Sequence[int]) -> int:
    """The id up to which a read of as many messages as are wanted has looked: others may fill its answer."""
    return rows[-1].id if len(rows) >= len(wanted) else wanted[-1]


# ── searches ──


def probes_on(probed: int, *, found_enough: bool) -> bool:
    """Return whether a search probes on: until it has enough work, but always some wide rows."""
    return not (probed and found_enough)


# ── where a message goes ──


class Disposition(Enum):
    """The four places that a message can go to."""

    DELIVER = "deliver"
    ALONE = "deliver alone"  # a suspect: a process holds one at a time
    BURY = "dead-letter"
    DELETE = "delete"


def disposition(
    spec: QueueSpec,
    *,
    left: SlotRow | None = None,
    expired: bool = False,
    dying: bool = False,
    body_lost: bool = False,
    refused: bool = False,
) -> Disposition:
    """Return where a message goes, by the first line of this table that is true of it.

    | the message                               | goes                      | in a dead-letter queue  |
    |-------------------------------------------|---------------------------|-------------------------|
    | has outlived its own time to live         | nowhere: it is deleted    | the same                |
    | has a burial begun, which was cut off     | to the dead-letter queue  | (none begins)           |
    | was refused by its holder, as by `dead`   | to the dead-letter queue  | nowhere: it stays       |
    | has its body on no replica any more       | to the dead-letter queue  | to a consumer, empty    |
    | has no attempt left, and came back alone  | to the dead-letter queue  | (as many as it takes)   |
    | was let expire by its holder              | to a consumer, alone      | the same                |
    | is new, or was given back                 | to a consumer             | the same                |

    "Came back alone" means given back, or let expire with no other message in its slot. When a holder let
    several messages expire together, only one of them need have killed it, so each gets its last attempt
    alone.

    left: the slot that lists the message, as its last holder left it; None for a new or a held message.
    dying: the message's slot has a time of death.
    """
    if expired:
        return Disposition.DELETE
    if dying:
        return Disposition.BURY
    if refused or body_lost:
        return Disposition.DELIVER if spec.is_dead_letter else Disposition.BURY
    if left is None:
        return Disposition.DELIVER
    was_let_expire = left.state is SlotState.CLAIMED
    if spec.max_attempts and left.attempt >= spec.max_attempts:
        return Disposition.ALONE if was_let_expire and len(left.ids) > 1 else Disposition.BURY
    return Disposition.ALONE if was_let_expire else Disposition.DELIVER


def disposition_of(slot: SlotRow, spec: QueueSpec) -> Disposition:
    """Return where the messages of a due slot go."""
    return disposition(spec, left=slot, dying=slot.died_at_ms is not None)


# ── timeouts ──


def is_slot_due(slot: SlotRow, spec: QueueSpec, now_us: int) -> bool:
    """Return whether a slot's messages may be taken."""
    return slot.in_use and (now_us >= slot_due_at_us(slot, spec) or is_overdue(slot, now_us))


def slot_due_at_us(slot: SlotRow, spec: QueueSpec) -> int:
    """Return when a slot's messages may be taken: waiting ones when they are due, claimed ones ε later."""
    return slot.due_ms * 1000 + (spec.skew_us if slot.state is SlotState.CLAIMED else 0)


def alone_before(slot: SlotRow, spec: QueueSpec) -> int:
    """Return the attempts used by messages of an expired slot, so that each has its last attempt alone."""
    if spec.max_attempts and len(slot.ids) > 1:
        return min(slot.attempt, spec.max_attempts - 1)
    return slot.attempt


def kept_time_of_death(slot: SlotRow, spec: QueueSpec, now_ms: int) -> int:
    """Return the slot's time of death, or now if it has none, or one ahead or older than half of gc_grace."""
    died_at_ms = slot.died_at_ms
    if died_at_ms is None or not -AHEAD_US // 1000 <= now_ms - died_at_ms <= spec.gc_grace_us // 2000:
        return now_ms
    return died_at_ms


# ── dead letters ──


def letter_id(died_at_us: int, original: bytes) -> int:
    """Return the id of a dead letter, derived from the time of death and the original by all who bury it."""
    return ids.derived(died_at_us, original)


# ── what no client can have written ──
#
# A damaged or forged time must not stop a wide row for years, so each counts as the value that is safe in any
# case. A lock counts as free, because the fence keeps claims apart. A cursor counts as one at the start,
# because a sweep from there misses nothing. A timeout counts as expired, because delivery is at least once.


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
