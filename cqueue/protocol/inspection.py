"""Inspect a whole queue for operators: list, count, look up, purge, and delete what is left of it.

These functions walk all wide rows in the registry, present and future. They neither lock nor claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, TooManyTombstones
from cqueue.protocol import keys, lock, policy, registry
from cqueue.protocol.budget import FAILURE_DIVISOR, TARGET_TOMBSTONES
from cqueue.protocol.row_memory import fence_of
from cqueue.protocol.side_by_side import side_by_side
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.sequences import parts
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    DropBodies,
    Head,
    IdSlice,
    LockRow,
    LockState,
    MessageRow,
    Mutate,
    Now,
    Operation,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadShards,
    ReadSlice,
    ShardRow,
    Slice,
    SlotRow,
    SlotState,
    UnregisterShard,
    WideRow,
    together,
)

PAGE = 1000
"""Ids that one read asks for."""
PURGED_AT_ONCE = 250
"""Messages of a wide row that a purge reads and deletes at once, with their bodies: at most 4 MiB of them."""
ROWS_AT_ONCE = 8
"""Wide rows that are walked through side by side: a purge holds at most 32 MiB of bodies."""
FIRST_SHARE = 32
"""Divisor of a wide row's length; the quotient is what the first read of a walk covers. Later pieces adapt to
the tombstones crossed."""
GROWTH = 4
"""Factor by which a piece is longer than one that crossed no tombstones: four reads cover a wide row."""
SHORTEST_PIECE_US = 1_000
"""µs that one read covers at least, so that a walk always gets on."""
EPOCHS_AT_ONCE = 32
"""Epochs that are read side by side."""
DROP_TRIES = 8
"""Tries to drop what consumers wrote into a wide row. Each one that fails needs a claim in that moment, by a
consumer that does not know of the queue's deletion yet."""
END = (1 << 124) - 1
"""The highest id: a TimeUUID holds 60 bits of time, and one more would wrap around to the lowest."""


@dataclass(slots=True)
class Counts:
    """What a queue holds.

    at_least: names of the figures that are lower bounds, as not everything was counted.
    """

    wide_rows: int = 0
    future_wide_rows: int = 0  # wide rows whose time shard has not begun
    claimed: int = 0
    waiting: int = 0
    quarantined: int = 0  # unreadable rows: slots, and messages as far as a read of ids shows it
    ready: int = 0
    delayed: int = 0
    live: int = 0
    oldest_us: int | None = None  # since when the oldest message that may be claimed may be
    at_least: set[str] = field(default_factory=set)

    def note_due(self, due_us: int) -> None:
        """Note since when a message may be claimed."""
        self.oldest_us = due_us if self.oldest_us is None else min(self.oldest_us, due_us)


class Found(NamedTuple):
    """A stored message. state: "ready", "claimed", "waiting", "delayed", "expired" or "quarantined".

    slot: the slot that lists the message, if it is claimed or waiting.
    """

    wide_row: WideRow
    row: MessageRow
    state: str
    slot: SlotRow | None = None


