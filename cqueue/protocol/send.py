"""Sending: ids, wide rows, one flush per wide row, and when a send counts as acknowledged.

A message written late may lie behind a cursor, where nobody looks. So a send is acknowledged only if
its answers arrive within W of the id's time; an answer that comes later means: send again under a new
id, then delete the old one. Without an answer the same id is repeated, which is idempotent, and after
W the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.shards import normal_row, registration
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    InsertBodies,
    InsertMessages,
    MessageRow,
    Now,
    Operation,
    Pause,
    RandomBits,
    Together,
    WideRow,
)

FLUSH_ROWS = 500
FLUSH_BYTES = 1 << 20
"""A flush is one single-partition batch of at most so many rows, and bytes with its last row on top."""
INLINE_BODY = 4096
TURN_US = 50_000
FLUSHES_IN_FLIGHT = 4
MAX_REGISTERED = 10_000
REMAKES = 5
FIRST_PAUSE_S = 0.01


class Outgoing(NamedTuple):
    """A message to send, its limits checked. due_us: None for now."""

    body: bytes
    priority: int
    due_us: int | None
    headers: dict[str, str] | None
    ttl_ms: int | None
    codec: str | None = None
    task: str | None = None
    key: str | None = None
    trigger: str | None = None


@dataclass(slots=True)
class Flush:
    """Messages of one wide row, written together. `indexes` are their places in what was asked."""

    wide_row: WideRow
    indexes: list[int]
    rows: list[MessageRow]
    bodies: list[tuple[int, bytes]]
    error: NotDone | OutcomeUnknown | None = None
    remade: bool = False  # a late first try was replaced: a copy of it may be delivered as well


@dataclass(slots=True)
class ProducerState:
    """What a producer remembers: the rotation of shards, ids handed out, wide rows registered."""

    turn: int = 0
    turned_us: int = 0
    rows_in_turn: int = 0
    last_ticks: int = 0
    registered: set[tuple[WideRow, int]] = field(default_factory=set)


def send(spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing]) -> Proto[list[Flush]]:
    """Store messages; each flush says what became of its part."""
    now_us = yield from Now()
    entropy = yield from _entropy(len(outgoing))
    flushes = _flushes(spec, state, outgoing, now_us, entropy)
    done: list[Flush] = []
    for start in range(0, len(flushes), FLUSHES_IN_FLIGHT):
        group = flushes[start : start + FLUSHES_IN_FLIGHT]
        began_us = yield from Now()
        errors = yield from _write(spec, state, group)
        for flush, error in zip(group, errors, strict=True):
            done += yield from _deliver(spec, state, flush, Try(began_us, error))
    return done


def _entropy(count: int) -> Proto[bytes]:
    """Eight random bytes for each of `count` ids."""
    bits = yield from RandomBits(64 * count)
    return bits.to_bytes(8 * count, "big")


def _flushes(
    spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing], now_us: int, entropy: bytes
) -> list[Flush]:
    """Give every message its id and group them by time shard into flushes."""
    width_us = spec.width_ms * 1000
    open_: dict[int, Flush] = {}
    sizes: dict[int, int] = {}
    done: list[Flush] = []
    now_ms = now_us // 1000
    ticks = max(now_us * 10, state.last_ticks + 1)
    for index, message in enumerate(outgoing):
        due_us = message.due_us
        if due_us is None or due_us <= now_us:
            id_ticks, ticks = ticks, ticks + 1
        else:
            id_ticks = due_us * 10 + index % 10
        id_ = ids.from_ticks(id_ticks, int.from_bytes(entropy[8 * index : 8 * index + 8], "big"))
        time_shard = id_ticks // 10 // width_us
        flush = open_.get(time_shard)
        if flush is None:
            flush = open_[time_shard] = _new_flush(spec, state, id_ticks // 10, now_us)
            sizes[time_shard] = 0
        row, size = _row(message, id_, now_ms)
        flush.indexes.append(index)
        flush.rows.append(row)
        state.rows_in_turn += 1
        if row.size is not None:
            flush.bodies.append((id_, message.body))
        sizes[time_shard] += size
        if len(flush.rows) == FLUSH_ROWS or sizes[time_shard] >= FLUSH_BYTES:
            done.append(open_.pop(time_shard))
    state.last_ticks = ticks
    return done + list(open_.values())


def _new_flush(spec: QueueSpec, state: ProducerState, due_us: int, now_us: int) -> Flush:
    """A flush to the shard whose turn it is; small flushes in quick succession share a turn.

    A consumer's claim costs the same for one message as for hundreds: spreading a trickle over all
    shards would make it pay for each message.
    """
    if state.rows_in_turn >= FLUSH_ROWS or now_us - state.turned_us >= TURN_US:
        state.turn, state.turned_us, state.rows_in_turn = state.turn + 1, now_us, 0
    return Flush(normal_row(spec, due_us, state.turn % spec.shards), [], [], [])


def _row(message: Outgoing, id_: int, now_ms: int) -> tuple[MessageRow, int]:
    """The row of a message, and how many bytes it adds to a flush."""
    body, headers = message.body, message.headers
    inline = len(body) <= INLINE_BODY
    row = MessageRow(
        message.priority,
        id_,
        body if inline else None,
        None if inline else len(body),
        headers,
        message.codec,
        message.task,
        message.key,
        message.trigger,
        now_ms,
        None if message.ttl_ms is None else now_ms + message.ttl_ms,
        0,
    )
    return row, len(body) + (sum(map(len, headers)) + sum(map(len, headers.values())) if headers else 0)


# ── one flush ──


class Try(NamedTuple):
    """A first attempt to write a flush: when it began, and how it failed (None: it is stored)."""

    began_us: int
    error: NotDone | OutcomeUnknown | None


def _deliver(
    spec: QueueSpec, state: ProducerState, flush: Flush, first: Try, remakes: int = REMAKES
) -> Proto[list[Flush]]:
    """Write a flush until it is acknowledged in time, or say what is known about it."""
    flush.error = yield from _write_within_settle(spec, state, flush, first)
    if flush.error is not None:
        return [flush]
    try:
        now_us = yield from Now(checked=True)
    except NotDone as exc:
        flush.error = _unknown("stored, but the cluster's time cannot be read to confirm it", exc)
        return [flush]
    late = {row.id for row in flush.rows if not in_time(spec, row.id, now_us)}
    if not late:
        return [flush]
    if not remakes:
        flush.error = OutcomeUnknown("stored, but each time too late to count as acknowledged")
        return [flush]
    in_time_part, late_part = _split(flush, late)
    return in_time_part + (yield from _remake(spec, state, late_part, remakes - 1))


def in_time(spec: QueueSpec, id_: int, now_us: int) -> bool:
    """Whether an answer at `now_us` acknowledges the send: no cursor can have passed the id yet."""
    return now_us <= ids.time_us(id_) + spec.settle_us


def _write_within_settle(
    spec: QueueSpec, state: ProducerState, flush: Flush, first: Try
) -> Proto[NotDone | OutcomeUnknown | None]:
    """Repeat the same ids until they are answered or W is over; None if they are stored."""
    pause_s, error = FIRST_PAUSE_S, first.error
    unknown: OutcomeUnknown | None = None
    while error is not None:
        unknown = error if isinstance(error, OutcomeUnknown) else unknown
        now_us = yield from Now()
        if now_us + pause_s * 1e6 > first.began_us + spec.settle_us:
            return unknown or error
        yield from Pause(pause_s)
        pause_s = min(pause_s * 2, 0.5)
        (error,) = yield from _write(spec, state, [flush])
    return None


def _write(
    spec: QueueSpec, state: ProducerState, flushes: list[Flush]
) -> Proto[list[NotDone | OutcomeUnknown | None]]:
    """One try of several flushes side by side: large bodies first, then registry and messages."""
    bodies = [InsertBodies(flush.wide_row, tuple(flush.bodies)) for flush in flushes if flush.bodies]
    if bodies:
        failed = _worst((yield from Together(tuple(bodies))))
        if failed is not None:
            return [failed] * len(flushes)
    operations: list[Operation[Any]] = []
    parts: list[tuple[int, set[tuple[WideRow, int]]]] = []
    for flush in flushes:
        start = len(operations)
        new = {(flush.wide_row, row.priority) for row in flush.rows} - state.registered
        operations.append(InsertMessages(flush.wide_row, tuple(flush.rows)))
        for wide_row, priority in sorted(new):
            operations += registration(spec, wide_row, priority)
        parts.append((start, new))
    results = yield from Together(tuple(operations))
    ends = [start for start, _ in parts[1:]] + [len(results)]
    errors = []
    for (start, new), end in zip(parts, ends, strict=True):
        errors.append(_worst(results[start:end]))
        if errors[-1] is None and new:
            _registered(state, new)
    return errors


def _registered(state: ProducerState, new: set[tuple[WideRow, int]]) -> None:
    if len(state.registered) > MAX_REGISTERED:
        state.registered.clear()  # registering again is harmless
    state.registered |= new


def _worst(results: list[Any]) -> NotDone | OutcomeUnknown | None:
    """What is known of messages (the first result) written beside their registration.

    Not done only if the messages themselves certainly were not stored.
    """
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return None
    if isinstance(results[0], NotDone | OutcomeUnknown):
        return results[0]
    return _unknown("the messages may be stored, but not their registration", errors[0])


def _unknown(text: str, cause: Exception) -> OutcomeUnknown:
    error = OutcomeUnknown(text)
    error.__cause__ = cause
    return error


# ── late answers ──


def _split(flush: Flush, late: set[int]) -> tuple[list[Flush], Flush]:
    """The part acknowledged in time (none or one flush), and the late part."""

    def part(wanted: bool) -> Flush:  # noqa: FBT001 - local
        places = [place for place, row in enumerate(flush.rows) if (row.id in late) is wanted]
        return Flush(
            flush.wide_row,
            [flush.indexes[place] for place in places],
            [flush.rows[place] for place in places],
            [(id_, body) for id_, body in flush.bodies if (id_ in late) is wanted],
            remade=flush.remade,
        )

    kept = part(False)
    return ([kept] if kept.rows else []), part(True)


def _remake(spec: QueueSpec, state: ProducerState, late: Flush, remakes: int) -> Proto[list[Flush]]:
    """Send late messages again under new ids, and only then delete the old ones."""
    done: list[Flush] = []
    for fresh in (yield from _renewed(spec, state, late)):
        began_us = yield from Now()
        (error,) = yield from _write(spec, state, [fresh])
        done += yield from _deliver(spec, state, fresh, Try(began_us, error), remakes)
    for flush in done:
        if flush.error is not None:
            flush.error = _unknown("an earlier try is stored, but may lie behind a cursor", flush.error)
    if all(flush.error is None for flush in done):
        yield from _delete_old(late)
    return done


def _renewed(spec: QueueSpec, state: ProducerState, late: Flush) -> Proto[list[Flush]]:
    """The messages under new ids, each in the wide row of its id's own time shard.

    Ids handed out lately may lie ahead of the clock, and so beyond the time shard of now.
    """
    now_us = yield from Now()
    entropy = yield from _entropy(len(late.rows))
    bodies = dict(late.bodies)
    flushes: dict[int, Flush] = {}
    for place, (index, row) in enumerate(zip(late.indexes, late.rows, strict=True)):
        ticks = state.last_ticks = max(now_us * 10, state.last_ticks + 1)
        id_ = ids.from_ticks(ticks, int.from_bytes(entropy[8 * place : 8 * place + 8], "big"))
        time_shard = ticks // 10 // (spec.width_ms * 1000)
        flush = flushes.get(time_shard)
        if flush is None:
            flush = flushes[time_shard] = _new_flush(spec, state, ticks // 10, now_us)
            flush.remade = True
        flush.indexes.append(index)
        flush.rows.append(row._replace(id=id_))
        if row.id in bodies:
            flush.bodies.append((id_, bodies[row.id]))
    return list(flushes.values())


def _delete_old(late: Flush) -> Proto[None]:
    """Delete replaced messages; if that fails they may be delivered beside their replacements."""
    by_priority: dict[int, list[int]] = {}
    for row in late.rows:
        by_priority.setdefault(row.priority, []).append(row.id)
    deletes: list[Operation[Any]] = [
        DeleteMessages(late.wide_row, priority, tuple(ids_)) for priority, ids_ in by_priority.items()
    ]
    failed = _worst((yield from Together(tuple(deletes))))
    if late.bodies and failed is None:  # a message that may still be delivered keeps its body
        with suppress(NotDone, OutcomeUnknown):
            yield from DeleteBodies(late.wide_row, tuple(id_ for id_, _ in late.bodies))
