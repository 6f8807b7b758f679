"""Group messages into flushes: messages of one wide row, with their ids, that are written together.

The order of writes leaves no garbage. The registry row comes before large bodies, so that retiring the wide
row also drops bodies whose message was never written. Large bodies come before their messages, so that no
message is read without its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cqueue import ids
from cqueue.protocol import registry
from cqueue.protocol.registry import normal_row
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.writing import PART_ROWS, Bits, Part, WriterState
from cqueue.store.operations import MessageRow, WideRow

PACK_ROWS = 125
"""Messages of one pack at most (cqueue.store.packs): four full packs make a flush of 500 messages."""
PACK_BYTES = 32 << 10
"""Bytes of bodies in one pack at most: a read of one message reads the whole pack."""
PACKED_BODY = 4 << 10
"""Bytes of the largest body in a pack. A larger one gets its own row: the row's cost is small beside it, and
large rows are slow to read."""
INLINE_BODY = 16 << 10
"""Bytes of the largest body stored in its message's row. A larger one goes to the table `bodies`: that costs
a second write and read, and keeps reads of messages small."""
TURN_US = 250_000
"""µs after which a producer moves to the next concurrency shard: a trickle fills one shard for that time, so
that a claim finds several messages. With a new shard for each send, two consumers could claim side by side.
But where processors are short, more claims cost more than that gains: twice the latency at 500 sends/s."""


class Outgoing(NamedTuple):
    """A message to send, with its limits checked. due_us: None for now. source: what the id derives from."""

    body: bytes
    priority: int
    due_us: int | None
    headers: dict[str, str] | None
    ttl_ms: int | None
    codec: str | None = None
    task: str | None = None
    key: str | None = None
    trigger: str | None = None
    source: bytes | None = None


@dataclass(slots=True, kw_only=True)
class Flush(Part):
    """Messages of one wide row that are written together.

    bodies: large bodies, by id. derived: the ids are derived, so the flush goes to an open wide row and is
    never written again under new ids. skipped: nothing was written, because of the message in `rows`.
    """

    wide_row: WideRow
    rows: list[MessageRow] = field(default_factory=list)
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    derived: bool = False
    skipped: bool = False


@dataclass(slots=True)
class ProducerState(WriterState):
    """A writer's state, with the rotation of concurrency shards."""

    turned_us: int = 0
    rows_in_turn: int = 0


def make_flushes(
    spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing], now_us: int, bits: Bits
) -> list[Flush]:
    """Give each message its id, and group messages by time shard.

    Neighbours that differ only in their bodies get the ids of a pack.
    """
    width_us = spec.width_ms * 1000
    open_: dict[int | WideRow, Flush] = {}
    done: list[Flush] = []
    start = 0
    while start < len(outgoing):
        message, end = outgoing[start], _run(outgoing, start) if spec.packs else start + 1
        due_us, source = message.due_us, message.source
        several: Sequence[int]
        key: int | WideRow
        if source is not None:
            several = (ids.derived(due_us or 0, source),)
            key = registry.open_row(spec, due_us or 0, source)
        else:
            if due_us is None or due_us <= now_us:
                id_ticks = state.next_ticks(now_us)
            else:
                id_ticks = due_us * 10 + start % 10
            several = _ids(id_ticks, bits.at(start), end - start)
            key = id_ticks // 10 // width_us
        flush = open_.get(key)
        if flush is not None and len(flush.rows) + end - start > PART_ROWS:
            done.append(flush)
            flush = None
        if flush is None:
            flush = open_[key] = (
                new_flush(spec, state, id_ticks // 10, now_us)
                if isinstance(key, int)
                else Flush(wide_row=key, derived=True)
            )
        _add(flush, range(start, end), outgoing[start:end], several, now_us // 1000)
        state.rows_in_turn += end - start
        if flush.is_full:
            done.append(open_.pop(key))
        start = end
    return done + list(open_.values())


def _run(outgoing: Sequence[Outgoing], start: int) -> int:
    """Return the end of the run of messages that can share a pack with the one at `start`."""
    first = outgoing[start]
    size, shape = len(first.body), first[1:]
    if size > PACKED_BODY or first.source is not None:
        return start + 1
    most = min(len(outgoing), start + PACK_ROWS)
    for at in range(start + 1, most):
        message = outgoing[at]
        body_size = len(message[0])
        size += body_size
        if size > PACK_BYTES or body_size > PACKED_BODY or message[1:] != shape:
            return at
    return most


def _ids(ticks: int, random_bits: int, count: int) -> Sequence[int]:
    return (ids.from_ticks(ticks, random_bits),) if count == 1 else ids.packed(ticks, random_bits, count)


def new_flush(spec: QueueSpec, state: ProducerState, due_us: int, now_us: int) -> Flush:
    """Begin a flush to the current concurrency shard; small flushes in quick succession share a shard.

    A claim costs the same for one message as for hundreds. If a trickle were spread over all shards, a
    consumer would pay for a claim per message.
    """
    if state.rows_in_turn >= PART_ROWS or now_us - state.turned_us >= TURN_US:
        state.turn, state.turned_us, state.rows_in_turn = state.turn + 1, now_us, 0
    return Flush(wide_row=normal_row(spec, due_us, state.turn % spec.shards))


def _add(
    flush: Flush, indexes: Sequence[int], alike: Sequence[Outgoing], several: Sequence[int], now_ms: int
) -> None:
    """Add messages that differ only in their bodies to a flush; a large body goes beside the rows."""
    first = alike[0]
    body, priority, _, headers, ttl_ms, codec, task, key, trigger, _ = first
    inline = len(body) <= INLINE_BODY
    rest = (headers, codec, task, key, trigger, now_ms, None if ttl_ms is None else now_ms + ttl_ms, 0)
    flush.indexes += indexes
    if inline:
        new = tuple.__new__  # several times as quick as the class itself
        flush.rows += [
            new(MessageRow, (priority, id_, message[0], None, *rest))
            for id_, message in zip(several, alike, strict=True)
        ]
        flush.size += sum([len(message[0]) for message in alike])
    else:
        flush.rows.append(MessageRow(priority, several[0], None, len(body), *rest))
        flush.bodies.append((several[0], body))
        flush.size += len(body)
    if headers:
        flush.size += sum(map(len, headers)) + sum(map(len, headers.values()))
