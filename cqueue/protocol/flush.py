"""Flushes: messages of one wide row with their ids, written together.

The order of writes is what keeps garbage out: the registry row before large bodies, so that whoever
retires the wide row drops bodies whose message never came; large bodies before their messages, so that
no message is seen without its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import LASTING, NotDone, OutcomeUnknown
from cqueue.protocol import shards
from cqueue.protocol.shards import normal_row, registration
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    InsertBodies,
    InsertMessages,
    MessageRow,
    Operation,
    RandomBits,
    Together,
    WideRow,
)

FLUSH_ROWS = 500
FLUSH_BYTES = 1 << 20
"""A flush is one single-partition batch of at most so many rows, and bytes with its last row on top."""
PACK_ROWS = 125
PACK_BYTES = 32 << 10
"""Messages of a flush that are alike share rows (cqueue.store.packs) of at most so many messages, and bytes
of bodies: who reads one message reads them all. Four full ones make a flush."""
PACKED_BODY = 4 << 10
"""A larger body has a row alone: what a row costs is little beside it, and large rows are slow to read."""
INLINE_BODY = 16 << 10
"""A larger body is a row of its own: that costs a write and a read, and keeps reads of messages small."""
TURN_US = 250_000
MAX_REGISTERED = 10_000

Failure = NotDone | OutcomeUnknown


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


@dataclass(slots=True)
class Flush:
    """Messages of one wide row, written together. `indexes` are their places in what was asked."""

    wide_row: WideRow
    indexes: list[int]
    rows: list[MessageRow]
    bodies: list[tuple[int, bytes]]
    error: NotDone | OutcomeUnknown | None = None
    size: int = 0  # bytes, about
    derived: bool = False  # its ids are: to an open wide row, never made again
    remade: bool = False  # a late first try was replaced: a copy of it may be delivered as well


@dataclass(slots=True)
class ProducerState:
    """What a producer remembers: the rotation of shards, ids handed out, wide rows registered."""

    turn: int = 0
    turned_us: int = 0
    rows_in_turn: int = 0
    last_ticks: int = 0
    registered: set[tuple[WideRow, int]] = field(default_factory=set)


def entropy_for(count: int) -> Proto[bytes]:
    """Eight random bytes for each of `count` ids."""
    bits = yield from RandomBits(64 * count)
    return bits.to_bytes(8 * count, "big")


def make_flushes(
    spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing], now_us: int, entropy: bytes
) -> list[Flush]:
    """Give every message its id, neighbours that are alike those of a pack, and group them by time shard."""
    width_us = spec.width_ms * 1000
    open_: dict[int | WideRow, Flush] = {}
    done: list[Flush] = []
    ticks = max(now_us * 10, state.last_ticks + 1)
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
                id_ticks, ticks = ticks, ticks + 1
            else:
                id_ticks = due_us * 10 + start % 10
            several = _ids(id_ticks, int.from_bytes(entropy[8 * start : 8 * start + 8], "big"), end - start)
            key = id_ticks // 10 // width_us
        flush = open_.get(key)
        if flush is not None and len(flush.rows) + end - start > FLUSH_ROWS:
            done.append(flush)
            flush = None
        if flush is None:
            flush = open_[key] = (
                new_flush(spec, state, id_ticks // 10, now_us)
                if isinstance(key, int)
                else Flush(key, [], [], [], derived=True)
            )
        _add(flush, range(start, end), outgoing[start:end], several, now_us // 1000)
        state.rows_in_turn += end - start
        if len(flush.rows) == FLUSH_ROWS or flush.size >= FLUSH_BYTES:
            done.append(open_.pop(key))
        start = end
    state.last_ticks = ticks
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
    if state.rows_in_turn >= FLUSH_ROWS or now_us - state.turned_us >= TURN_US:
        state.turn, state.turned_us, state.rows_in_turn = state.turn + 1, now_us, 0
    return Flush(normal_row(spec, due_us, state.turn % spec.shards), [], [], [])


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


def write(spec: QueueSpec, state: ProducerState, flushes: list[Flush]) -> Proto[list[Failure | None]]:
    """One try of several flushes side by side; for each, how it failed, or None when it is stored."""
    if large := [flush for flush in flushes if flush.bodies]:
        failed = yield from _write_bodies(spec, state, large)
        if failed is not None:
            return [failed] * len(flushes)
    operations: list[Operation[Any]] = []
    parts: list[tuple[int, set[tuple[WideRow, int]]]] = []
    for flush in flushes:
        new = _unregistered(state, flush)
        parts.append((len(operations), new))
        operations += [InsertMessages(flush.wide_row, tuple(flush.rows)), *_registrations(spec, new)]
    results = yield from Together(tuple(operations))
    ends = [start for start, _ in parts[1:]] + [len(results)]
    errors: list[Failure | None] = []
    for (start, new), end in zip(parts, ends, strict=True):
        errors.append(worst(results[start:end]))
        if errors[-1] is None:
            _registered(state, new)
    return errors


def _write_bodies(spec: QueueSpec, state: ProducerState, flushes: list[Flush]) -> Proto[NotDone | None]:
    """Register wide rows and store large bodies; whatever fails here, no message has been written."""
    new = {pair for flush in flushes for pair in _unregistered(state, flush)}
    failed = worst((yield from Together(tuple(_registrations(spec, new))))) if new else None
    if failed is None:
        _registered(state, new)
        bodies = tuple(InsertBodies(flush.wide_row, tuple(flush.bodies)) for flush in flushes)
        failed = worst((yield from Together(bodies)))
    if failed is None or isinstance(failed, LASTING):
        return failed
    error = NotDone("a large body could not be stored, so its message was not")
    error.__cause__ = failed
    return error


def _unregistered(state: ProducerState, flush: Flush) -> set[tuple[WideRow, int]]:
    priorities = {row.priority for row in flush.rows}
    return {(flush.wide_row, priority) for priority in priorities} - state.registered


def _registrations(spec: QueueSpec, new: set[tuple[WideRow, int]]) -> list[Operation[Any]]:
    return [row for wide_row, priority in sorted(new) for row in registration(spec, wide_row, priority)]


def _registered(state: ProducerState, new: set[tuple[WideRow, int]]) -> None:
    if new and len(state.registered) > MAX_REGISTERED:
        state.registered.clear()  # registering again is harmless
    state.registered |= new


def worst(results: list[Any]) -> Failure | None:
    """What is known of messages (the first result) written beside their registration.

    Not done only if the messages themselves certainly were not stored.
    """
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return None
    if isinstance(results[0], NotDone | OutcomeUnknown):
        return results[0]
    return unknown("the messages may be stored, but not their registration", errors[0])


def unknown(text: str, cause: Exception) -> OutcomeUnknown:
    """An unknown outcome, and what made it so."""
    error = OutcomeUnknown(text)
    error.__cause__ = cause
    return error
