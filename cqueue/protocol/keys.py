"""Keep the look-up table of keyed queues: a row a message, written before the message and deleted after it.

So no acknowledged message lacks its row. A row without a message remains where a process dies between the two
writes, or between the two deletes; cqueue.protocol.key_lookup heals that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.parallel import together
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.keys import DeleteKeys, DropKey, InsertKeys, KeyPlace, KeyRow, ScanKeys
from cqueue.store.operations import MessageRow, Now, Operation, Together, WideRow

AT_ONCE = 128
"""Writes of keys side by side, at most: each has its own partition, and 500 messages may have as many."""
AHEAD_US = 60_000_000
"""µs by which the delete of a deleted message's row lies ahead of now: it has to beat the insert, by a clock
that may have been ahead. The message's id is not used again, so nothing else is deleted."""
TTL_SLACK_S = 60
"""Seconds that a row outlives the time to live of its message: more than clocks disagree by."""
LONGEST_TTL_S = 5 * 365 * 86_400
"""Seconds above which a row gets no time to live: Cassandra refuses those that end after 2038."""
SCANNED_AT_ONCE = 1000
"""Partitions of the look-up table that one read of a scan returns."""

Messages = Iterable[tuple[WideRow, MessageRow]]


def write(messages: Messages) -> Proto[NotDone | OutcomeUnknown | None]:
    """Write the rows of messages that have keys; return the failure, if any. A repeat is harmless."""
    now_us = yield from Now()
    groups: dict[tuple[KeyPlace, int], list[KeyRow]] = {}
    for wide_row, row in messages:
        if row.key is not None:
            group = KeyPlace(wide_row.queue, row.key), _ttl_s(row, now_us)
            groups.setdefault(group, []).append(_row_of(wide_row, row, now_us))
    inserts = [InsertKeys(place, tuple(rows), ttl_s) for (place, ttl_s), rows in groups.items()]
    return (yield from _all(inserts))


def written(messages: Messages) -> Proto[None]:
    """Write the rows of messages that have keys.

    Raises:
        NotDone, OutcomeUnknown: they may lack.
    """
    failed = yield from write(messages)
    if failed is not None:
        raise failed


def delete(messages: Messages) -> Proto[None]:
    """Delete the rows of deleted messages. If that fails, the next look-up of their keys does it."""
    at_us = (yield from Now()) + AHEAD_US
    groups: dict[KeyPlace, list[KeyRow]] = {}
    for wide_row, row in messages:
        if row.key is not None:
            place = KeyPlace(wide_row.queue, row.key)
            groups.setdefault(place, []).append(_row_of(wide_row, row, at_us))
    yield from _all([DeleteKeys(place, tuple(rows)) for place, rows in groups.items()])


def _row_of(wide_row: WideRow, row: MessageRow, at_us: int) -> KeyRow:
    return KeyRow(row.id, row.priority, wide_row.time_shard, wide_row.shard, at_us)


def _ttl_s(row: MessageRow, now_us: int) -> int:
    if row.expires is None:
        return 0
    left_s = max(0, row.expires - now_us // 1000) // 1000 + TTL_SLACK_S
    return left_s if left_s <= LONGEST_TTL_S else 0


def _all(operations: Sequence[Operation[Any]]) -> Proto[NotDone | OutcomeUnknown | None]:
    """Run operations, and return the first failure."""
    for start in range(0, len(operations), AT_ONCE):
        results = yield from Together(tuple(operations[start : start + AT_ONCE]))
        for result in results:
            if isinstance(result, NotDone | OutcomeUnknown):
                return result
    return None


def is_late(spec: QueueSpec, began_us: int, now_us: int) -> bool:
    """Return whether rows written from `began_us` on may be deleted before a message that is stored now.

    Then they have to be written once more. Otherwise a look-up finds the message while it spares the rows.
    """
    return now_us > began_us + spec.settle_us


def forget(spec: QueueSpec) -> Proto[None]:
    """Delete all rows of a queue that is purged and being deleted: some may have no message.

    This reads the keys of all queues: only the rows know which keys there are.
    """
    token = -(1 << 63)
    while True:
        page: list[tuple[KeyPlace, int]] = yield from ScanKeys(token, SCANNED_AT_ONCE)
        mine = [place for place, _ in page if place.queue == spec.partition]
        at_us = (yield from Now()) + AHEAD_US
        for one in _parts(mine):
            yield from together(*(DropKey(place, at_us) for place in one))
        if len(page) < SCANNED_AT_ONCE:
            return
        token = page[-1][1]


def _parts(places: Sequence[KeyPlace]) -> Iterator[Sequence[KeyPlace]]:
    for start in range(0, len(places), AT_ONCE):
        yield places[start : start + AT_ONCE]
