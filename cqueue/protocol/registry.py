"""Which wide rows a queue has: where a message lands, which epoch lists its wide row, and a consumer's copy.

Time shards are absolute (`floor(due / width) * width`), never modulo: they roll forward and are dropped
whole. Open wide rows (shard below 0) take messages that may land late. They are ten times as wide, and their
epochs, one a day, have negative numbers.

A consumer keeps its copy of the registry up to date with few small reads. It keeps an epoch for good only
from a read that began after the epoch was closed: no acknowledged send can add to it any more. Until then
each refresh reads the epoch again, from the first time shard in which a send acknowledged since the last read
can have landed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from cqueue import ids
from cqueue.protocol import policy
from cqueue.protocol.budget import TombstoneBudget
from cqueue.protocol.row_memory import MessageSizes, ReadMemory, RowMemory
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    AdvanceEpoch,
    Now,
    Operation,
    ReadQueue,
    ReadShards,
    RegisterShard,
    ShardRow,
    UnregisterShard,
    WideRow,
    together,
)

OPEN_WIDTHS = 10
"""Widths of a time shard that an open wide row spans: few messages land there, so fewer rows are enough."""
DAY_MS = 86_400_000
"""ms of an epoch of open wide rows."""

EPOCH_INDEX = -(1 << 62)
"""Number of the registry epoch that lists all other epochs, so that operators find messages far ahead. No
epoch of a time gets this number."""

EPOCHS_AT_ONCE = 32
"""Epochs that a refresh reads side by side: a day of hours in one round, and no flood of requests."""


# ── where a message lands, and where that is registered ──


def normal_row(spec: QueueSpec, due_us: int, shard: int) -> WideRow:
    """Return the normal wide row of a message that is due at `due_us`."""
    return WideRow(spec.partition, _floor(due_us // 1000, spec.width_ms), shard)


def open_row(spec: QueueSpec, time_us: int, source: bytes) -> WideRow:
    """Return the open wide row of a derived id: the same for every repeat, and never a normal one."""
    digest = int.from_bytes(blake2b(source, digest_size=8).digest(), "big")
    width = spec.width_ms * OPEN_WIDTHS
    return WideRow(spec.partition, _floor(time_us // 1000, width), -1 - digest % spec.open_shards)


def open_in_time(spec: QueueSpec, id_: int, now_us: int) -> bool:
    """Return whether an answer at `now_us` acknowledges a send to an open wide row: it is not retired yet."""
    return now_us <= ids.time_us(id_) + spec.gc_grace_us - spec.settle_us


def is_open(wide_row: WideRow) -> bool:
    """Return whether this is an open wide row."""
    return wide_row.shard < 0


def end_us(spec: QueueSpec, wide_row: WideRow) -> int:
    """Return the first µs after the wide row's time shard."""
    width = spec.width_ms * (OPEN_WIDTHS if is_open(wide_row) else 1)
    return (wide_row.time_shard + width) * 1000


def epoch_at(spec: QueueSpec, time_ms: int, *, open_: bool = False) -> int:
    """Return the epoch in which a time shard that starts at `time_ms` is registered."""
    return -1 - _floor(time_ms, DAY_MS) if open_ else _floor(time_ms, spec.epoch_ms)


def epoch_of(spec: QueueSpec, wide_row: WideRow) -> int:
    """Return the epoch in which a wide row is registered."""
    return epoch_at(spec, wide_row.time_shard, open_=is_open(wide_row))


def epoch_start_ms(epoch: int) -> int:
    """Return when an epoch starts, in ms since 1970."""
    return -1 - epoch if epoch < 0 else epoch


def next_epoch(spec: QueueSpec, epoch: int) -> int:
    """Return the next epoch, of normal or open wide rows like this one."""
    return epoch - DAY_MS if epoch < 0 else epoch + spec.epoch_ms


def closed_at_us(spec: QueueSpec, epoch: int) -> int:
    """Return the time after which no acknowledged send can register a wide row in `epoch`.

    That is W + ε after the end of the last time shard that can start in the epoch, and gc_grace later for
    open wide rows, because a send to one may be acknowledged for that long.
    """
    open_ = epoch < 0
    width = spec.width_ms * (OPEN_WIDTHS if open_ else 1)
    last_start = _floor(epoch_start_ms(next_epoch(spec, epoch)) - 1, width)
    grace = spec.gc_grace_us if open_ else 0
    return (last_start + width) * 1000 + spec.settle_us + spec.skew_us + grace