class Walk:
    """A walk through one priority of a wide row in pieces of time: no read may cross 100,000 tombstones.

    Each piece is longer than the one before, or shorter if that one crossed many tombstones. One that
    Cassandra refuses to cross is read again in shorter ones.
    """

    def __init__(
        self, spec: QueueSpec, wide_row: WideRow, priority: int, after: int = ids.START, last: int = END
    ) -> None:
        """Walk through the ids above `after`, up to `last`."""
        self._place = wide_row, priority
        self.after = after
        self.done = False
        self._last = last
        self._at_us = max(wide_row.time_shard * 1000, ids.time_us(after))
        self._end_us = registry.end_us(spec, wide_row)
        # Of the whole row, wherever the walk begins: one that is often cut off gets on by equal steps.
        width_us = self._end_us - wide_row.time_shard * 1000
        self._piece_us = max(SHORTEST_PIECE_US, width_us // FIRST_SHARE)

    @property
    def upto(self) -> int:
        """Return the last id of the current piece."""
        next_us = self._at_us + self._piece_us
        return self._last if next_us >= self._end_us else min(self._last, ids.lowest_at(next_us) - 1)

    def next_rows(self, limit: int) -> Proto[Slice]:
        """Read the next messages."""
        page: Slice = yield from self._read(lambda upto: ReadSlice(*self._place, self.after, upto, limit))
        self.passed(page.rows[-1].id if len(page.rows) == limit else None, page.tombstones)
        return page

    def next_ids(self) -> Proto[IdSlice]:
        """Read the ids of the next messages."""
        page: IdSlice = yield from self._read(lambda upto: ReadIds(*self._place, self.after, upto, PAGE))
        self.passed(page.ids[-1] if len(page.ids) == PAGE else None, page.tombstones)
        return page

    def _read(self, read: Callable[[int], Operation[Any]]) -> Proto[Any]:
        while True:
            try:
                return (yield from read(self.upto))
            except TooManyTombstones:
                if self._piece_us == SHORTEST_PIECE_US:
                    raise
                self._at_us = max(self._at_us, ids.time_us(self.after))
                self._piece_us = max(SHORTEST_PIECE_US, self._piece_us // FAILURE_DIVISOR)

    def passed(self, last: int | None, tombstones: int) -> None:
        """Note a read of the current piece. last: the last id of a full page; None if the piece is done."""
        if last is not None:
            self.after = last
            return
        self.after, self.done = self.upto, self.upto == self._last
        self._at_us += self._piece_us
        wanted_us = self._piece_us * TARGET_TOMBSTONES // max(1, tombstones)
        self._piece_us = max(SHORTEST_PIECE_US, min(self._piece_us * GROWTH, wanted_us))


Registered = tuple[WideRow, frozenset[int]]
"""A registered wide row, and the priorities that were sent to it."""


def wide_rows(spec: QueueSpec) -> Proto[list[Registered]]:
    """Return all registered wide rows, oldest first."""
    return (yield from first_wide_rows(spec, None))[0]


def first_wide_rows(spec: QueueSpec, most: int | None) -> Proto[tuple[list[Registered], bool]]:
    """Return the wide rows of the `most` oldest epochs (None: of all), and whether there are no others."""
    listed = yield from epochs(spec)
    found = yield from _registered(spec, listed[:most])
    return sorted(each[1:] for each in found), len(listed) <= (most or len(listed))


def epochs(spec: QueueSpec) -> Proto[list[int]]:
    """Return the epochs that the registry lists, oldest first."""
    index: list[ShardRow] = yield from ReadShards(spec.partition, registry.EPOCH_INDEX, 0)
    listed = {registry.listed_epoch(row.time_shard, row.shard) for row in index}
    return sorted(listed, key=in_order)


def in_order(epoch: int) -> tuple[int, int]:
    """Return the key by which epochs are sorted: by time, the open wide rows of a time first."""
    return registry.epoch_start_ms(epoch), epoch


def _registered(
    spec: QueueSpec, epochs: Sequence[int], *, beside_grid: bool = False
) -> Proto[list[tuple[int, WideRow, frozenset[int]]]]:
    """Return these epochs' wide rows, each with its epoch before it and its priorities behind it.

    beside_grid: also misplaced ones that consumers skip.
    """
    found: list[tuple[int, WideRow, frozenset[int]]] = []
    for chunk in parts(epochs, EPOCHS_AT_ONCE):
        reads = [registry.read_epoch(spec, epoch) for epoch in chunk]
        if beside_grid:
            reads = [replace(read, grid=None) for read in reads]
        answers = yield from together(*reads)
        for epoch, rows in zip(chunk, answers, strict=True):
            found += [
                (epoch, WideRow(spec.partition, row.time_shard, row.shard), row.priorities) for row in rows
            ]
    return found


def count(spec: QueueSpec) -> Proto[Counts]:
    """Count what a queue holds, exactly, by reading all ids."""
    counts = Counts()
    rows = yield from wide_rows(spec)
    now_us = yield from Now()
    counts.wide_rows = len(rows)
    counts.future_wide_rows = sum(wide_row.time_shard * 1000 > now_us for wide_row, _ in rows)

    def count_row(wide_row: WideRow, priorities: frozenset[int]) -> Proto[None]:
        head = yield from ReadHead(wide_row)
        counts.quarantined += sum(slot.state is SlotState.QUARANTINED for slot in head.slots)
        yield from _count_ids(spec, counts, wide_row, priorities, head)

    yield from side_by_side((count_row(*each) for each in rows), ROWS_AT_ONCE)
    return counts


def count_slots(counts: Counts, head: Head) -> None:
    """Add what slots list to `counts`. A message acked a moment ago may still be counted."""
    for slot in head.slots:
        if slot.state is SlotState.QUARANTINED:
            counts.quarantined += 1
        elif slot.in_use:
            counts.live += len(slot.ids)
            if slot.state is SlotState.CLAIMED:
                counts.claimed += len(slot.ids)
            else:
                counts.waiting += len(slot.ids)


def _count_ids(
    spec: QueueSpec, counts: Counts, wide_row: WideRow, priorities: Iterable[int], head: Head
) -> Proto[None]:
    now_us = yield from Now()
    for priority in sorted(priorities):
        listing = head.listing(priority)
        walk = Walk(spec, wide_row, priority)
        while not walk.done:
            page = yield from walk.next_ids()
            counts.quarantined += len(page.damaged)
            for id_ in page.ids:
                if ids.is_any_of_row(id_, page.damaged):
                    continue
                if (slot := listing.get(id_)) is None:
                    count_unlisted(counts, ids.time_us(id_), now_us)
                else:
                    _count_listed(spec, counts, slot, now_us)


def _count_listed(spec: QueueSpec, counts: Counts, slot: SlotRow, now_us: int) -> None:
    counts.live += 1
    counts.claimed += slot.state is SlotState.CLAIMED
    counts.waiting += slot.state is SlotState.WAITING  # no consumer may claim a quarantined one
    if policy.is_slot_due(slot, spec, now_us):
        counts.note_due(min(now_us, policy.slot_due_at_us(slot, spec)))


def count_unlisted(counts: Counts, due_us: int, now_us: int) -> None:
    """Add one message that no slot lists to `counts`."""
    counts.live += 1
    if due_us > now_us:
        counts.delayed += 1
    else:
        counts.ready += 1
        counts.note_due(due_us)


def peek(spec: QueueSpec, limit: int) -> Proto[list[Found]]:
    """Return the first messages by time shard and priority, without claiming them."""
    found: list[Found] = []
    now_us = yield from Now()
    for wide_row, priorities in (yield from wide_rows(spec)):
        head = yield from ReadHead(wide_row)
        for priority in sorted(priorities):
            if len(found) >= limit:
                return found
            rows = yield from _first_rows(spec, wide_row, priority, limit - len(found))
            found += as_found(wide_row, rows, head.listing(priority), now_us)
    return found


def look(wide_row: WideRow, priority: int, ids_: tuple[int, ...]) -> Proto[list[Found]]:
    """Return those of these messages that are live, with their states."""
    now_us = yield from Now()
    head = yield from ReadHead(wide_row)
    rows = yield from ReadMessages(wide_row, priority, ids_)
    return as_found(wide_row, rows, head.listing(priority), now_us)


def as_found(
    wide_row: WideRow, rows: Iterable[MessageRow], slots: Mapping[int, SlotRow], now_us: int
) -> list[Found]:
    """Combine messages of one priority with the slots that list them."""
    found = []
    for row in rows:
        slot = slots.get(row.id)
        found.append(Found(wide_row, row, _state_name(slot, row, now_us), slot))
    return found


def _first_rows(spec: QueueSpec, wide_row: WideRow, priority: int, limit: int) -> Proto[list[MessageRow]]:
    rows: list[MessageRow] = []
    walk = Walk(spec, wide_row, priority)
    while not walk.done and len(rows) < limit:
        rows += (yield from walk.next_rows(limit - len(rows))).rows
    return rows


def is_expired(row: MessageRow, slot: SlotRow | None, now_us: int) -> bool:
    """Return whether a message has outlived its own time to live, and no consumer holds it."""
    is_over = row.expires is not None and row.expires * 1000 <= now_us
    is_held = slot is not None and slot.state is SlotState.CLAIMED and slot.due_ms * 1000 > now_us
    return is_over and not is_held


def _state_name(slot: SlotRow | None, row: MessageRow, now_us: int) -> str:
    if slot is not None:
        return slot.state.name.lower()
    if row.expires is not None and row.expires * 1000 <= now_us:
        return "expired"
    return "delayed" if ids.time_us(row.id) > now_us else "ready"


def purge(spec: QueueSpec) -> Proto[int]:
    """Delete all messages row by row, unreadable rows included; return the number of messages.

    A partition or range delete cannot do this: one beyond now would swallow later conditional writes, and
    one up to now would leave messages that are due later.

    Raises:
        NotDone: nothing was deleted.
        OutcomeUnknown: some messages are, or may be, deleted; the call can be repeated.
    """
    now_us = yield from Now()
    rows = yield from _registered(spec, (yield from epochs(spec)), beside_grid=True)
    total, has_deleted = 0, False

    def purge_row(wide_row: WideRow, priorities: frozenset[int]) -> Proto[None]:
        nonlocal total, has_deleted
        for priority in sorted(priorities):
            walk = Walk(spec, wide_row, priority)
            while not walk.done:
                page = yield from walk.next_rows(PURGED_AT_ONCE)
                if page.rows:
                    yield from DeleteMessages(wide_row, priority, tuple(row.id for row in page.rows))
                    has_deleted = True  # noted before the next operation, as another wide row may fail in it
                    total += len(page.rows)
                    yield from _delete_beside(spec, wide_row, page.rows)
                if page.damaged:
                    yield from DeleteMessages(wide_row, priority, page.damaged, now_us)
                    has_deleted = True

    try:
        yield from side_by_side((purge_row(row, priorities) for _, row, priorities in rows), ROWS_AT_ONCE)
    except NotDone as exc:
        if not has_deleted:
            raise
        raise OutcomeUnknown(f"{total:,} messages are deleted, and others not: call again ({exc})") from exc
    return total


def examine(spec: QueueSpec) -> Proto[None]:
    """Read every row of a queue, so that the store reports all damaged rows."""

    def read_row(wide_row: WideRow, priorities: frozenset[int]) -> Proto[None]:
        yield from ReadHead(wide_row)
        for priority in sorted(priorities):
            walk = Walk(spec, wide_row, priority)
            while not walk.done:
                yield from walk.next_rows(PURGED_AT_ONCE)

    rows = yield from wide_rows(spec)
    yield from side_by_side((read_row(*each) for each in rows), ROWS_AT_ONCE)


def discard(spec: QueueSpec, wide_row: WideRow, priority: int, rows: Sequence[MessageRow]) -> Proto[None]:
    """Delete messages of one priority; a body whose delete fails is dropped with its wide row."""
    yield from DeleteMessages(wide_row, priority, tuple(row.id for row in rows))
    yield from _delete_beside(spec, wide_row, rows)


def _delete_beside(spec: QueueSpec, wide_row: WideRow, rows: Sequence[MessageRow]) -> Proto[None]:
    """Delete the bodies and keys of deleted messages. A failure is not told."""
    large = tuple(row.id for row in rows if row.size is not None)
    if large:
        with suppress(NotDone, OutcomeUnknown):
            yield from DeleteBodies(wide_row, large)
    if spec.keyed:
        yield from keys.delete((wide_row, row) for row in rows)


def forget(spec: QueueSpec) -> Proto[None]:
    """Delete all that is left of a queue that is purged and being deleted: what consumers wrote, and the
    registry.
    """
    rows = yield from _registered(spec, (yield from epochs(spec)), beside_grid=True)

    def forget_row(epoch: int, wide_row: WideRow) -> Proto[None]:
        yield from _drop_head(wide_row)
        now_us = yield from Now()
        yield from DropBodies(wide_row, min(now_us, registry.end_us(spec, wide_row)))
        yield from UnregisterShard(spec.partition, epoch, *wide_row[1:])  # a repeat looks here

    yield from side_by_side((forget_row(epoch, row) for epoch, row, _ in rows), ROWS_AT_ONCE)
    index: list[ShardRow] = yield from ReadShards(spec.partition, registry.EPOCH_INDEX, 0)
    for some in parts(index, EPOCHS_AT_ONCE):
        at = spec.partition, registry.EPOCH_INDEX
        yield from together(*(UnregisterShard(*at, row.time_shard, row.shard) for row in some))
    if spec.keyed:
        yield from keys.forget(spec)


def _drop_head(wide_row: WideRow) -> Proto[None]:
    """Delete the cursors, the slots and the lock of a wide row, as its retirement would have done.

    A consumer that does not know of the deletion yet may claim meanwhile, so it is tried again. What stays
    after that, as where the lock is damaged, harms nobody.
    """
    owner = yield from lock.new_owner()
    for _ in range(DROP_TRIES):
        head = yield from ReadHead(wide_row)
        is_bare = head.lock is None and not head.cursors and not head.slots
        if is_bare or (head.lock is not None and head.lock.state is LockState.RETIRED):
            return
        stored = fence_of(head)
        retired = LockRow(LockState.RETIRED, owner, 0, policy.next_fence(stored, (yield from Now())))
        if (yield from lock.mutate_once(Mutate(wide_row, lock=retired, expect_fence=stored, retire=True))):
            return
