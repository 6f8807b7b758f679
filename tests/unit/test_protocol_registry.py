"""Test what readers know of wide rows, and how wide rows and epochs end."""

from dataclasses import replace

import pytest

from cqueue import ids
from cqueue.errors import NotDone
from cqueue.protocol import ack, registry
from cqueue.protocol.budget import SHORTEST_PIECE_US
from cqueue.protocol.lease import SuspectGate
from cqueue.protocol.probe import probe
from cqueue.protocol.registry import EPOCHS_AT_ONCE, Registry, refresh
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    CreateQueue,
    DeleteMessages,
    LockState,
    Mutate,
    QueueRow,
    ReadIds,
    ReadMessages,
    ReadShards,
    RegisterShard,
    UnregisterShard,
    WideRow,
)
from tests.faulty_store import FaultyStore
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table, ids_of

HOUR_US = 3600 * SECOND_US


def table_with_queue(*, hours: int = 2, open_epoch: int = -1, **changes) -> Table:
    """Return a table with a queue whose oldest epoch began that many hours ago."""
    table = Table(**changes)
    oldest = NOON_US // 1000 - hours * 3_600_000
    table.store.execute(CreateQueue(QueueRow("q", "1", 1, "active", "{}", 3_600_000, oldest, open_epoch)))
    return table


def register(table: Table, due_us: int, priority: int = 0) -> WideRow:
    row = registry.normal_row(table.spec, due_us, 0)
    for operation in registry.registration(table.spec, row, priority):
        table.store.execute(operation)
    return row


def reader(table: Table) -> Registry:
    return Registry(table.store._queues["q"].oldest_epoch, -1, read_open=False)


def reads(table: Table) -> list[ReadShards]:
    return [operation for operation in table.log if type(operation) is ReadShards]


def test_reader_learns_rows_and_priorities():
    """A wide row, and later a priority that is new in it, are known after the next refresh."""
    table, registry = table_with_queue(), None
    row = register(table, NOON_US)
    registry = reader(table)
    table.run(refresh(registry, table.spec))
    registry.rows[row].rest_until_us = NOON_US + HOUR_US
    register(table, NOON_US, 7)
    table.run(refresh(registry, table.spec))
    assert registry.rows[row].priorities == {0, 7}
    assert registry.due(NOON_US) == [registry.rows[row]]


@pytest.mark.parametrize("known", [{0}, {0, 7}])
def test_what_is_read_of_a_wide_row_again_does_not_end_its_rest(known):
    """Only a priority that was not known makes it worth another look."""
    table = table_with_queue()
    row, registry = register(table, NOON_US), reader(table)
    registry.add(table.spec, row, frozenset(known)).rest_until_us = NOON_US + HOUR_US
    table.run(refresh(registry, table.spec))
    assert registry.due(NOON_US) == []


def test_rows_of_the_future_are_not_looked_at():
    """A time shard that has not begun is known, but not probed."""
    table = table_with_queue()
    row = register(table, NOON_US + 600 * SECOND_US)
    registry = reader(table)
    table.run(refresh(registry, table.spec))
    assert row in registry.rows
    assert registry.due(table.time_us) == []
    assert len(registry.due(table.time_us + 600 * SECOND_US)) == 1


def test_idle_refresh_is_one_small_read():
    """Closed epochs are read once; then a refresh reads the present epoch, from its newest part on."""
    table = table_with_queue()
    table.pass_time(1800 * SECOND_US)
    registry = reader(table)
    table.run(refresh(registry, table.spec))
    table.run(refresh(registry, table.spec))
    table.log.clear()
    table.run(refresh(registry, table.spec))
    (read,) = reads(table)
    assert read.from_time_shard * 1000 >= table.time_us - SETTLE_US - SKEW_US - 60 * SECOND_US


def test_a_refresh_reads_from_where_a_send_may_just_have_been_acknowledged():
    """W + ε before the last refresh began is the last moment of the time shard that it begins with."""
    table = table_with_queue()
    before_us = NOON_US + 600 * SECOND_US - 1
    table.time_us = before_us + SETTLE_US + SKEW_US
    registry = reader(table)
    for _ in range(2):
        table.run(refresh(registry, table.spec))
    row = register(table, before_us)
    table.run(refresh(registry, table.spec))
    assert row in registry.rows


