"""Flushes: messages of one wide row with their ids, written together.

The order of writes is what keeps garbage out: the registry row before large bodies, so that whoever
retires the wide row drops bodies whose message never came; large bodies before their messages, so that
no message is seen without its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cqueue import ids
from cqueue.protocol import shards
from cqueue.protocol.shards import normal_row
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.writing import PART_ROWS, Bits, Part, WriterState
from cqueue.store.operations import MessageRow, WideRow

PACK_ROWS = 125
PACK_BYTES = 32 << 10
"""Messages of a flush that are alike share rows (cqueue.store.packs) of at most so many messages, and bytes
of bodies: who reads one message reads them all. Four full ones make a flush."""
PACKED_BODY = 4 << 10
"""A larger body has a row alone: what a row costs is little beside it, and large rows are slow to read."""
INLINE_BODY = 16 << 10
"""A larger body is a row of its own: that costs a write and a read, and keeps reads of messages small."""
TURN_US = 250_000


class Outgoing(NamedTuple):
    """A message to send, its limits checked. due_us: None for now. source: of a derived id."""

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
    """Messages of one wide row.

    bodies: large ones, by id. derived: its ids are; to an open wide row, never made again.
    """

    wide_row: WideRow
    rows: list[MessageRow] = field(default_factory=list)
    bodies: list[tuple[int, bytes]] = field(default_factory=list)
    derived: bool = False


@dataclass(slots=True)
class ProducerState(WriterState):
    """What a producer remembers: also the rotation of shards."""

    turned_us: int = 0
    rows_in_turn: int = 0


def make_flushes(
    spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing], now_us: int, bits: Bits
) -> list[Flush]:
    """Give every message its id, neighbours that are alike those of a pack, and group them by time shard."""
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
            key = shards.open_row(spec, due_us or 0, source)
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
    """Where the messages end that can share a row with the one at `start`."""
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
    """A flush to the shard whose turn it is; small flushes in quick succession share a turn.

    A consumer's claim costs the same for one message as for hundreds: spreading a trickle over all
    shards would make it pay for each message.
    """
    if state.rows_in_turn >= PART_ROWS or now_us - state.turned_us >= TURN_US:
        state.turn, state.turned_us, state.rows_in_turn = state.turn + 1, now_us, 0
    return Flush(wide_row=normal_row(spec, due_us, state.turn % spec.shards))


def _add(
    flush: Flush, indexes: Sequence[int], alike: Sequence[Outgoing], several: Sequence[int], now_ms: int
) -> None:
    """Put the rows of messages that differ in their bodies only into a flush; a large body beside them."""
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
