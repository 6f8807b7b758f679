"""Appending to a log: ids, one write per partition, and when it counts as acknowledged.

Readers go up to the stable horizon, W + ε before now, and never look back. So an append counts only if
its answer arrives within W of its ids' time; one that is answered later is made again under new ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.protocol.flush import FLUSH_BYTES, FLUSH_ROWS, Failure, entropy_for, unknown, worst
from cqueue.protocol.logs import LogSpec, partition_of
from cqueue.protocol.send import FLUSHES_IN_FLIGHT, REMAKES, within_settle
from cqueue.protocol.spec import Proto
from cqueue.store.log_operations import (
    AppendRecords,
    DeleteRecords,
    LogShard,
    RecordRow,
    RegisterLogShard,
)
from cqueue.store.operations import Now, Operation, Together

ROWS_IN_FLIGHT = 4000
BYTES_IN_FLIGHT = 4 << 20
MAX_REGISTERED = 20_000


class Entry(NamedTuple):
    """A record to append, its limits checked. partition: None for the key's, or any."""

    topic: str
    body: bytes
    key: str | None = None
    partition: int | None = None
    headers: dict[str, str] | None = None


@dataclass(slots=True)
class Write:
    """Records of one Cassandra partition, written together. `indexes` are their places in what was asked."""

    shard: LogShard
    indexes: list[int] = field(default_factory=list)
    rows: list[RecordRow] = field(default_factory=list)
    size: int = 0
    error: Failure | None = None
    remade: bool = False  # a late first try was replaced: a copy of it may be read as well


@dataclass(slots=True)
class AppenderState:
    """What an appender remembers: whose turn it is, ids handed out, partitions registered."""

    turn: int = 0
    last_ticks: int = 0
    registered: set[LogShard] = field(default_factory=set)


def append(spec: LogSpec, state: AppenderState, entries: Sequence[Entry]) -> Proto[list[Write]]:
    """Store records; each write says what became of its part."""
    done: list[Write] = []
    for start, end in _parts(entries):
        now_us = yield from Now()  # ids are made when they are written, not long before: W counts from them
        entropy = yield from entropy_for(end - start)
        writes = _make_writes(spec, state, entries[start:end], start=start, now_us=now_us, entropy=entropy)
        for begin in range(0, len(writes), FLUSHES_IN_FLIGHT):
            done += yield from _append_group(spec, state, writes[begin : begin + FLUSHES_IN_FLIGHT])
    return done


def _parts(entries: Sequence[Entry]) -> Iterator[tuple[int, int]]:
    """Where parts begin and end, so that each is written in a fraction of W."""
    start = size = 0
    for index, entry in enumerate(entries):
        if index > start and (index - start == ROWS_IN_FLIGHT or size + len(entry.body) > BYTES_IN_FLIGHT):
            yield start, index
            start, size = index, 0
        size += len(entry.body)
    if start < len(entries):
        yield start, len(entries)