def registration(spec: QueueSpec, wide_row: WideRow, priority: int) -> tuple[RegisterShard, RegisterShard]:
    """Return the writes that register a wide row, and its epoch in the epoch index."""
    queue, time_shard, shard = wide_row
    epoch = epoch_of(spec, wide_row)
    kind = -1 if is_open(wide_row) else 0
    return (
        RegisterShard(queue, epoch, time_shard, shard, frozenset({priority})),
        RegisterShard(queue, EPOCH_INDEX, epoch_start_ms(epoch), kind, frozenset({0})),
    )


def listed_epoch(time_shard: int, shard: int) -> int:
    """Return the epoch that a row of the epoch index stands for."""
    return -1 - time_shard if shard < 0 else time_shard


def read_epoch(spec: QueueSpec, epoch: int, from_ms: int = 0) -> ReadShards:
    """Return the read of an epoch's wide rows from time shard `from_ms` on, without misplaced ones."""
    open_ = epoch < 0
    length_ms, width_ms = (DAY_MS, spec.width_ms * OPEN_WIDTHS) if open_ else (spec.epoch_ms, spec.width_ms)
    return ReadShards(spec.partition, epoch, from_ms, (epoch_start_ms(epoch), length_ms, width_ms))


def _floor(value: int, width: int) -> int:
    return value // width * width


# ── a consumer's copy ──


@dataclass(slots=True)
class _Kind:
    """The epochs of normal, or of open, wide rows. All before `next_open` were read after they closed."""

    open: bool
    oldest: int
    next_open: int
    began_us: dict[int, int] = field(default_factory=dict)  # when the last read of an unclosed epoch began


class Registry:
    """The wide rows of one queue that one consumer knows of."""

    def __init__(self, oldest_epoch: int, oldest_open_epoch: int, *, read_open: bool) -> None:
        self.rows: dict[WideRow, RowMemory] = {}
        self._sizes = MessageSizes()
        self._kinds = [_Kind(open=False, oldest=oldest_epoch, next_open=oldest_epoch)]
        if read_open:
            open_ = _Kind(open=True, oldest=oldest_open_epoch, next_open=oldest_open_epoch)
            self._kinds.append(open_)

    def due(self, now_us: int) -> list[RowMemory]:
        """Return the wide rows that may have work now, without those whose time shard has not begun."""
        begun = [memory for memory in self.rows.values() if now_us >= memory.wide_row.time_shard * 1000]
        return [memory for memory in begun if now_us >= memory.rest_until_us]

    def add(self, spec: QueueSpec, wide_row: WideRow, priorities: frozenset[int]) -> RowMemory:
        """Add a wide row, or new priorities of a known one; new priorities end its rest."""
        memory = self.rows.get(wide_row)
        if memory is None:
            memory = self.rows[wide_row] = remember_row(spec, wide_row, priorities, self._sizes)
        elif not priorities <= memory.priorities:
            memory.priorities |= priorities
            memory.rest_until_us = memory.emptied_us = 0
        return memory

    def knows(self, wide_row: WideRow, priorities: frozenset[int]) -> bool:
        """Return whether the wide row is known, with all these priorities."""
        memory = self.rows.get(wide_row)
        return memory is not None and priorities <= memory.priorities

    def forget_retired(self) -> None:
        """Forget the wide rows that are retired."""
        for wide_row in [row for row, memory in self.rows.items() if memory.retired]:
            del self.rows[wide_row]


def remember_row(
    spec: QueueSpec, wide_row: WideRow, priorities: frozenset[int], sizes: MessageSizes | None = None
) -> RowMemory:
    """Begin to remember a wide row."""
    end = end_us(spec, wide_row)
    reads = ReadMemory(TombstoneBudget(wide_row.time_shard * 1000, end), sizes or MessageSizes())
    return RowMemory(wide_row, end, set(priorities), reads)


# ── reading it ──


def refresh(registry: Registry, spec: QueueSpec) -> Proto[None]:
    """Read the epochs that may have changed since the last refresh.

    Raises:
        NotDone: a read failed; what is known stays.
    """
    registry.forget_retired()
    now_us = yield from Now()
    for kind in registry._kinds:  # noqa: SLF001 - one object, seen from its own module
        yield from _refresh_kind(registry, kind, spec, now_us)
        yield from _advance(registry, kind, spec)


