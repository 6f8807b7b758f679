"""Read the messages of a queue a page at a time, so that the queue need not fit into memory.

Messages that are sent, acked or deleted meanwhile may or may not be seen. Nothing is locked or claimed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from cqueue import ids
from cqueue.message import Location, MessageId
from cqueue.protocol import inspection, key_lookup, registry
from cqueue.protocol.inspection import Found, Walk
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.sequences import grouped, parts
from cqueue.store.keys import KeyRow
from cqueue.store.operations import Head, ReadHead, ShardRow, SlotRow, WideRow, together
from cqueue.store.quarantine import MESSAGE_KIND, MESSAGES

ROWS_A_PAGE = 100
"""Messages in one read. Each may have a body of 16 KiB, and ten priorities are read side by side: 16 MiB."""
HEADS_AT_ONCE: Final = 32
"""Heads of wide rows that are read side by side."""
MAX_ROWS: Final = 1000
"""Messages that one call of `some` reads, about, at most: less than a second's work."""
MAX_READS: Final = 200
"""Reads that one call of `some` makes, about, at most: a queue may have many wide rows with few messages."""
MAX_S: Final = 10.0
"""Seconds after which one call of `some` begins no further read: where each takes long, 200 take minutes."""
MAX_BYTES: Final = 16 << 20
"""Bytes of bodies of the messages that one call of `some` returns; one more body may come on top."""
LOWEST_SHARD: Final = -1 << 31
"""Below every shard, open ones included."""


def messages(driver: BlockingDriver, spec: QueueSpec) -> Iterator[Found]:
    """Yield all messages, in order of time shard, and within a time shard in order of due time."""
    for _, beside in groupby(driver.run(inspection.wide_rows(spec)), key=lambda pair: pair[0].time_shard):
        streams, rows = [], list(beside)
        heads: list[Head] = []
        for some in parts(rows, HEADS_AT_ONCE):
            heads += driver.run(together(*(ReadHead(wide_row) for wide_row, _ in some)))
        for (wide_row, priorities), head in zip(rows, heads, strict=True):
            streams += [
                _messages(driver, Walk(spec, wide_row, priority), wide_row, head.listing(priority))
                for priority in priorities
            ]
        yield from heapq.merge(*streams, key=lambda found: found.row.id)


def _messages(
    driver: BlockingDriver, walk: Walk, wide_row: WideRow, slots: Mapping[int, SlotRow]
) -> Iterator[Found]:
    while not walk.done:
        page = driver.run(walk.next_rows(ROWS_A_PAGE))
        yield from inspection.as_found(wide_row, page.rows, slots, driver.clock.now_us())


def message_ids(driver: BlockingDriver, spec: QueueSpec) -> Iterator[MessageId]:
    """Yield the ids of all messages, in order of time shard and priority."""
    for wide_row, priorities in driver.run(inspection.wide_rows(spec)):
        for priority in sorted(priorities):
            walk = Walk(spec, wide_row, priority)
            while not walk.done:
                yield from (MessageId.of(wide_row, priority, id_) for id_ in driver.run(walk.next_ids()).ids)


def by_row(places: Iterable[Location]) -> dict[tuple[WideRow, int], list[int]]:
    """Group the ids of some places by wide row and priority."""
    return grouped((place[:2], place.id) for place in places)


def still_at(driver: BlockingDriver, places: Iterable[Location]) -> list[Found]:
    """Return the messages that still stand at these places, without bodies that are stored apart."""
    return [
        found
        for (wide_row, priority), some in by_row(places).items()
        for found in driver.run(inspection.look(wide_row, priority, tuple(some)))
    ]


def of_key(
    driver: BlockingDriver, spec: QueueSpec, key: str, after: tuple[int, int] | None, rows: int
) -> Iterator[Found]:
    """Yield the messages with a key, in order of due time, and delete what is left of messages that are gone.

    after: the (id, priority) of a message; only those after it. rows: messages in one read, at most.
    """
    while after is not None:
        page = driver.run(key_lookup.look_up(spec, key, after, rows))
        orphans = [row for row in page.orphans if not _is_damaged(driver, spec, row)]
        if orphans:
            driver.run(key_lookup.heal(spec, key, orphans))
        yield from page.found
        after = page.last