def test_failed_refresh_keeps_what_is_known():
    """When a read fails nothing is forgotten, and the epoch does not count as read."""
    table = table_with_queue()
    row = register(table, NOON_US)
    registry = reader(table)
    table.run(refresh(registry, table.spec))

    def fail(operation: object) -> None:
        if type(operation) is ReadShards:
            raise NotDone("no")

    table.pass_time(2 * HOUR_US)
    with pytest.raises(NotDone):
        table.run(refresh(registry, table.spec), fail)
    late = register(table, NOON_US + HOUR_US)
    table.run(refresh(registry, table.spec))
    assert {row, late} <= set(registry.rows)


def test_oldest_epoch_moves_over_empty_epochs_only():
    """Empty closed epochs are left behind for all readers; one with a wide row in it stops the move."""
    table = table_with_queue()
    row = register(table, NOON_US)
    table.pass_time(3 * HOUR_US + SETTLE_US + SKEW_US)
    table.run(refresh(reader(table), table.spec))
    assert table.store._queues["q"].oldest_epoch == NOON_US // 1000
    epoch = registry.epoch_of(table.spec, row)
    table.store.execute(UnregisterShard("q@1", epoch, row.time_shard, 0))
    table.run(refresh(reader(table), table.spec))
    assert table.store._queues["q"].oldest_epoch == NOON_US // 1000 + 3 * 3_600_000
    assert table.store.execute(ReadShards("q@1", registry.EPOCH_INDEX, 0)) == []


def test_oldest_epoch_stays_at_a_wide_row_that_came_back():
    """Another data centre brings it back after the epoch was read for good."""
    table = table_with_queue()
    table.spec = replace(table.spec, retiring=False)
    table.pass_time(3 * HOUR_US + SETTLE_US + SKEW_US)
    registry = reader(table)
    table.run(refresh(registry, table.spec))
    row = register(table, NOON_US)
    table.spec = replace(table.spec, retiring=True)
    table.run(refresh(registry, table.spec))
    assert row in registry.rows
    assert table.store._queues["q"].oldest_epoch == NOON_US // 1000