def _refresh_kind(registry: Registry, kind: _Kind, spec: QueueSpec, now_us: int) -> Proto[None]:
    """Read all epochs from the first that is not known for good to the present one."""
    present = epoch_at(spec, now_us // 1000, open_=kind.open)
    epoch = kind.next_open
    wanted: list[int] = []
    while epoch_start_ms(epoch) <= epoch_start_ms(present):
        wanted.append(epoch)
        epoch = next_epoch(spec, epoch)
    for index in range(0, len(wanted), EPOCHS_AT_ONCE):
        began_us = now_us if index == 0 else (yield from Now())
        yield from _read_epochs(registry, kind, spec, wanted[index : index + EPOCHS_AT_ONCE], began_us)


def _read_epochs(
    registry: Registry, kind: _Kind, spec: QueueSpec, epochs: list[int], began_us: int
) -> Proto[None]:
    reads: list[Operation[Any]] = [read_epoch(spec, epoch, _read_from(kind, spec, epoch)) for epoch in epochs]
    answers: list[list[ShardRow]] = yield from together(*reads)
    for epoch, rows in zip(epochs, answers, strict=True):
        for row in rows:
            registry.add(spec, WideRow(spec.partition, row.time_shard, row.shard), row.priorities)
        if is_closed(spec, epoch, began_us) and epoch == kind.next_open:
            kind.next_open = next_epoch(spec, epoch)
            kind.began_us.pop(epoch, None)
        else:
            kind.began_us[epoch] = began_us


def is_closed(spec: QueueSpec, epoch: int, began_us: int) -> bool:
    """Return whether a read that began at `began_us` saw all that can ever be acknowledged in the epoch."""
    return began_us >= closed_at_us(spec, epoch)


def _read_from(kind: _Kind, spec: QueueSpec, epoch: int) -> int:
    """Return the first time shard (ms) in which a send acknowledged since the last read can have landed.

    A send is acknowledged at most W after its time, or gc_grace on open wide rows. So its time is later than
    the beginning of the last read less that bound and ε.
    """
    last_us = kind.began_us.get(epoch)
    if last_us is None or kind.open:
        return 0
    return (last_us - spec.settle_us - spec.skew_us) // 1000 // spec.width_ms * spec.width_ms


def _advance(registry: Registry, kind: _Kind, spec: QueueSpec) -> Proto[None]:
    """Move the queue's oldest epoch over closed epochs that a read shows to be empty.

    It does not move while another data centre may bring back registrations that it acknowledged.
    """
    epoch = kind.oldest
    if not policy.epochs_may_go(spec):
        return
    if epoch_start_ms(epoch) >= epoch_start_ms(kind.next_open):
        return
    while epoch != kind.next_open and not _known(registry, spec, epoch):
        rows = yield from read_epoch(spec, epoch)  # this read began after the epoch closed
        for row in rows:
            registry.add(spec, WideRow(spec.partition, row.time_shard, row.shard), row.priorities)
        if rows:
            break
        epoch = next_epoch(spec, epoch)
    if epoch != kind.oldest:
        yield from _move_oldest(kind, spec, epoch)


def _known(registry: Registry, spec: QueueSpec, epoch: int) -> bool:
    return any(epoch_of(spec, row) == epoch for row in registry.rows)


def _move_oldest(kind: _Kind, spec: QueueSpec, to: int) -> Proto[None]:
    old = kind.oldest
    if (yield from AdvanceEpoch(spec.name, spec.incarnation, expect=old, to=to, open=kind.open)):
        kind.oldest = to
    else:  # another consumer was quicker, or the answer to an earlier try was lost
        yield from _learn_oldest(kind, spec)
    while epoch_start_ms(old) < epoch_start_ms(kind.oldest):
        start_ms = epoch_start_ms(old)
        yield from UnregisterShard(spec.partition, EPOCH_INDEX, start_ms, -1 if kind.open else 0)
        old = next_epoch(spec, old)


def _learn_oldest(kind: _Kind, spec: QueueSpec) -> Proto[None]:
    row = yield from ReadQueue(spec.name)
    if row is not None and row.incarnation == spec.incarnation:
        kind.oldest = row.oldest_open_epoch if kind.open else row.oldest_epoch
