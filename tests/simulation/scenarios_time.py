"""Scenarios about time: when cursors move, sends count, and wide rows and epochs end."""

from __future__ import annotations

import pytest

from cqueue import ids
from cqueue.config import QueueConfig
from cqueue.errors import NotDone
from cqueue.protocol import dead
from cqueue.protocol import send as sends
from cqueue.protocol.lock import acquire, unlock
from cqueue.protocol.registry import Registry, epoch_of, normal_row, refresh
from cqueue.store.operations import (
    CreateQueue,
    DeleteMessages,
    DropBodies,
    HasMessages,
    InsertMessages,
    QueueRow,
    ReadIds,
    ReadMessages,
    RegisterShard,
    WideRow,
)
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of

# `ack.nack` and its like are looked up when called, so that a broken one is used.


def fence_survives_retirement() -> None:
    """A wide row that was dropped and is locked again has a higher fence than ever before."""
    table = Table()
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    view = table.view()
    for _ in range(3):
        table.run(unlock(view))
        table.run(acquire(view, table.spec))
    table.claim(view)
    assert view.retired
    before = table.head().lock.fence
    table.pass_time(2 * 3600 * SECOND_US)
    view = table.view()
    assert table.run(acquire(view, table.spec))
    assert view.remembered.fence > before


def epoch_stays_small() -> None:
    """A registry partition never holds more than 10,000 wide rows."""
    config = QueueConfig(time_shard=QueueConfig().time_shard / 30, max_shards=1000)
    assert config.epoch_ms() // config.time_shard_ms * config.max_shards <= 10_000


