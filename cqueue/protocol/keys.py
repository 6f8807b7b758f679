"""Keep the look-up table of keyed queues: a row a message, written before the message and deleted after it.

So no acknowledged message lacks its row. A row without a message remains where a process dies between the two
writes, or between the two deletes; cqueue.protocol.key_lookup heals that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.runtime.sequences import grouped, parts
from cqueue.store.keys import DeleteKeys, DropKey, InsertKeys, KeyPlace, KeyRow, KeyWrite, ScanKeys
from cqueue.store.operations import MessageRow, Now, Operation, Together, WideRow, together

AT_ONCE = 32
"""Batches of writes side by side, at most."""
FEW = 10
"""Writes of several keys in one batch, at most: Cassandra warns of more partitions in a batch, and refuses
batches of several partitions above 50 KiB; a key has up to 4 KB."""
MANY = 500
"""Writes of one key in one batch, at most: as many as a flush has messages."""
AHEAD_US = 60_000_000
"""µs by which the delete of a deleted message's row lies ahead of now: it has to beat the insert, by a clock
that may have been ahead. The message's id is not used again, so nothing else is deleted."""
TTL_SLACK_S = 60
"""Seconds that a row outlives the time to live of its message: more than clocks disagree by."""
SCANNED_AT_ONCE = 1000
"""Partitions of the look-up table that one read of a scan returns."""

Messages = Iterable[tuple[WideRow, MessageRow]]


def write(messages: Messages) -> Proto[NotDone | OutcomeUnknown | None]:
    """Write the rows of messages that have keys; return the failure, if any. A repeat is harmless."""
    writes = _writes(messages, (yield from Now()))
    return (yield from _all([InsertKeys(some) for some in _batches(writes)]))


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
    writes = _writes(messages, (yield from Now()) + AHEAD_US)
    yield from _all([DeleteKeys(some) for some in _batches(writes)])


def _writes(messages: Messages, at_us: int) -> Iterator[KeyWrite]:
    """Yield the rows of messages that have keys."""
    for (queue, time_shard, shard), message in messages:
        if message.key is not None:
            row = KeyRow(message.id, message.priority, time_shard, shard, at_us)
            yield KeyWrite(KeyPlace(queue, message.key), row, _ttl_s(message, at_us))


def _batches(writes: Iterable[KeyWrite]) -> Iterator[tuple[KeyWrite, ...]]:
    """Group writes: many of one key, or a few of several."""
    joined: list[KeyWrite] = []
    for some in grouped((one.place, one) for one in writes).values():
        if len(some) > FEW:
            yield from map(tuple, parts(some, MANY))
            continue
        if len(joined) + len(some) > FEW:
            yield tuple(joined)
            joined = []
        joined += some
    if joined:
        yield tuple(joined)


def _ttl_s(row: MessageRow, now_us: int) -> int:
    if row.expires is None:
        return 0
    return max(0, row.expires - now_us // 1000) // 1000 + TTL_SLACK_S


def _all(operations: Sequence[Operation[Any]]) -> Proto[NotDone | OutcomeUnknown | None]:
    """Run operations, and return the first failure."""
    for some in parts(operations, AT_ONCE):
        results = yield from Together(tuple(some))
        for result in results:
            if isinstance(result, NotDone | OutcomeUnknown):
                return result
    return None


def is_late(spec: QueueSpec, began_us: int, now_us: int) -> bool:
    """Return whether rows written from `began_us` on may be deleted before a message that is stored now.

    Then the rows have to be written once more. If not, each look-up that would delete them finds the message.
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
        for some in parts(mine, AT_ONCE):
            yield from together(*(DropKey(place, at_us) for place in some))
        if len(page) < SCANNED_AT_ONCE:
            return
        token = page[-1][1]
