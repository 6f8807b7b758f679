"""Sending: ids, wide rows, one flush per wide row, and when a send counts as acknowledged.

A message written late may lie behind a cursor, where nobody looks. So a send is acknowledged only if
its answers arrive within W of the id's time; an answer that comes later means: send again under a new
id, then delete the old one. Without an answer the same id is repeated, which is idempotent, and after
W the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import LASTING, NotDone, OutcomeUnknown
from cqueue.protocol import shards
from cqueue.protocol.flush import (
    Failure,
    Flush,
    Outgoing,
    ProducerState,
    entropy_for,
    make_flushes,
    new_flush,
    unknown,
    worst,
    write,
)
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import DeleteBodies, DeleteMessages, Now, Operation, Pause, Together

ROWS_IN_FLIGHT = 2000
FLUSHES_IN_FLIGHT = 32
BYTES_IN_FLIGHT = 4 << 20
REMAKES = 5
FIRST_PAUSE_S = 0.01


def send(spec: QueueSpec, state: ProducerState, outgoing: Sequence[Outgoing]) -> Proto[list[Flush]]:
    """Store messages; each flush says what became of its part."""
    done: list[Flush] = []
    for start, end in _parts(outgoing):
        part = outgoing[start:end]
        now_us = yield from Now()  # ids are made when they are written, not long before: W counts from them
        entropy = yield from entropy_for(len(part))
        flushes = make_flushes(spec, state, part, now_us, entropy)
        if start:
            for flush in flushes:
                flush.indexes = [start + index for index in flush.indexes]
        for group in _groups(flushes):
            done += yield from _send_group(spec, state, group)
    return done


def _parts(outgoing: Sequence[Outgoing]) -> Iterator[tuple[int, int]]:
    """Where parts begin and end, so that each is written in a fraction of W."""
    if len(outgoing) == 1 or (
        len(outgoing) <= ROWS_IN_FLIGHT
        and sum([len(message.body) for message in outgoing]) <= BYTES_IN_FLIGHT
    ):
        yield 0, len(outgoing)
        return
    start = size = 0
    for index, message in enumerate(outgoing):
        if index > start and (index - start == ROWS_IN_FLIGHT or size + len(message.body) > BYTES_IN_FLIGHT):
            yield start, index
            start, size = index, 0
        size += len(message.body)
    if start < len(outgoing):
        yield start, len(outgoing)


def _groups(flushes: list[Flush]) -> Iterator[list[Flush]]:
    """Flushes to be written side by side, what is due first in front."""
    if len(flushes) == 1:
        yield flushes
        return
    group: list[Flush] = []
    for flush in sorted(flushes, key=lambda flush: flush.rows[0].id):
        size = flush.size + sum(other.size for other in group)
        if group and (len(group) == FLUSHES_IN_FLIGHT or size > BYTES_IN_FLIGHT):
            yield group
            group = []
        group.append(flush)
    if group:
        yield group


def _send_group(spec: QueueSpec, state: ProducerState, group: list[Flush]) -> Proto[list[Flush]]:
    began_us = yield from Now()
    errors = yield from write(spec, state, group)
    done: list[Flush] = []
    for flush, error in zip(group, errors, strict=True):
        done += yield from _deliver(spec, state, flush, Try(began_us, error))
    return done


# ── one flush ──


class Try(NamedTuple):
    """A first attempt to write a flush: when it began, and how it failed (None: it is stored)."""

    began_us: int
    error: Failure | None


def _deliver(
    spec: QueueSpec, state: ProducerState, flush: Flush, first: Try, remakes: int = REMAKES
) -> Proto[list[Flush]]:
    """Write a flush until it is acknowledged in time, or say what is known about it."""
    if first.error is not None:
        flush.error = yield from _write_within_settle(spec, state, flush, first)
        if flush.error is not None:
            return [flush]
    try:
        now_us = yield from Now(checked=True)
    except NotDone as exc:
        flush.error = unknown("stored, but the cluster's time cannot be read to confirm it", exc)
        return [flush]
    counts = shards.open_in_time if flush.derived else in_time
    if counts(spec, min([row.id for row in flush.rows]), now_us):  # so all of them do
        return [flush]
    late = {row.id for row in flush.rows if not counts(spec, row.id, now_us)}
    if flush.derived:  # neither made again nor deleted: another writer may own the id
        flush.error = OutcomeUnknown("stored, but longer after its due time than gc_grace allows")
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
) -> Proto[Failure | None]:
    """Repeat the same ids until they are answered or W is over; None if they are stored."""

    def again() -> Proto[Failure | None]:
        (failure,) = yield from write(spec, state, [flush])
        return failure

    return (yield from within_settle(spec.settle_us, first.began_us, first.error, again))


def within_settle(
    settle_us: int, began_us: int, error: Failure | None, again: Callable[[], Proto[Failure | None]]
) -> Proto[Failure | None]:
    """Repeat a failed write until it is stored (None), refused for good, or W since it began is over."""
    pause_s = FIRST_PAUSE_S
    doubt: OutcomeUnknown | None = None
    while error is not None:
        doubt = error if isinstance(error, OutcomeUnknown) else doubt
        now_us = yield from Now()
        if isinstance(error, LASTING) or now_us + pause_s * 1e6 > began_us + settle_us:
            return doubt or error
        yield from Pause(pause_s)
        pause_s = min(pause_s * 2, 0.5)
        error = yield from again()
    return None


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
        (error,) = yield from write(spec, state, [fresh])
        done += yield from _deliver(spec, state, fresh, Try(began_us, error), remakes)
    for flush in done:
        if flush.error is not None:
            flush.error = unknown("an earlier try is stored, but may lie behind a cursor", flush.error)
    if all(flush.error is None for flush in done):
        yield from _delete_old(late)
    return done


def _renewed(spec: QueueSpec, state: ProducerState, late: Flush) -> Proto[list[Flush]]:
    """The messages under new ids, each in the wide row of its id's own time shard.

    Ids handed out lately may lie ahead of the clock, and so beyond the time shard of now.
    """
    now_us = yield from Now()
    entropy = yield from entropy_for(len(late.rows))
    bodies = dict(late.bodies)
    flushes: dict[int, Flush] = {}
    for place, (index, row) in enumerate(zip(late.indexes, late.rows, strict=True)):
        ticks = state.last_ticks = max(now_us * 10, state.last_ticks + 1)
        id_ = ids.from_ticks(ticks, int.from_bytes(entropy[8 * place : 8 * place + 8], "big"))
        time_shard = ticks // 10 // (spec.width_ms * 1000)
        flush = flushes.get(time_shard)
        if flush is None:
            flush = flushes[time_shard] = new_flush(spec, state, ticks // 10, now_us)
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
    failed = worst((yield from Together(tuple(deletes))))
    if late.bodies and failed is None:  # a message that may still be delivered keeps its body
        with suppress(NotDone, OutcomeUnknown):
            yield from DeleteBodies(late.wide_row, tuple(id_ for id_, _ in late.bodies))
