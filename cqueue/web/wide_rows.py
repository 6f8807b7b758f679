"""The wide rows of a queue, by two short reads of each: what is unclaimed, what consumers hold, the lock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from cqueue import ids
from cqueue.client import Client, inside
from cqueue.message import to_datetime
from cqueue.protocol import registry
from cqueue.protocol.inspection import END, first_wide_rows
from cqueue.store.decode import LAST_MS
from cqueue.store.operations import LockState, Now, ReadHead, ReadIds, SlotState, together

if TYPE_CHECKING:
    from cqueue.protocol.inspection import Registered
    from cqueue.protocol.spec import Proto, QueueSpec
    from cqueue.store.operations import Head, IdSlice, WideRow

EPOCHS: Final = 8
"""Oldest epochs of the registry that are read: some hours of wide rows."""
MOST: Final = 50
"""Wide rows of which the head is read: the oldest ones."""
MOST_IDS: Final = 100
"""Unclaimed messages that are counted of each priority of a wide row."""

Unclaimed = tuple[list[int], bool]
"""Ids of unclaimed messages of one priority, and whether there may be more."""


class WideRowState(NamedTuple):
    """One wide row. Messages of its slots may be acked already; nobody has looked yet.

    time_shard: when the time shard begins. shard: None for an open wide row. priorities: of its messages.
    unclaimed: messages behind the cursors, None for an open wide row; at_least: there may be more. oldest:
    when the first of them is due. claimed, waiting: messages in its slots. claimed_at: the last claim;
    locked_until: None without a lock.
    """

    time_shard: datetime
    shard: int | None
    priorities: Sequence[int]
    unclaimed: int | None
    at_least: bool
    oldest: datetime | None
    claimed: int
    waiting: int
    claimed_at: datetime | None
    locked_until: datetime | None


class WideRows(NamedTuple):
    """The oldest wide rows of a queue. more: it has others."""

    rows: Sequence[WideRowState]
    more: bool


def read(client: Client, queue: str) -> WideRows:
    """Read the oldest wide rows: a few partitions of the registry, 50 heads, and some ids behind each."""
    own = inside(client)
    return own.driver.run(_oldest(own.catalog.entry(queue).spec))


def _oldest(spec: QueueSpec) -> Proto[WideRows]:
    now_us: int = yield from Now()
    registered, is_whole = yield from first_wide_rows(spec, EPOCHS)
    some = registered[:MOST]
    heads: list[Head] = yield from together(*(ReadHead(wide_row) for wide_row, _ in some))
    rows = []
    for (wide_row, priorities), head in zip(some, heads, strict=True):
        unclaimed: list[Unclaimed] | None = None
        if not registry.is_open(wide_row):
            unclaimed = yield from _unclaimed(wide_row, sorted(priorities), head)
        rows.append(_state((wide_row, priorities), head, unclaimed, now_us // 1000))
    return WideRows(rows, not is_whole or len(registered) > MOST)


def _unclaimed(wide_row: WideRow, priorities: Sequence[int], head: Head) -> Proto[list[Unclaimed]]:
    """Return for each priority the first ids behind its cursor that no slot lists.

    Before the cursor all is claimed, and there may be more tombstones than one read may meet.
    """
    cursors = [ids.START if (at := head.cursors.get(one)) is None else at.cursor for one in priorities]
    reads = [ReadIds(wide_row, one, at, END, MOST_IDS) for one, at in zip(priorities, cursors, strict=True)]
    pages: list[IdSlice] = yield from together(*reads)
    slots = [head.listing(one) for one in priorities]
    return [
        ([id_ for id_ in page.ids if id_ not in of], len(page.ids) == MOST_IDS)
        for page, of in zip(pages, slots, strict=True)
    ]


def _state(
    registered: Registered, head: Head, unclaimed: list[Unclaimed] | None, now_ms: int
) -> WideRowState:
    wide_row, priorities = registered
    lock = head.lock
    first = min((some[0] for some, _ in unclaimed or () if some), default=None)
    is_locked = lock is not None and lock.state is LockState.LOCKED and lock.until_ms > now_ms
    return WideRowState(
        time_shard=to_datetime(wide_row.time_shard),
        shard=None if unclaimed is None else wide_row.shard,
        priorities=sorted(priorities),
        unclaimed=None if unclaimed is None else sum(len(some) for some, _ in unclaimed),
        at_least=any(more for _, more in unclaimed or ()),
        oldest=None if first is None else _moment(ids.time_us(first) // 1000),
        claimed=_listed(head, SlotState.CLAIMED),
        waiting=_listed(head, SlotState.WAITING),
        claimed_at=_moment(lock.fence // 1000) if lock is not None else None,
        locked_until=_moment(lock.until_ms) if lock is not None and is_locked else None,
    )


def _moment(ms: int) -> datetime | None:
    """Return a stored time (ms since 1970); None if it is none, or too far away for any calendar."""
    return to_datetime(ms) if 0 < ms <= LAST_MS else None


def _listed(head: Head, state: SlotState) -> int:
    return sum(len(slot.ids) for slot in head.slots if slot.state is state)
