"""The wide rows of a queue, by one short read of each: what consumers hold there, and the lock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from cqueue.message import to_datetime
from cqueue.protocol import shards
from cqueue.protocol.inspection import first_wide_rows
from cqueue.protocol.parallel import together
from cqueue.store.decode import LAST_MS
from cqueue.store.operations import LockState, Now, ReadHead, SlotState

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.protocol.inspection import Registered
    from cqueue.protocol.spec import Proto, QueueSpec
    from cqueue.store.operations import Head

EPOCHS: Final = 8
"""Oldest epochs of the registry that are read: some hours of wide rows."""
MOST: Final = 50
"""Wide rows of which the head is read: the oldest ones."""


class WideRowState(NamedTuple):
    """One wide row. Messages of its slots may be acked already; nobody has looked yet.

    time_shard: when the time shard begins. shard: None for an open wide row. priorities: of its messages.
    claimed, waiting: messages in its slots. claimed_at: the last claim; locked_until: None without a lock.
    """

    time_shard: datetime
    shard: int | None
    priorities: Sequence[int]
    claimed: int
    waiting: int
    claimed_at: datetime | None
    locked_until: datetime | None


class WideRows(NamedTuple):
    """The oldest wide rows of a queue. more: it has others."""

    rows: Sequence[WideRowState]
    more: bool


def read(client: Client, queue: str) -> WideRows:
    """Read the oldest wide rows: a few partitions of the registry, and 50 heads at most."""
    spec = client._catalog.entry(queue).spec  # noqa: SLF001 - the library's own
    found: WideRows = client._driver.run(_oldest(spec))  # noqa: SLF001 - as above
    return found


def _oldest(spec: QueueSpec) -> Proto[WideRows]:
    now_us: int = yield from Now()
    registered, is_whole = yield from first_wide_rows(spec, EPOCHS)
    some = registered[:MOST]
    heads: list[Head] = yield from together(*(ReadHead(wide_row) for wide_row, _ in some))
    rows = [_state(one, head, now_us // 1000) for one, head in zip(some, heads, strict=True)]
    return WideRows(rows, not is_whole or len(registered) > MOST)


def _state(registered: Registered, head: Head, now_ms: int) -> WideRowState:
    wide_row, priorities = registered
    lock = head.lock
    is_locked = lock is not None and lock.state is LockState.LOCKED and lock.until_ms > now_ms
    return WideRowState(
        time_shard=to_datetime(wide_row.time_shard),
        shard=None if shards.is_open(wide_row) else wide_row.shard,
        priorities=sorted(priorities),
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