def test_an_epoch_of_open_wide_rows_leaves_the_index_with_them():
    """As one of normal wide rows does; operators look through what the index lists."""
    epoch = registry.epoch_at(Table().spec, NOON_US // 1000, open_=True)
    table = table_with_queue(open_epoch=epoch, derived_sends=True)
    row = registry.open_row(table.spec, NOON_US, b"source")
    for operation in registry.registration(table.spec, row, 0):
        table.store.execute(operation)
    table.store.execute(UnregisterShard("q@1", epoch, row.time_shard, row.shard))
    table.pass_time(3 * 24 * HOUR_US)
    table.run(refresh(Registry(NOON_US // 1000, epoch, read_open=True), table.spec))
    assert registry.epoch_start_ms(table.store._queues["q"].oldest_open_epoch) > row.time_shard
    assert table.store.execute(ReadShards("q@1", registry.EPOCH_INDEX, 0)) == []


def test_an_epoch_that_closes_during_a_long_refresh_is_not_read_again():
    """A part of the refresh counts from its own beginning, not from that of the first part."""
    table = table_with_queue(hours=EPOCHS_AT_ONCE + 1)
    registry = reader(table)
    table.pass_time(SETTLE_US)  # W + ε after its end the last epoch closes

    def be_slow(operation: object) -> None:
        if type(operation) is ReadShards and not table.log:
            table.pass_time(SECOND_US)

    table.run(refresh(registry, table.spec), be_slow)
    table.log.clear()
    table.run(refresh(registry, table.spec))
    assert {read.epoch for read in reads(table)} == {NOON_US // 1000}


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_reader_that_was_overtaken_moves_the_oldest_epoch_the_next_time(is_deleted):
    """It learns how far the other one came. Of a queue that is gone it learns nothing, and goes on."""
    table = table_with_queue()
    slow = reader(table)
    table.pass_time(3 * HOUR_US + SETTLE_US + SKEW_US)
    table.run(refresh(reader(table), table.spec))
    before = table.store._queues["q"].oldest_epoch
    if is_deleted:
        del table.store._queues["q"]
    table.run(refresh(slow, table.spec))
    table.pass_time(HOUR_US)
    table.run(refresh(slow, table.spec))
    if not is_deleted:
        assert table.store._queues["q"].oldest_epoch == before + 3_600_000


def test_empty_row_is_retired_with_its_registration():
    """A wide row that is over and empty is dropped, marked, and registered no more."""
    table = table_with_queue()
    row = register(table, NOON_US)
    table.put(NOON_US)
    table.pass_time(SECOND_US)
    view = table.view(row)
    taken = table.poll(view).taken
    view.finished = table.run(ack.ack(taken))
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    for _ in range(3):
        table.poll(view)
    assert view.retired
    assert table.head().lock.state is LockState.RETIRED
    assert table.store.execute(ReadShards("q@1", registry.epoch_of(table.spec, row), 0)) == []


def test_row_with_a_held_message_is_not_retired():
    """As long as a slot is in use the wide row stays."""
    table = table_with_queue()
    table.put(NOON_US)
    table.pass_time(1000)
    (taken,) = table.claim().taken
    table.run(ack.extend(taken.lease, 600_000))
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    for _ in range(3):
        table.poll(table.view())
    assert table.head().lock.state is not LockState.RETIRED
    assert table.store.execute(ReadMessages(table.row, 0, (taken.row.id,)))


@pytest.mark.parametrize("shard", [0, -1])
def test_row_that_may_not_be_retired_is_no_work(shard):
    """After a switch of the home an empty wide row is kept, open or not, and not locked in vain."""
    table = Table(retiring=False, gc_grace_us=60 * SECOND_US)
    row = WideRow(table.row.queue, table.row.time_shard, shard)
    view = table.view(row)
    table.pass_time(table.end_us - NOON_US + HOUR_US)
    table.poll(view)
    table.log.clear()
    for _ in range(3):
        table.pass_time(120 * SECOND_US)
        assert not table.poll(view).taken
    assert not view.retired
    mutations = [operation for operation in table.log if type(operation) is Mutate]
    assert shard < 0 or not mutations  # whole passes of open wide rows go on


def test_oldest_epoch_stands_still_after_a_switch():
    """Empty closed epochs stay, until retiring resumes."""
    table = table_with_queue()
    before = table.store._queues["q"].oldest_epoch
    table.spec = replace(table.spec, retiring=False)
    table.pass_time(3 * HOUR_US + SETTLE_US + SKEW_US)
    table.run(refresh(reader(table), table.spec))
    assert table.store._queues["q"].oldest_epoch == before
    table.spec = replace(table.spec, retiring=True)
    table.run(refresh(reader(table), table.spec))
    assert table.store._queues["q"].oldest_epoch > before


def test_message_of_an_unknown_priority_is_found_before_retirement():
    """A message whose priority nobody registered (so never acknowledged) is delivered, not dropped."""
    table = table_with_queue()
    strays = table.put(NOON_US, priority=9)
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    view = table.view()
    assert ids_of(table.poll(view)) == strays
    assert table.run(probe([view], table.spec, SuspectGate())) == [], "while it is held nothing is to be done"


def test_strays_that_a_full_claim_leaves_are_taken_by_the_next_one():
    """Here those of another priority, which nobody registered either."""
    table = Table()
    strays = [*table.put(NOON_US, priority=8), *table.put(NOON_US, priority=9)]
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)
    view = table.view()
    assert [ids_of(table.claim(view, want=1)) for _ in strays] == [[stray] for stray in strays]


def test_a_wide_row_whose_last_messages_are_acked_is_retired_by_one_claim():
    """Their holder has died without freeing their slot."""
    table = Table()
    table.put(NOON_US)
    table.pass_time(1000)
    table.run(ack.ack(table.claim().taken))
    table.pass_time(SETTLE_US + SKEW_US)
    table.claim()
    table.pass_time(table.end_us - NOON_US)
    view = table.view()
    table.claim(view)
    assert view.retired


def test_a_wide_row_is_retired_as_soon_as_nothing_can_land_there():
    """Also by a consumer that has just looked there, and knows the head."""
    table = Table()
    view, over_us = table.view(), table.end_us + SETTLE_US + SKEW_US
    for table.time_us, is_retired in ((over_us - 1, False), (over_us, True)):
        table.poll(view)
        table.claim(view)
        assert view.retired is is_retired


def test_no_pass_is_made_over_a_wide_row_with_messages_that_wait():
    """A claim that finds only acked ones among the first of them leaves the others to the next claim."""
    table = Table()
    some = table.put(NOON_US, NOON_US + 1, NOON_US + 2)
    table.pass_time(1000)
    lease = table.claim().taken[0].lease
    table.run(ack.nack(lease, some, 20 * 1000, ack.Shared()))
    table.pass_time(SETTLE_US + SKEW_US)
    table.claim()
    table.store.execute(DeleteMessages(table.row, 0, (some[0],)))
    table.pass_time(table.end_us - NOON_US)
    view = table.view()
    table.log.clear()
    assert ids_of(table.claim(view, want=1)) == []
    assert not [one for one in table.log if type(one) is ReadIds]
    assert ids_of(table.claim(view, want=1)) == [some[1]]


def test_retirement_is_finished_by_whoever_sees_the_marker():
    """A retirement that was cut off after the drop: the next prober removes the registration."""
    table = table_with_queue()
    row = register(table, NOON_US)
    table.pass_time(table.end_us - NOON_US + SETTLE_US + SKEW_US)

    def cut_off(operation: object) -> None:
        if type(operation) is UnregisterShard:
            raise NotDone("no")

    with pytest.raises(NotDone):
        table.claim(table.view(row), hook=cut_off)
    epoch = registry.epoch_of(table.spec, row)
    assert table.store.execute(ReadShards("q@1", epoch, 0))
    table.poll(table.view(row))
    assert table.store.execute(ReadShards("q@1", epoch, 0)) == []


def test_stale_producer_cannot_bring_back_a_retired_row():
    """Registering a retired wide row again has no effect, whatever the producer's clock says."""
    table = table_with_queue()
    row = register(table, NOON_US)
    epoch = registry.epoch_of(table.spec, row)
    table.store.execute(UnregisterShard("q@1", epoch, row.time_shard, 0))
    table.pass_time(HOUR_US)
    table.store.execute(RegisterShard("q@1", epoch, row.time_shard, 0, frozenset({3})))
    assert table.store.execute(ReadShards("q@1", epoch, 0)) == []


class _HalfAPack(FaultyStore):
    """A store whose reads of ids show a pack that has no bodies, until it is deleted."""

    def __init__(self, now, pack):
        super().__init__(MemoryStore(now), around=self._show)
        self.pack = pack

    def _show(self, operation, do):
        if type(operation) is DeleteMessages and set(operation.ids) == set(self.pack):
            self.pack = ()
        found = do()
        if type(operation) is ReadIds and operation.priority == 0:
            more = [id_ for id_ in self.pack if operation.after < id_ <= operation.upto]
            return found._replace(ids=sorted([*found.ids, *more])[: operation.limit])
        return found


def test_what_only_seems_to_be_live_keeps_no_row_for_ever():
    """A pack without a whole copy, whose send was never acknowledged, is deleted."""
    table = Table()
    table.store = _HalfAPack(lambda: table.time_us, ids.packed(NOON_US * 10, 5, 3))
    register(table, NOON_US)
    table.time_us = table.end_us + SETTLE_US + SKEW_US + 1
    view = table.view()
    for _ in range(10):
        assert not table.poll(view).taken
        table.pass_time(SECOND_US)
    assert table.store.pack == ()
    assert view.retired


def test_the_pass_begins_as_carefully_as_where_messages_lay_densest():
    """However fast polls have become since: a read must not cross many more than a thousand tombstones."""
    table = Table(name="q.dead", width_ms=600_000)
    view = table.view(WideRow("q.dead@1", NOON_US // 1000, -1))
    table.time_us = view.retire_at_us(table.spec)
    view.reads.floors.pass_at_us = table.time_us + HOUR_US
    view.reads.floors.by_priority[0] = ids.highest_at(table.time_us)
    budget = view.reads.budget
    budget.note_density(500, 500, 1000)
    for _ in range(100):
        budget.note_tombstones(0)
    assert budget.piece_us > 100 * SHORTEST_PIECE_US
    table.claim(view)
    first = next(one for one in table.log if type(one) is ReadIds and one.priority == 0)
    assert ids.time_us(first.upto) <= NOON_US + SHORTEST_PIECE_US
