"""Keep a consumer's copy of the registry up to date with few small reads.

A consumer keeps an epoch for good only from a read that began after the epoch was closed: no acknowledged
send can add to it any more. Until then each refresh reads the epoch again, from the first time shard in which
a send acknowledged since the last read can have landed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cqueue.protocol import policy, shards
from cqueue.protocol.row_memory import MessageSizes, RowMemory, remember_row
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.store.operations import (
    AdvanceEpoch,
    Now,
    Operation,
    ReadQueue,
    ShardRow,
    UnregisterShard,
    WideRow,
    together,
)

EPOCHS_AT_ONCE = 32
"""Epochs that a refresh reads side by side: a day of hours in one round, and no flood of requests."""


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
    present = shards.epoch_at(spec, now_us // 1000, open_=kind.open)
    epoch = kind.next_open
    wanted: list[int] = []
    while shards.epoch_start_ms(epoch) <= shards.epoch_start_ms(present):
        wanted.append(epoch)
        epoch = shards.next_epoch(spec, epoch)
    for index in range(0, len(wanted), EPOCHS_AT_ONCE):
        began_us = now_us if index == 0 else (yield from Now())
        yield from _read_epochs(registry, kind, spec, wanted[index : index + EPOCHS_AT_ONCE], began_us)


def _read_epochs(
    registry: Registry, kind: _Kind, spec: QueueSpec, epochs: list[int], began_us: int
) -> Proto[None]:
    reads: list[Operation[Any]] = [
        shards.read_epoch(spec, epoch, _read_from(kind, spec, epoch)) for epoch in epochs
    ]
    answers: list[list[ShardRow]] = yield from together(*reads)
    for epoch, rows in zip(epochs, answers, strict=True):
        for row in rows:
            registry.add(spec, WideRow(spec.partition, row.time_shard, row.shard), row.priorities)
        if is_closed(spec, epoch, began_us) and epoch == kind.next_open:
            kind.next_open = shards.next_epoch(spec, epoch)
            kind.began_us.pop(epoch, None)
        else:
            kind.began_us[epoch] = began_us


def is_closed(spec: QueueSpec, epoch: int, began_us: int) -> bool:
    """Return whether a read that began at `began_us` saw all that can ever be acknowledged in the epoch."""
    return began_us >= shards.closed_at_us(spec, epoch)


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
    if shards.epoch_start_ms(epoch) >= shards.epoch_start_ms(kind.next_open):
        return
    while epoch != kind.next_open and not _known(registry, spec, epoch):
        rows = yield from shards.read_epoch(spec, epoch)  # this read began after the epoch closed
        for row in rows:
            registry.add(spec, WideRow(spec.partition, row.time_shard, row.shard), row.priorities)
        if rows:
            break
        epoch = shards.next_epoch(spec, epoch)
    if epoch != kind.oldest:
        yield from _move_oldest(kind, spec, epoch)


def _known(registry: Registry, spec: QueueSpec, epoch: int) -> bool:
    return any(shards.epoch_of(spec, row) == epoch for row in registry.rows)


def _move_oldest(kind: _Kind, spec: QueueSpec, to: int) -> Proto[None]:
    old = kind.oldest
    if (yield from AdvanceEpoch(spec.name, spec.incarnation, expect=old, to=to, open=kind.open)):
        kind.oldest = to
    else:  # another consumer was quicker, or the answer to an earlier try was lost
        yield from _learn_oldest(kind, spec)
    while shards.epoch_start_ms(old) < shards.epoch_start_ms(kind.oldest):
        start_ms = shards.epoch_start_ms(old)
        yield from UnregisterShard(spec.partition, shards.EPOCH_INDEX, start_ms, -1 if kind.open else 0)
        old = shards.next_epoch(spec, old)


def _learn_oldest(kind: _Kind, spec: QueueSpec) -> Proto[None]:
    row = yield from ReadQueue(spec.name)
    if row is not None and row.incarnation == spec.incarnation:
        kind.oldest = row.oldest_open_epoch if kind.open else row.oldest_epoch
