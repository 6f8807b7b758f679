"""Looking at a whole queue, for people: what is in it, how much, and emptying it.

These walk all wide rows that the registry lists, present and future. Nothing here locks or claims.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cqueue import ids
from cqueue.protocol import shards
from cqueue.protocol.fresh import together
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    Head,
    MessageRow,
    Now,
    ReadHead,
    ReadIds,
    ReadShards,
    ReadSlice,
    ShardRow,
    SlotState,
    UnregisterShard,
    WideRow,
)

PAGE = 1000
EPOCHS_AT_ONCE = 32
END = (1 << 124) - 1
"""The highest id: a TimeUUID holds 60 bits of time, and one more would wrap around to the lowest."""


@dataclass(slots=True)
class Counts:
    """What a queue holds. `ready`, `delayed` and `live` are None where only heads were read."""

    wide_rows: int = 0
    future_wide_rows: int = 0  # their time shards have not begun
    claimed: int = 0
    waiting: int = 0
    ready: int | None = None
    delayed: int | None = None
    live: int | None = None
    oldest_us: int | None = None  # due time of the oldest message that is ready


class Found(NamedTuple):
    """A message as it stands: state is ready, claimed, waiting, delayed or expired."""

    wide_row: WideRow
    row: MessageRow
    state: str


def wide_rows(spec: QueueSpec) -> Proto[list[tuple[WideRow, frozenset[int]]]]:
    """All registered wide rows with their priorities, oldest first."""
    index: list[ShardRow] = yield from ReadShards(spec.partition, shards.EPOCH_INDEX, 0)
    epochs = sorted({shards.epoch_at(spec, row.time_shard, open_=row.shard < 0) for row in index})
    found: list[tuple[WideRow, frozenset[int]]] = []
    for start in range(0, len(epochs), EPOCHS_AT_ONCE):
        chunk = epochs[start : start + EPOCHS_AT_ONCE]
        answers = yield from together(*(ReadShards(spec.partition, epoch, 0) for epoch in chunk))
        found += [
            (WideRow(spec.partition, row.time_shard, row.shard), row.priorities)
            for rows in answers
            for row in rows
        ]
    return sorted(found)


def count(spec: QueueSpec, *, exact: bool) -> Proto[Counts]:
    """Counts of a queue: from heads only, or exactly by reading all ids."""
    counts = Counts()
    if exact:
        counts.ready = counts.delayed = counts.live = 0
    now_us = yield from Now()
    for wide_row, priorities in (yield from wide_rows(spec)):
        counts.wide_rows += 1
        if wide_row.time_shard * 1000 > now_us:
            counts.future_wide_rows += 1
        head = yield from ReadHead(wide_row)
        if exact:
            yield from _count_exactly(counts, wide_row, priorities, head, now_us)
        else:
            states = [(slot.state, len(slot.ids)) for slot in head.slots]
            counts.claimed += sum(size for state, size in states if state is SlotState.CLAIMED)
            counts.waiting += sum(size for state, size in states if state is SlotState.WAITING)
    return counts


def _count_exactly(
    counts: Counts, wide_row: WideRow, priorities: Iterable[int], head: Head, now_us: int
) -> Proto[None]:
    for priority in sorted(priorities):
        states = _states(head, priority)
        after = ids.START
        while True:
            page = (yield from ReadIds(wide_row, priority, after, END, PAGE)).ids
            for id_ in page:
                _count_one(counts, states.get(id_), ids.time_us(id_), now_us)
            if len(page) < PAGE:
                break
            after = page[-1]


def _count_one(counts: Counts, state: SlotState | None, due_us: int, now_us: int) -> None:
    counts.live = (counts.live or 0) + 1
    if state is SlotState.CLAIMED:
        counts.claimed += 1
    elif state is SlotState.WAITING:
        counts.waiting += 1
    elif due_us > now_us:
        counts.delayed = (counts.delayed or 0) + 1
    else:
        counts.ready = (counts.ready or 0) + 1
        counts.oldest_us = min(counts.oldest_us or due_us, due_us)


def _states(head: Head, priority: int) -> dict[int, SlotState]:
    return {
        id_: slot.state
        for slot in head.slots
        if slot.priority == priority and slot.state is not SlotState.FREE
        for id_ in slot.ids
    }


def peek(spec: QueueSpec, limit: int) -> Proto[list[Found]]:
    """The first messages in order of time shard and priority, without claiming them."""
    found: list[Found] = []
    now_us = yield from Now()
    for wide_row, priorities in (yield from wide_rows(spec)):
        head = yield from ReadHead(wide_row)
        for priority in sorted(priorities):
            if len(found) >= limit:
                return found
            states = _states(head, priority)
            left = limit - len(found)
            rows = (yield from ReadSlice(wide_row, priority, ids.START, END, left)).rows
            found += [Found(wide_row, row, _state_name(states, row, now_us)) for row in rows]
    return found


def _state_name(states: dict[int, SlotState], row: MessageRow, now_us: int) -> str:
    state = states.get(row.id)
    if state is not None:
        return state.name.lower()
    if row.expires is not None and row.expires * 1000 <= now_us:
        return "expired"
    return "delayed" if ids.time_us(row.id) > now_us else "ready"


def purge(spec: QueueSpec) -> Proto[int]:
    """Delete all messages, row by row; how many there were.

    Never by a partition or range delete: one beyond now would swallow later conditional writes, and
    one up to now would leave what is due later.
    """
    total = 0
    for wide_row, priorities in (yield from wide_rows(spec)):
        for priority in sorted(priorities):
            while True:
                rows = (yield from ReadSlice(wide_row, priority, ids.START, END, PAGE // 4)).rows
                if not rows:
                    break
                total += len(rows)
                yield from DeleteMessages(wide_row, priority, tuple(row.id for row in rows))
                large = tuple(row.id for row in rows if row.size is not None)
                if large:
                    yield from DeleteBodies(wide_row, large)
    return total


def forget(spec: QueueSpec) -> Proto[None]:
    """Drop all registry rows of a queue that has been purged for good."""
    for wide_row, _ in (yield from wide_rows(spec)):
        epoch = shards.epoch_of(spec, wide_row)
        yield from UnregisterShard(spec.partition, epoch, wide_row.time_shard, wide_row.shard)
    for row in (yield from ReadShards(spec.partition, shards.EPOCH_INDEX, 0)):
        yield from UnregisterShard(spec.partition, shards.EPOCH_INDEX, row.time_shard, row.shard)
