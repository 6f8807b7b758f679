"""What a reader knows of the registry, and how it keeps that fresh with few small reads.

An epoch is kept in memory for good only from a read that began after the epoch was closed: then no
acknowledged send can add to it. Until then it is read again at every refresh, from the time shard on
in which a send acknowledged since the last read can have landed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cqueue.protocol import policy, shards
from cqueue.protocol.fresh import together
from cqueue.protocol.spec import Proto, QueueSpec
from cqueue.protocol.view import RowView, Sizes, view_of
from cqueue.store.operations import (
    AdvanceEpoch,
    Now,
    Operation,
    ReadQueue,
    ShardRow,
    UnregisterShard,
    WideRow,
)

EPOCHS_AT_ONCE = 32


@dataclass(slots=True)
class _Kind:
    """Normal or open epochs: from `oldest` on; those before `next_open` were read after they closed."""

    open: bool
    oldest: int
    next_open: int
    began_us: dict[int, int] = field(default_factory=dict)  # last read of epochs not yet closed


class Registry:
    """The wide rows of one queue, as far as one consumer knows."""

    def __init__(self, oldest_epoch: int, oldest_open_epoch: int, *, read_open: bool) -> None:
        self.views: dict[WideRow, RowView] = {}
        self._sizes = Sizes()
        self._kinds = [_Kind(open=False, oldest=oldest_epoch, next_open=oldest_epoch)]
        if read_open:
            open_ = _Kind(open=True, oldest=oldest_open_epoch, next_open=oldest_open_epoch)
            self._kinds.append(open_)

    def due(self, now_us: int) -> list[RowView]:
        """Views that may have work now; time shards that have not begun are left out."""
        begun = [view for view in self.views.values() if now_us >= view.wide_row.time_shard * 1000]
        return [view for view in begun if now_us >= view.rest_until_us]

    def add(self, spec: QueueSpec, wide_row: WideRow, priorities: frozenset[int]) -> RowView:
        """Know of a wide row; new priorities end its rest."""
        view = self.views.get(wide_row)
        if view is None:
            view = self.views[wide_row] = view_of(spec, wide_row, priorities, self._sizes)
        elif not priorities <= view.priorities:
            view.priorities |= priorities
            view.rest_until_us = view.seen_us = 0
        return view

    def knows(self, wide_row: WideRow, priorities: frozenset[int]) -> bool:
        """Whether it knows of a wide row, and of messages of these priorities there."""
        view = self.views.get(wide_row)
        return view is not None and priorities <= view.priorities

    def forget_retired(self) -> None:
        """Drop views of wide rows that are gone, unless leases of ours still refer to them."""
        for wide_row in [row for row, view in self.views.items() if view.retired]:
            del self.views[wide_row]


def refresh(registry: Registry, spec: QueueSpec) -> Proto[None]:
    """Read what may have changed since the last refresh.

    Raises:
        NotDone: a read failed; what is known stays as it was.
    """
    registry.forget_retired()
    now_us = yield from Now()
    for kind in registry._kinds:  # noqa: SLF001 - one object, seen from its own module
        yield from _refresh_kind(registry, kind, spec, now_us)
        yield from _advance(registry, kind, spec)


def _refresh_kind(registry: Registry, kind: _Kind, spec: QueueSpec, now_us: int) -> Proto[None]:
    """Read all epochs from the oldest that is not known for good up to the present one."""
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
    """Whether a read that began at `began_us` saw all that can ever be acknowledged in the epoch."""
    return began_us >= shards.closed_at_us(spec, epoch)


def _read_from(kind: _Kind, spec: QueueSpec, epoch: int) -> int:
    """The first time shard (ms) that a send acknowledged since the last read can have landed in.

    It is acknowledged at most W after its time (on open wide rows gc_grace), so its time is later
    than the last read's beginning less that, and less ε.
    """
    last_us = kind.began_us.get(epoch)
    if last_us is None or kind.open:
        return 0
    return (last_us - spec.settle_us - spec.skew_us) // 1000 // spec.width_ms * spec.width_ms


def _advance(registry: Registry, kind: _Kind, spec: QueueSpec) -> Proto[None]:
    """Move the queue's oldest epoch over those that are closed and empty, as a read of them shows.

    Not while a data centre may bring registrations back: what it acknowledged is not here yet.
    """
    epoch = kind.oldest
    if not policy.epochs_may_go(spec):
        return
    if shards.epoch_start_ms(epoch) >= shards.epoch_start_ms(kind.next_open):
        return
    while epoch != kind.next_open and not _known(registry, spec, epoch):
        rows = yield from shards.read_epoch(spec, epoch)  # began after it closed
        for row in rows:
            registry.add(spec, WideRow(spec.partition, row.time_shard, row.shard), row.priorities)
        if rows:
            break
        epoch = shards.next_epoch(spec, epoch)
    if epoch != kind.oldest:
        yield from _move_oldest(kind, spec, epoch)


def _known(registry: Registry, spec: QueueSpec, epoch: int) -> bool:
    return any(shards.epoch_of(spec, row) == epoch for row in registry.views)


def _move_oldest(kind: _Kind, spec: QueueSpec, to: int) -> Proto[None]:
    old = kind.oldest
    if (yield from AdvanceEpoch(spec.name, spec.incarnation, expect=old, to=to, open=kind.open)):
        kind.oldest = to
    else:  # another consumer was there first, or an earlier answer to us was lost
        yield from _learn_oldest(kind, spec)
    while shards.epoch_start_ms(old) < shards.epoch_start_ms(kind.oldest):
        start_ms = shards.epoch_start_ms(old)
        yield from UnregisterShard(spec.partition, shards.EPOCH_INDEX, start_ms, -1 if kind.open else 0)
        old = shards.next_epoch(spec, old)


def _learn_oldest(kind: _Kind, spec: QueueSpec) -> Proto[None]:
    row = yield from ReadQueue(spec.name)
    if row is not None and row.incarnation == spec.incarnation:
        kind.oldest = row.oldest_open_epoch if kind.open else row.oldest_epoch
