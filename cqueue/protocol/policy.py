"""Rules of the protocol that are one decision each: every function here keeps one rule.

The simulator replaces one of them at a time, to show what is then lost or doubled
(`tests/simulation/points.py` is the table). So all callers go through the module: `policy.horizon(...)`.

An argument that a function does not use is one on which its rule must not depend.
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
    """Whether claims skip the messages that a slot lists where they read messages: expired or not."""
    return slot.state is not SlotState.FREE


def still_listed(rest: Sequence[int]) -> tuple[int, ...]:
    """What a slot lists once a claim has taken some of its messages: all the rest."""
    return tuple(rest)


def unlisted(rows: list[MessageRow], listed: AbstractSet[int]) -> list[MessageRow]:
    """Of messages that were read ahead of their claim, those that no slot lists."""
    return [row for row in rows if row.id not in listed]


def slots_after(
    slots: Mapping[tuple[int, int], SlotRow], changes: Mapping[tuple[int, int], SlotChange]
) -> dict[tuple[int, int], SlotRow]:
    """The slots as a claim leaves them: they list what it took as well."""
    return {**slots, **{key: change.row for key, change in changes.items()}}


def is_suspect_held(held: Lease | None, *, reserved: bool) -> bool:
    """Whether a process takes no further suspect: it holds one, or is just claiming one."""
    return reserved or held is not None


# ── heads ──


def is_whole(head: Head) -> bool:
    """Whether a claim may go by a head: it shows no mutation of several rows in part."""
    return head.is_whole


def locks_first(head: Head, *, has_rival: bool) -> bool:
    """Whether a claim takes the lock before it reads: where others claim, and where there is no fence yet."""
    return head.lock is None or has_rival


def outcome_read(wide_row: WideRow) -> ReadHead:
    """The read that tells whether a mutation stands: a serial one, which finishes what is under way."""
    return ReadHead(wide_row, serial=True)


# ── cursors ──


def horizon(spec: QueueSpec, began_us: int) -> int:
    """The highest id up to which a read that began at `began_us` has seen all acknowledged messages."""
    return ids.lowest_at(began_us - spec.settle_us - spec.skew_us)


def counts_from_us(began_us: int, claimed_us: int) -> int:
    """The time that a read stands for: when it began, however much later its messages are claimed."""
    return began_us


def cursor_at(swept: int, boundary: int) -> int:
    """Where a claim puts the cursor: as far as a sweep has read, and not at the boundary."""
    return swept


def sweep_is_due(at: CursorRow, spec: QueueSpec, now_us: int) -> bool:
    """Whether a sweep is a reason to lock: the boundary is above the cursor, and W + ε old."""
    return at.boundary > at.cursor and now_us >= ids.time_us(at.boundary) + spec.settle_us + spec.skew_us


def has_no_cursor(wide_row: WideRow) -> bool:
    """Whether messages may land in a wide row at any time, so that it is open, and has no cursor."""
    return wide_row.shard < 0


# ── retirement ──


def nothing_lands_from_us(spec: QueueSpec, end_us: int, *, open_: bool) -> int:
    """From when on nothing acknowledged lands in a wide row: W + ε after its end, gc_grace later if open."""
    return end_us + spec.settle_us + spec.skew_us + (spec.gc_grace_us if open_ else 0)


def rows_may_go(spec: QueueSpec) -> bool:
    """Whether wide rows may be retired: not while another data centre may bring messages back."""
    return spec.retiring


def epochs_may_go(spec: QueueSpec) -> bool:
    """Whether the oldest epoch may move: not while another data centre may bring registrations back."""
    return spec.retiring


def epochs_stay_known(spec: QueueSpec, *, was_retiring: bool) -> bool:
    """Whether what a consumer has read of the registry counts on: not once retiring stops or resumes."""
    return was_retiring == spec.retiring


def bodies_dropped_at_us(end_us: int) -> int:
    """The time of the tombstone of a retired wide row's bodies: above all of them, and long past."""
    return end_us


def seen_upto(rows: Sequence[MessageRow], wanted: Sequence[int]) -> int:
    """The id up to which a read of as many messages as are wanted has looked: others may fill its answer."""
    return rows[-1].id if len(rows) >= len(wanted) else wanted[-1]


# ── turns ──


def probes_on(probed: int, *, found_enough: bool) -> bool:
    """Whether a search goes on: it probes some wide rows, however many others are known to have work."""
    return not (probed and found_enough)


# ── dead letters ──


def letter_id(died_at_us: int, original: bytes) -> int:
    """The id of a dead letter: it follows from the time of death and the original, for all who bury it."""
    return ids.derived(died_at_us, original)
