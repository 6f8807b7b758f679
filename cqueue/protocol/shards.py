"""Compute time shards, concurrency shards, registry epochs and open wide rows.

Time shards are absolute (`floor(due / width) * width`), never modulo: they roll forward and are dropped
whole. Open wide rows (shard below 0) take messages that may land late. They are ten times as wide, and their
epochs, one a day, have negative numbers.
"""

from __future__ import annotations

from hashlib import blake2b

from cqueue import ids
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import ReadShards, RegisterShard, WideRow

OPEN_WIDTHS = 10
"""Widths of a time shard that an open wide row spans: few messages land there, so fewer rows are enough."""
DAY_MS = 86_400_000
"""ms of an epoch of open wide rows."""

EPOCH_INDEX = -(1 << 62)
"""Number of the registry epoch that lists all other epochs, so that operators find messages far ahead. No
epoch of a time gets this number."""


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
