"""Keep the rules of the protocol that are one decision each, one function a rule.

The simulator replaces one function at a time, to show what is then lost or doubled
(`tests/simulation/points.py` is the table). So all callers go through the module: `policy.horizon(...)`.

If a function does not use an argument, its rule must not depend on that argument.
"""

# ruff: noqa: ARG001 - see above

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from cqueue import ids
from cqueue.store.operations import (
    CursorRow,
    Head,
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


# ── dead letters ──


def letter_id(died_at_us: int, original: bytes) -> int:
    """Return the id of a dead letter, derived from the time of death and the original by all who bury it."""
    return ids.derived(died_at_us, original)