def _registered_late() -> tuple[Table, WideRow]:
    """A reader looks when an hour is just over; then a send of that hour is acknowledged, within W."""
    table = Table()
    row = QueueRow("q", "1", 1, "active", "{}", 3_600_000, NOON_US // 1000, 0)
    table.store.execute(CreateQueue(row))
    registry = Registry(NOON_US // 1000, 0, read_open=False)
    late = normal_row(table.spec, NOON_US + 3_599_999_000, 0)
    table.pass_time(3600 * SECOND_US + SECOND_US)
    table.run(refresh(registry, table.spec))
    epoch = epoch_of(table.spec, late)
    table.store.execute(RegisterShard("q@1", epoch, late.time_shard, 0, frozenset({0})))
    table.pass_time(SECOND_US)
    table.run(refresh(registry, table.spec))
    assert late in registry.rows
    return table, late


def epoch_read_again_until_closed() -> None:
    """A reader learns of a wide row that was registered after its hour, but within W."""
    _registered_late()


def oldest_epoch_waits_until_closed() -> None:
    """A reader that starts later still begins with the epoch of a wide row registered within W."""
    table, late = _registered_late()
    oldest = table.store._queues["q"].oldest_epoch
    assert oldest <= epoch_of(table.spec, late)


def nothing_deleted_beyond_now() -> None:
    """Retirement deletes partitions at times that are past."""
    table = Table()
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    table.claim()
    drops = [operation for operation in table.log if type(operation) is DropBodies]
    assert drops
    assert all(drop.at_us <= table.time_us - SKEW_US for drop in drops)


def open_row_takes_what_lands_late() -> None:
    """A message that lands in an open wide row minutes after its time is delivered."""
    table = Table(name="q.dead", width_ms=600_000)
    row = WideRow("q.dead@1", NOON_US // 1000, -1)
    view = table.view(row)
    table.put(NOON_US + SECOND_US, row=row)
    table.pass_time(5 * SECOND_US)
    assert len(ids_of(table.poll(view))) == 1
    for _ in range(4):
        table.pass_time(5 * SECOND_US)
        table.poll(view)
    late = table.put(NOON_US, row=row)
    found = []
    for _ in range(70):
        table.pass_time(SECOND_US)
        found += [id_ for id_ in ids_of(table.poll(view)) if id_ in late]
    assert found[:1] == late


def _late_burial() -> tuple[Table, int]:
    """A dead letter is stored, but its answer comes only after gc_grace."""
    table = Table()
    graveyard = Table(name="q.dead", max_attempts=0).spec
    (doomed,) = table.put(NOON_US)
    table.pass_time(1000)
    (taken,) = table.claim().taken

    def delay(operation: object) -> None:
        if type(operation) is InsertMessages:
            table.pass_time(graveyard.gc_grace_us)

    with pytest.raises(NotDone):
        table.run(dead.bury(table.spec, graveyard, taken, {}), delay)
    return table, doomed


def late_burial_does_not_count() -> None:
    """A dead letter confirmed only after gc_grace may be dropped unseen, so its original stays."""
    try:
        table, doomed = _late_burial()
    except pytest.fail.Exception as exc:
        raise AssertionError("the burial was taken for done") from exc
    assert table.store.execute(ReadMessages(table.row, 0, (doomed,)))


def late_burial_is_not_deleted() -> None:
    """A derived id belongs to the client that finishes the burial: it is never deleted as late."""
    table, _ = _late_burial()
    assert not [operation for operation in table.log if type(operation) is DeleteMessages]


def _swept_at(now_us: int) -> Table:
    """A message at NOON that is not there yet; a claim goes past it, and another one sweeps at `now_us`."""
    table = Table(width_ms=3_600_000)
    view = table.view()
    table.put(NOON_US + 1000)
    table.pass_time(2000)
    table.claim(view)
    table.put(NOON_US + 100_000)
    table.pass_time(now_us - table.time_us)
    table.claim(view)
    table.late = table.put(NOON_US + 900)[0]
    return table


def cursor_waits_for_settle_and_skew() -> None:
    """Up to W + ε after a message's time no sweep moves the cursor past it: it may yet be acknowledged."""
    table = _swept_at(NOON_US + 800 + SETTLE_US + SKEW_US)
    assert table.cursor().cursor < table.late


def cursor_waits_for_settle() -> None:
    """As above, at a time at which only ε has passed."""
    table = _swept_at(NOON_US + SETTLE_US)
    assert table.cursor().cursor < table.late


def _retired_after(wait_us: int, row: WideRow | None = None) -> bool:
    table = Table()
    row = row or table.row
    view = table.view(row)
    table.pass_time(view.end_us - NOON_US + wait_us)
    table.claim(view)
    return table.head(row).lock.state == 2


def retirement_waits() -> None:
    """A wide row is retired W + ε after its end, and not before."""
    assert not _retired_after(SETTLE_US + SKEW_US - 1)
    assert _retired_after(SETTLE_US + SKEW_US)


def open_row_retirement_waits() -> None:
    """An open wide row is retired gc_grace later than a normal one."""
    open_row = WideRow("q@1", NOON_US // 1000, -1)
    assert not _retired_after(SETTLE_US + SKEW_US + 3600 * SECOND_US - 1, open_row)
    assert _retired_after(SETTLE_US + SKEW_US + 3600 * SECOND_US, open_row)


def retirement_pass_begins_late_enough() -> None:
    """A pass that began before end + W + ε does not count, however long it took."""
    table = Table()
    view = table.view()
    table.pass_time(table.end_us - NOON_US + SETTLE_US)

    def slow(operation: object) -> None:
        if type(operation) in {ReadIds, HasMessages}:
            table.pass_time(SECOND_US)

    table.claim(view, hook=slow)
    assert table.head().lock.state != 2


def late_send_is_made_again() -> None:
    """A send whose answer comes after W is stored again under a new id, and the late one deleted."""
    table = Table()
    delayed = []

    def delay(operation: object) -> None:
        if type(operation) is InsertMessages and not delayed:
            delayed.append(operation.rows[0].id)
            table.pass_time(SETTLE_US + 1)

    out = sends.Outgoing(b"m", 0, None, None, None)
    (flush,) = table.run(sends.send(table.spec, sends.ProducerState(), [out]), delay)
    assert flush.error is None
    assert flush.rows[0].id not in delayed
    assert ids.time_us(flush.rows[0].id) >= NOON_US + SETTLE_US
    assert not table.store.execute(ReadMessages(flush.wide_row, 0, tuple(delayed)))
