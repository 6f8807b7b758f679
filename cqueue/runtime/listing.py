"""Iterate over all messages of a queue, a page at a time, so that the queue need not fit into memory.

Messages that are sent, acked or deleted during the iteration may or may not be seen. Nothing is locked or
claimed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import groupby

from cqueue.message import MessageId
from cqueue.protocol import inspection, key_lookup
from cqueue.protocol.inspection import Found, Walk
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.driver import BlockingDriver
from cqueue.store.keys import KeyRow
from cqueue.store.operations import ReadHead, ReadIds, ReadSlice, SlotRow, WideRow
from cqueue.store.quarantine import MESSAGE_KIND, MESSAGES

ROWS_A_PAGE = 100
"""Messages in one read. Each may have a body of 16 KiB, and ten priorities are read side by side: 16 MiB."""
IDS_A_PAGE = 1000
"""Ids in one read; an id has 16 bytes, so 1,000 are a small answer."""


def messages(driver: BlockingDriver, spec: QueueSpec) -> Iterator[Found]:
    """Yield all messages, in order of time shard, and within a time shard in order of due time."""
    for _, shards in groupby(driver.run(inspection.wide_rows(spec)), key=lambda pair: pair[0].time_shard):
        streams = []
        for wide_row, priorities in shards:
            head = driver.ask(ReadHead(wide_row))
            streams += [
                _messages(
                    driver, Walk(spec, wide_row), wide_row, priority, inspection.slots_of(head, priority)
                )
                for priority in priorities
            ]
        yield from heapq.merge(*streams, key=lambda found: found.row.id)


def _messages(
    driver: BlockingDriver, walk: Walk, wide_row: WideRow, priority: int, slots: Mapping[int, SlotRow]
) -> Iterator[Found]:
    while not walk.done:
        page = driver.ask(ReadSlice(wide_row, priority, walk.after, walk.upto, ROWS_A_PAGE))
        yield from inspection.as_found(wide_row, page.rows, slots, driver.clock.now_us())
        full = len(page.rows) == ROWS_A_PAGE
        walk.passed(page.rows[-1].id if full else None, page.tombstones)


def message_ids(driver: BlockingDriver, spec: QueueSpec) -> Iterator[MessageId]:
    """Yield the ids of all messages, in order of time shard and priority."""
    for wide_row, priorities in driver.run(inspection.wide_rows(spec)):
        for priority in sorted(priorities):
            walk = Walk(spec, wide_row)
            while not walk.done:
                page = driver.ask(ReadIds(wide_row, priority, walk.after, walk.upto, IDS_A_PAGE))
                yield from (MessageId.of(wide_row, priority, id_) for id_ in page.ids)
                walk.passed(page.ids[-1] if len(page.ids) == IDS_A_PAGE else None, page.tombstones)


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
