"""Arithmetic of time shards, concurrency shards, registry epochs and open wide rows.

Time shards are absolute (`floor(due / width) * width`), never modulo: they roll forward and are
dropped whole. Open wide rows (shard below 0) take what may land late; they are ten times as wide
and are registered in epochs of their own, one a day, under negative numbers.
"""

from __future__ import annotations

from hashlib import blake2b

from cqueue import ids
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import ReadShards, RegisterShard, WideRow

OPEN_WIDTHS = 10
DAY_MS = 86_400_000

EPOCH_INDEX = -(1 << 62)
"""The registry epoch that lists the epochs ever used, for those who must find messages far ahead."""


def normal_row(spec: QueueSpec, due_us: int, shard: int) -> WideRow:
    """The wide row of a message due at `due_us`."""
    return WideRow(spec.partition, _floor(due_us // 1000, spec.width_ms), shard)


def open_row(spec: QueueSpec, time_us: int, source: bytes) -> WideRow:
    """The open wide row of a derived id: the same for every repeat, and never a normal wide row's."""
    digest = int.from_bytes(blake2b(source, digest_size=8).digest(), "big")
    width = spec.width_ms * OPEN_WIDTHS
    return WideRow(spec.partition, _floor(time_us // 1000, width), -1 - digest % spec.open_shards)


def open_in_time(spec: QueueSpec, id_: int, now_us: int) -> bool:
    """Whether an answer at `now_us` acknowledges a send to an open wide row: it cannot be retired yet."""
    return now_us <= ids.time_us(id_) + spec.gc_grace_us - spec.settle_us


def row_of(spec: QueueSpec, message_id: int, shard: int) -> WideRow:
    """The normal wide row in which a message id of that shard stands."""
    return normal_row(spec, ids.time_us(message_id), shard)


def is_open(wide_row: WideRow) -> bool:
    """Whether this is an open wide row."""
    return wide_row.shard < 0


def end_us(spec: QueueSpec, wide_row: WideRow) -> int:
    """The first µs after the wide row's time shard."""
    width = spec.width_ms * (OPEN_WIDTHS if is_open(wide_row) else 1)
    return (wide_row.time_shard + width) * 1000


def epoch_at(spec: QueueSpec, time_ms: int, *, open_: bool = False) -> int:
    """The epoch in which a time shard that starts at `time_ms` is registered."""
    return -1 - _floor(time_ms, DAY_MS) if open_ else _floor(time_ms, spec.epoch_ms)


def epoch_of(spec: QueueSpec, wide_row: WideRow) -> int:
    """The epoch in which a wide row is registered."""
    return epoch_at(spec, wide_row.time_shard, open_=is_open(wide_row))


def epoch_start_ms(epoch: int) -> int:
    """When an epoch starts."""
    return -1 - epoch if epoch < 0 else epoch


def next_epoch(spec: QueueSpec, epoch: int) -> int:
    """The epoch after this one, of the same kind."""
    return epoch - DAY_MS if epoch < 0 else epoch + spec.epoch_ms


def closed_at_us(spec: QueueSpec, epoch: int) -> int:
    """From when on no acknowledged send can register a wide row in `epoch` any more.

    That is W + ε after the end of the last time shard that can start in it; a send to an open wide
    row may be acknowledged for another gc_grace.
    """
    open_ = epoch < 0
    width = spec.width_ms * (OPEN_WIDTHS if open_ else 1)
    last_start = _floor(epoch_start_ms(next_epoch(spec, epoch)) - 1, width)
    grace = spec.gc_grace_us if open_ else 0
    return (last_start + width) * 1000 + spec.settle_us + spec.skew_us + grace


def registration(spec: QueueSpec, wide_row: WideRow, priority: int) -> tuple[RegisterShard, RegisterShard]:
    """The registry row of a wide row, and the one of its epoch."""
    queue, time_shard, shard = wide_row
    epoch = epoch_of(spec, wide_row)
    kind = -1 if is_open(wide_row) else 0
    return (
        RegisterShard(queue, epoch, time_shard, shard, frozenset({priority})),
        RegisterShard(queue, EPOCH_INDEX, epoch_start_ms(epoch), kind, frozenset({0})),
    )


def listed_epoch(time_shard: int, shard: int) -> int:
    """The epoch that a row of the epoch index stands for."""
    return -1 - time_shard if shard < 0 else time_shard


def read_epoch(spec: QueueSpec, epoch: int, from_ms: int = 0) -> ReadShards:
    """Read the wide rows of an epoch from the time shard `from_ms` on, without those that cannot be in it."""
    open_ = epoch < 0
    length_ms, width_ms = (DAY_MS, spec.width_ms * OPEN_WIDTHS) if open_ else (spec.epoch_ms, spec.width_ms)
    return ReadShards(spec.partition, epoch, from_ms, (epoch_start_ms(epoch), length_ms, width_ms))


def _floor(value: int, width: int) -> int:
    return value // width * width
