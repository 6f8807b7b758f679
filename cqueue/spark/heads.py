"""Views of a queue's bookkeeping: messages that consumers hold, and the state of its wide rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cqueue import ids
from cqueue.message import MessageId
from cqueue.protocol import registry
from cqueue.protocol.inspection import Walk, wide_rows
from cqueue.protocol.spec import QueueSpec
from cqueue.runtime.sequences import parts
from cqueue.spark.options import ReadOptions
from cqueue.spark.session import SparkSide, patient
from cqueue.spark.split import limited
from cqueue.spark.views import INFLIGHT, arrow_schema
from cqueue.store.operations import (
    Head,
    LockState,
    ReadHead,
    ReadMessages,
    SlotRow,
    SlotState,
    WideRow,
)

WIDE_ROWS: Final = 32
"""Wide rows of a task: each costs a read of its head, and a count reads all ids."""
IDS_A_READ: Final = 500


@dataclass(frozen=True)
class HeadPart(InputPartition):
    """Wide rows with the priorities asked for."""

    spec: QueueSpec
    rows: tuple[tuple[WideRow, frozenset[int]], ...]
    limit: int | None


def plan(side: SparkSide, spec: QueueSpec, options: ReadOptions) -> list[InputPartition]:
    """Plan the tasks of a read: groups of wide rows whose time lies in the range asked for."""
    wanted = [
        (wide_row, priorities if options.priorities is None else priorities & options.priorities)
        for wide_row, priorities in side.driver.run(wide_rows(spec))
        if (options.until_us is None or wide_row.time_shard * 1000 < options.until_us)
        and (options.since_us is None or registry.end_us(spec, wide_row) > options.since_us)
    ]
    size = WIDE_ROWS if options.limit is None else max(1, len(wanted))
    return [HeadPart(spec, tuple(some), options.limit) for some in parts(wanted, size)]


def read(side: SparkSide, part: HeadPart, view: str, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task, a batch for each wide row that has any.

    Raises:
        NotDone: Cassandra does not answer.
    """
    return limited(_batches(side, part, view, columns), part.limit)


def _batches(
    side: SparkSide, part: HeadPart, view: str, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(view, columns)
    for wide_row, priorities in part.rows:
        head = patient(side.driver.ask)(ReadHead(wide_row))
        if view == INFLIGHT:
            rows = list(_in_flight(side, part.spec, wide_row, head, priorities))
        else:
            rows = [_shard(side, part.spec, wide_row, head, priorities)]
        yield pa.RecordBatch.from_pylist([{name: row[name] for name in columns} for row in rows], schema)


def _in_flight(
    side: SparkSide, spec: QueueSpec, wide_row: WideRow, head: Head, priorities: frozenset[int]
) -> Iterator[dict[str, Any]]:
    """Yield every message that a slot lists and that is not acked."""
    for slot in head.slots:
        if slot.state is SlotState.FREE or slot.priority not in priorities:
            continue
        for id_ in _live(side, wide_row, slot):
            yield {
                "id": MessageId.of(wide_row, slot.priority, id_),
                "queue": spec.name,
                "priority": slot.priority,
                "attempt": slot.attempt,
                "state": slot.state.name.lower(),
                "due": slot.due_ms * 1000,
                "owner": slot.owner.hex(),
            }


def _live(side: SparkSide, wide_row: WideRow, slot: SlotRow) -> list[int]:
    return [
        row.id
        for some in parts(slot.ids, IDS_A_READ)
        for row in patient(side.driver.ask)(ReadMessages(wide_row, slot.priority, some))
    ]


def _shard(
    side: SparkSide, spec: QueueSpec, wide_row: WideRow, head: Head, priorities: frozenset[int]
) -> dict[str, Any]:
    """Count the live messages of one wide row."""
    listed = {
        (slot.priority, id_) for slot in head.slots if slot.state is not SlotState.FREE for id_ in slot.ids
    }
    next_page = patient(lambda walk: side.driver.run(walk.next_ids()))
    messages = in_flight = 0
    oldest: int | None = None
    for priority in sorted(priorities):
        walk = Walk(spec, wide_row, priority)
        while not walk.done:
            page = next_page(walk)
            messages += len(page.ids)
            in_flight += sum((priority, id_) in listed for id_ in page.ids)
            oldest = min(filter(None, (oldest, *page.ids[:1])), default=None)
    return {
        "queue": spec.name,
        "time_shard": wide_row.time_shard * 1000,
        "shard": wide_row.shard,
        "open": registry.is_open(wide_row),
        "messages": messages,
        "in_flight": in_flight,
        "oldest_due": None if oldest is None else ids.time_us(oldest),
        "lock": (head.lock.state if head.lock else LockState.FREE).name.lower(),
        "fence": head.lock.fence if head.lock else None,
    }