def _is_damaged(driver: BlockingDriver, spec: QueueSpec, row: KeyRow) -> bool:
    """Return whether the message is there, but cannot be read."""
    place = (*row.wide_row(spec.partition), MESSAGE_KIND, row.priority, row.id)
    return driver.store.quarantine.find(MESSAGES, place) is not None


# ── some messages, from a place on ──


class Place(NamedTuple):
    """A place in the order of a queue's messages: by epoch, wide row, priority and id.

    epoch, time_shard, shard: as in the registry. after: the id behind which to go on.
    """

    epoch: int
    time_shard: int
    shard: int
    priority: int
    after: int = ids.START


@dataclass(slots=True)
class Some:
    """Messages that fit, and how far the reads went. place: where to go on; None at the end of the queue."""

    found: list[Found] = field(default_factory=list)
    place: Place | None = None
    rows: int = 0
    reads: int = 0
    _bytes: int = 0
    _end_s: float = field(default_factory=lambda: time.monotonic() + MAX_S)

    def add(self, one: Found) -> None:
        """Add a message that fits."""
        self.found.append(one)
        self._bytes += len(one.row.body or b"") if one.row.size is None else one.row.size

    def is_full(self, limit: int) -> bool:
        """Return whether the messages are enough."""
        return len(self.found) >= limit or self._bytes >= MAX_BYTES

    def is_spent(self, *, has_moved: bool) -> bool:
        """Return whether the reads are enough, whatever they found.

        has_moved: whether they got on. Else a caller who goes on would come to the same place again.
        """
        is_late = has_moved and time.monotonic() >= self._end_s
        return is_late or self.rows >= MAX_ROWS or self.reads >= MAX_READS


def some(
    driver: BlockingDriver,
    spec: QueueSpec,
    fits: Callable[[Found], bool],
    *,
    limit: int,
    priorities: frozenset[int] | None = None,
    place: Place | None = None,
) -> Some:
    """Read on from a place, and return messages that fit, up to `limit`, in bounded time and reads."""
    told, head = Some(), Head()
    last: WideRow | None = None
    for at, wide_row in _parts(driver, spec, told, priorities, place):
        if told.is_spent(has_moved=at != place):
            told.place = at
            return told
        if wide_row is None:
            continue
        if wide_row != last:
            head, last = driver.ask(ReadHead(wide_row)), wide_row
            told.reads += 1
        slots = head.listing(at.priority)
        walk = Walk(spec, wide_row, at.priority, at.after)
        while not walk.done:
            here = at._replace(after=walk.after)
            if told.is_spent(has_moved=here != place):
                told.place = here
                return told
            page = driver.run(walk.next_rows(ROWS_A_PAGE))
            told.reads, told.rows = told.reads + 1, told.rows + len(page.rows)
            for one in inspection.as_found(wide_row, page.rows, slots, driver.clock.now_us()):
                if fits(one):
                    told.add(one)
                    if told.is_full(limit):
                        told.place = at._replace(after=one.row.id)
                        return told
    return told


def _parts(
    driver: BlockingDriver,
    spec: QueueSpec,
    told: Some,
    priorities: frozenset[int] | None,
    place: Place | None,
) -> Iterator[tuple[Place, WideRow | None]]:
    """Yield the places of all priorities of all wide rows, in order, from a place on.

    Each epoch is read when it is reached, as there may be years of them; its beginning comes without a wide
    row.
    """
    for epoch in driver.run(inspection.epochs(spec)):
        start = Place(epoch, 0, LOWEST_SHARD, 0)
        if place is not None and place.epoch == epoch:
            start = place
        elif place is not None and inspection.in_order(epoch) < inspection.in_order(place.epoch):
            continue
        yield start, None
        told.reads += 1
        listed: list[ShardRow] = driver.ask(registry.read_epoch(spec, epoch, start.time_shard))
        for row in sorted(listed):
            for priority in sorted(row.priorities if priorities is None else row.priorities & priorities):
                at = Place(epoch, row.time_shard, row.shard, priority)
                if at[:-1] >= start[:-1]:
                    wide_row = WideRow(spec.partition, row.time_shard, row.shard)
                    yield start if at[:-1] == start[:-1] else at, wide_row
