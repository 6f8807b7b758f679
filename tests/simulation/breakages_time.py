"""Rules about time taken out: cursors, retirement, epochs, late sends and burials. See `breakages`."""

# ruff: noqa: ARG005 - a replacement takes the arguments of what it replaces
from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from cqueue import config, ids
from cqueue.errors import NotDone
from cqueue.protocol import (
    claim,
    dead,
    fresh,
    registry,
    retire,
    ripe,
    send,
    shards,
    view,
)
from cqueue.protocol.draft import Draft
from cqueue.protocol.poll import Poll
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    DeleteMessages,
    DropBodies,
    Now,
    Pause,
    RandomBits,
)
from tests.simulation.cluster import Cluster

LAGS_US = 250_000


def ahead_as_if_read_now() -> Any:
    """The cursor moves as if what was read ahead had been read for this claim."""
    right = fresh._read

    def read(draft: Any, *args: Any) -> Any:
        known = yield from right(draft, *args)
        return known._replace(slice=known.slice._replace(began_us=draft.now_us))

    return patch.object(fresh, "_read", read)


def cursor_without_settle() -> Any:
    """The cursor moves W too early."""
    return _horizon(lambda spec: spec.skew_us)


def cursor_without_skew() -> Any:
    """The cursor moves ε too early."""
    return _horizon(lambda spec: spec.settle_us)


def _horizon(slack: Callable[[Any], int]) -> Any:
    return patch.object(fresh, "horizon", lambda spec, began_us: ids.lowest_at(began_us - slack(spec)))


def cursor_at_boundary() -> Any:
    """The cursor goes to the boundary with each claim."""
    right = Draft.move
    return patch.object(Draft, "move", lambda self, p, cursor, boundary: right(self, p, boundary, boundary))


@contextlib.contextmanager
def ack_by_wall_clock() -> Any:
    """A delete carries the time of day of a client whose clock lags."""

    def delete(self: MemoryStore, op: DeleteMessages) -> None:
        at_us = self._clock_us() - LAGS_US
        for id_ in op.ids:
            self._partition(op.wide_row).of(op.priority).delete(id_, at_us)

    def delete_in_cluster(self: Cluster, op: DeleteMessages, mask: int) -> None:
        self.delete_at(op, self.world.now_us - LAGS_US, mask)

    with (
        patch.object(MemoryStore, "_delete_messages", delete),
        patch.object(Cluster, "_delete_messages", delete_in_cluster),
    ):
        yield


def retired_at_end() -> Any:
    """Retirement waits neither for W nor for ε."""
    return patch.object(view.RowView, "retire_at_us", lambda self, spec: self.end_us)


def retired_without_settle() -> Any:
    """Retirement waits for ε only."""
    return patch.object(view.RowView, "retire_at_us", lambda self, spec: self.end_us + spec.skew_us)


def open_retired_without_grace() -> Any:
    """Open wide rows are retired like any other."""
    return patch.object(
        view.RowView, "retire_at_us", lambda self, spec: self.end_us + spec.settle_us + spec.skew_us
    )


def retirement_clock_after_read() -> Any:
    """The time is looked at after the pass, when its answers have been worked through, not before."""
    right = retire.try_retire

    def try_retire(d: Draft) -> Any:
        now_us, d.now_us = d.now_us, d.view.retire_at_us(d.spec)
        yield from right(d)
        if d.retire:
            pause = (yield from RandomBits(16)) / (1 << 16)
            yield from Pause(pause * 2 * d.spec.settle_us / 1e6)
            d.now_us = yield from Now()
            d.retire = d.now_us >= d.view.retire_at_us(d.spec)
        else:
            d.now_us = now_us

    return patch.object(claim, "try_retire", try_retire)


def epoch_cached_early() -> Any:
    """An epoch counts as closed, for good, as soon as its hour is over."""
    right = shards.closed_at_us
    return patch.object(
        shards, "closed_at_us",
        lambda spec, epoch: shards.epoch_start_ms(shards.next_epoch(spec, epoch)) * 1000
        if epoch >= 0 else right(spec, epoch),
    )  # fmt: skip


def open_epoch_without_grace() -> Any:
    """An epoch of open wide rows counts as closed without gc_grace."""
    right = shards.closed_at_us
    return patch.object(
        shards, "closed_at_us",
        lambda spec, epoch: right(spec, epoch) - (spec.gc_grace_us + 10_000_000 if epoch < 0 else 0),
    )  # fmt: skip


def died_at_not_kept() -> Any:
    """Every taker of a dying message writes its own time of death."""
    return patch.object(ripe, "kept_time_of_death", lambda slot, spec, now_ms: now_ms)


def dead_id_not_derived() -> Any:
    """A dead letter gets an id of its own at each try."""
    numbers = itertools.count()
    return patch.object(dead.ids, "derived", lambda us, _: ids.from_ticks(us * 10, next(numbers)))


def late_send_acknowledged() -> Any:
    """A send is acknowledged whenever its answer comes."""
    return patch.object(send, "in_time", lambda spec, id_, now_us: True)


def open_row_with_cursor() -> Any:
    """Open wide rows are read, and their cursors moved, as those of normal ones."""
    return patch.object(view.RowView, "open", False)


def dead_letters_in_normal_rows() -> Any:
    """Dead letters go to a normal wide row."""
    return patch.object(dead, "open_row", lambda spec, us, source: shards.normal_row(spec, us, 0))


def late_derived_deleted() -> Any:
    """A dead letter whose answer came late is deleted."""
    right = dead._insert

    def insert(spec: Any, target: Any, copy: Any, body: Any) -> Any:
        try:
            yield from right(spec, target, copy, body)
        except NotDone:
            yield from DeleteMessages(target, copy.priority, (copy.id,))
            raise

    return patch.object(dead, "_insert", insert)


def late_burial_confirmed() -> Any:
    """A burial counts whenever its answer comes."""
    return patch.object(dead, "in_time", lambda *_: True)


def tombstone_beyond_now() -> Any:
    """Bodies are dropped with a timestamp of tomorrow."""
    return patch.object(retire, "DropBodies", lambda row, at_us: DropBodies(row, at_us + 86_400_000_000))


def epochs_of_an_hour() -> Any:
    """An epoch is an hour, however many wide rows that makes."""
    return patch.object(config, "MAX_EPOCH_ROWS", 10**9)


def retired_after_a_switch() -> Any:
    """Wide rows are retired although another data centre may bring messages back."""
    right = view.RowView.retire_at_us
    return patch.object(
        view.RowView, "retire_at_us", lambda self, spec: right(self, replace(spec, retiring=True))
    )


def epoch_given_up_after_a_switch() -> Any:
    """oldest_epoch moves although another data centre may bring registrations back."""
    right = registry._advance
    return patch.object(
        registry, "_advance", lambda known, kind, spec: right(known, kind, replace(spec, retiring=True))
    )


def epochs_kept_when_retiring_resumes() -> Any:
    """What was read of the registry while messages were away counts for good."""
    right = Poll.is_of

    def is_of(self: Poll, row: Any, spec: Any) -> bool:
        return right(self, row, replace(spec, retiring=self._of[2]))

    return patch.object(Poll, "is_of", is_of)
