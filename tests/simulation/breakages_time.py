"""Rules about time taken out: cursors, retirement, epochs, late sends and burials. See `breakages`."""

# ruff: noqa: ARG005 - a replacement takes the arguments of what it replaces
from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from cqueue import ids
from cqueue.config import HOUR_MS
from cqueue.errors import NotDone
from cqueue.protocol import registry
from cqueue.protocol.claim_draft import Draft
from cqueue.store.operations import DeleteMessages, Now, Pause, RandomBits
from tests.simulation.cluster import Cluster
from tests.simulation.points import all_of, replaced, right
from tests.simulation.rows import Delete

LAGS_US = 250_000


def ahead_as_if_read_now() -> Any:
    """The cursor moves as if what was read ahead had been read for this claim."""
    return replaced("age of a read", lambda began_us, claimed_us: claimed_us)


def cursor_without_settle() -> Any:
    """The cursor moves W too early."""
    return _horizon(lambda spec: spec.skew_us)


def cursor_without_skew() -> Any:
    """The cursor moves ε too early."""
    return _horizon(lambda spec: spec.settle_us)


def _horizon(slack: Callable[[Any], int]) -> Any:
    return replaced("horizon", lambda spec, began_us: ids.lowest_at(began_us - slack(spec)))


def cursor_at_boundary() -> Any:
    """The cursor goes to the boundary with each claim."""
    return replaced("cursor", lambda swept, boundary: boundary)


def ack_by_wall_clock() -> Any:
    """A delete carries the time of day of a client whose clock lags."""

    def delete(self: Any, op: DeleteMessages) -> None:
        at_us = self._clock_us() - LAGS_US
        for id_ in op.ids:
            self._partition(op.wide_row).of(op.priority).delete(id_, at_us)

    def delete_in_cluster(self: Cluster, op: Delete, mask: int) -> None:
        self.delete_at(op, self.world.now_us - LAGS_US, mask)

    return replaced("delete", delete, delete_in_cluster)


def retired_at_end() -> Any:
    """Retirement waits neither for W nor for ε."""
    return replaced("nothing lands", lambda spec, end_us, *, open_: end_us)


def retired_without_settle() -> Any:
    """Retirement waits for ε only."""
    return replaced("nothing lands", lambda spec, end_us, *, open_: end_us + spec.skew_us)


def open_retired_without_grace() -> Any:
    """Open wide rows are retired like any other."""
    return replaced("nothing lands", lambda spec, end_us, *, open_: end_us + spec.settle_us + spec.skew_us)


def retirement_clock_after_read() -> Any:
    """The time is looked at after the pass, when its answers have been worked through, not before."""
    retire = right("retirement")

    def try_retire(d: Draft) -> Any:
        goes_on = yield from retire(d)
        if d.retire:
            pause = (yield from RandomBits(16)) / (1 << 16)
            yield from Pause(pause * 2 * d.spec.settle_us / 1e6)
            d.now_us = yield from Now()
            d.retire = d.now_us >= d.memory.retire_at_us(d.spec)
        return goes_on

    began = replaced("retirement begun", lambda began_us, from_us: True)
    return all_of(began, replaced("retirement", try_retire))


def epoch_cached_early() -> Any:
    """An epoch counts as closed, for good, as soon as its hour is over."""
    closed_at_us = right("epoch closed")

    def at_its_end(spec: Any, epoch: int) -> int:
        if epoch < 0:
            return closed_at_us(spec, epoch)
        return registry.epoch_start_ms(registry.next_epoch(spec, epoch)) * 1000

    return replaced("epoch closed", at_its_end)


def open_epoch_without_grace() -> Any:
    """An epoch of open wide rows counts as closed without gc_grace."""
    closed_at_us = right("epoch closed")
    return replaced(
        "epoch closed",
        lambda spec, epoch: closed_at_us(spec, epoch) - (spec.gc_grace_us + 10_000_000 if epoch < 0 else 0),
    )


def died_at_not_kept() -> Any:
    """Every taker of a dying message writes its own time of death."""
    return replaced("time of death", lambda slot, spec, now_ms: now_ms)


def dead_id_not_derived() -> Any:
    """A dead letter gets an id of its own at each try."""
    numbers = itertools.count()
    return replaced("letter id", lambda died_at_us, original: ids.from_ticks(died_at_us * 10, next(numbers)))


def late_send_acknowledged() -> Any:
    """A send is acknowledged whenever its answer comes."""
    return replaced("in time", lambda spec, id_, now_us: True)


def open_row_with_cursor() -> Any:
    """Open wide rows are read, and their cursors moved, as those of normal ones."""
    return replaced("no cursor", lambda wide_row: False)


def dead_letters_in_normal_rows() -> Any:
    """Dead letters go to a normal wide row."""
    open_row = right("open row")

    def row(spec: Any, time_us: int, source: bytes) -> Any:
        return (
            registry.normal_row(spec, time_us, 0) if spec.is_dead_letter else open_row(spec, time_us, source)
        )

    return replaced("open row", row)


def late_derived_deleted() -> Any:
    """A dead letter whose answer came late is deleted."""
    store = right("letter stored")

    def insert(spec: Any, target: Any, copy: Any, body: Any) -> Any:
        try:
            yield from store(spec, target, copy, body)
        except NotDone:
            yield from DeleteMessages(target, copy.priority, (copy.id,))
            raise

    return replaced("letter stored", insert)


def late_burial_confirmed() -> Any:
    """A burial counts whenever its answer comes."""
    return replaced("open in time", lambda *_: True)


def tombstone_beyond_now() -> Any:
    """Bodies are dropped with a timestamp of tomorrow."""
    return replaced("bodies dropped at", lambda end_us: end_us + 86_400_000_000)


def epochs_of_an_hour() -> Any:
    """An epoch is an hour, however many wide rows that makes."""
    return replaced("epoch length", lambda self: HOUR_MS)


def retired_after_a_switch() -> Any:
    """Wide rows are retired although another data centre may bring messages back."""
    return replaced("rows may go", lambda spec: True)


def epoch_given_up_after_a_switch() -> Any:
    """oldest_epoch moves although another data centre may bring registrations back."""
    return replaced("epochs may go", lambda spec: True)


def epochs_kept_when_retiring_resumes() -> Any:
    """What was read of the registry while messages were away counts for good."""
    return replaced("epochs stay known", lambda spec, *, was_retiring: True)
