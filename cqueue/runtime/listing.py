"""Iterate over all messages of a queue, a page at a time, so that the queue need not fit into memory.

Messages that are sent, acked or deleted during the iteration may or may not be seen. Nothing is locked or
claimed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import groupby

from cqueue.message import MessageId
from cqueue.protocol import inspection
from cqueue.protocol.inspection import Found, Walk
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.driver import BlockingDriver
from cqueue.store.operations import ReadHead, ReadIds, ReadSlice, SlotRow, WideRow

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