def _make_writes(
    spec: LogSpec, state: AppenderState, entries: Sequence[Entry], *, start: int, now_us: int, entropy: bytes
) -> list[Write]:
    """Give every record its id, in order, and group them by partition."""
    open_: dict[tuple[int | None, int], Write] = {}
    done: list[Write] = []
    width_us = spec.width_ms * 1000
    ticks = max(now_us * 10, state.last_ticks + 1)
    for place, entry in enumerate(entries):
        id_ = ids.from_ticks(ticks, int.from_bytes(entropy[8 * place : 8 * place + 8], "big"))
        partition = entry.partition
        if partition is None and entry.key is not None:
            partition = partition_of(entry.key, spec.partitions)
        group = (partition, ticks // 10 // width_us)
        write = open_.get(group)
        if write is None:
            write = open_[group] = Write(spec.shard_at(_turn(spec, state, partition), ticks // 10))
        write.indexes.append(start + place)
        write.rows.append(RecordRow(id_, entry.topic, entry.key, entry.headers, entry.body))
        write.size += len(entry.body) + 100
        if len(write.rows) == FLUSH_ROWS or write.size >= FLUSH_BYTES:
            done.append(open_.pop(group))
        ticks += 1
    state.last_ticks = ticks - 1
    return done + list(open_.values())


def _turn(spec: LogSpec, state: AppenderState, partition: int | None) -> int:
    """The partition asked for, or the next one."""
    if partition is not None:
        return partition
    state.turn += 1
    return state.turn % spec.partitions


def _append_group(spec: LogSpec, state: AppenderState, group: list[Write]) -> Proto[list[Write]]:
    began_us = yield from Now()
    errors = yield from _write(spec, state, group)
    done: list[Write] = []
    for write, error in zip(group, errors, strict=True):
        done += yield from _deliver(spec, state, write, began_us, error)
    return done


def _deliver(
    spec: LogSpec,
    state: AppenderState,
    write: Write,
    began_us: int,
    error: Failure | None,
    *,
    remakes: int = REMAKES,
) -> Proto[list[Write]]:
    """Write until it is acknowledged in time, or say what is known about it."""

    def again() -> Proto[Failure | None]:
        (failure,) = yield from _write(spec, state, [write])
        return failure

    write.error = yield from within_settle(spec.settle_us, began_us, error, again)
    if write.error is not None:
        return [write]
    try:
        now_us = yield from Now(checked=True)
    except NotDone as exc:
        write.error = unknown("stored, but the cluster's time cannot be read to confirm it", exc)
        return [write]
    if in_time(spec, write.rows[0].id, now_us):  # the first id is the earliest
        return [write]
    if not remakes:
        write.error = OutcomeUnknown("stored, but each time too late to count as acknowledged")
        return [write]
    return (yield from _remake(spec, state, write, remakes - 1))


def in_time(spec: LogSpec, id_: int, now_us: int) -> bool:
    """Whether an answer at `now_us` acknowledges the append: no reader can have passed the id yet."""
    return now_us <= ids.time_us(id_) + spec.settle_us


def _remake(spec: LogSpec, state: AppenderState, late: Write, remakes: int) -> Proto[list[Write]]:
    """Append late records again under new ids, and only then delete the old ones."""
    done: list[Write] = []
    for fresh in (yield from _renewed(spec, state, late)):
        began_us = yield from Now()
        (error,) = yield from _write(spec, state, [fresh])
        done += yield from _deliver(spec, state, fresh, began_us, error, remakes=remakes)
    for write in done:
        if write.error is not None:
            write.error = unknown("an earlier try is stored, but readers may have passed it", write.error)
    if all(write.error is None for write in done):
        with suppress(NotDone, OutcomeUnknown):  # else both copies may be read
            yield from DeleteRecords(late.shard, tuple(row.id for row in late.rows))
    return done


def _renewed(spec: LogSpec, state: AppenderState, late: Write) -> Proto[list[Write]]:
    """The records under new ids in the same partition, each in the time shard of its id."""
    now_us = yield from Now()
    entropy = yield from entropy_for(len(late.rows))
    writes: dict[LogShard, Write] = {}
    for place, (index, row) in enumerate(zip(late.indexes, late.rows, strict=True)):
        ticks = state.last_ticks = max(now_us * 10, state.last_ticks + 1)
        shard = spec.shard_at(late.shard.partition, ticks // 10)
        write = writes.setdefault(shard, Write(shard, remade=True))
        id_ = ids.from_ticks(ticks, int.from_bytes(entropy[8 * place : 8 * place + 8], "big"))
        write.indexes.append(index)
        write.rows.append(row._replace(id=id_))
    return list(writes.values())


def _write(spec: LogSpec, state: AppenderState, writes: list[Write]) -> Proto[list[Failure | None]]:
    """One try of several writes side by side; for each, how it failed, or None when it is stored."""
    operations: list[Operation[Any]] = []
    sizes: list[int] = []
    for write in writes:
        parts: list[Operation[Any]] = [AppendRecords(write.shard, tuple(write.rows), spec.ttl_s)]
        if write.shard not in state.registered:
            parts.append(RegisterLogShard(write.shard, spec.registry_ttl_s))
        operations += parts
        sizes.append(len(parts))
    results = yield from Together(tuple(operations))
    errors: list[Failure | None] = []
    at = 0
    for write, size in zip(writes, sizes, strict=True):
        errors.append(worst(results[at : at + size]))
        at += size
        if errors[-1] is None:
            _registered(state, write.shard)
    return errors


def _registered(state: AppenderState, shard: LogShard) -> None:
    if len(state.registered) > MAX_REGISTERED:
        state.registered.clear()  # registering again is harmless
    state.registered.add(shard)
