"""Test the estimate of what a queue holds: near enough, at a cost that does not grow with the queue."""

from __future__ import annotations

from datetime import timedelta

import pytest

import cqueue
from cqueue.errors import TooManyTombstones, Unavailable
from cqueue.protocol import ack, registry
from cqueue.protocol import estimate as module
from cqueue.protocol.inspection import count
from cqueue.store.operations import DeleteMessages, ReadHead, ReadIds, ReadShards, Together, WideRow
from tests.simulation.hand import NOON_US, SECOND_US, Table


@pytest.fixture
def queue():
    with cqueue.connect("memory://") as client:
        yield client.create_queue("q", cqueue.QueueConfig(time_shard=timedelta(seconds=10)))


def counted(queue, monkeypatch, **bounds):
    """Estimate a queue under other limits; return the counts, and how many reads of each kind were made."""
    for name, value in bounds.items():
        monkeypatch.setattr(module, name, value)
    driver, reads = queue._driver, dict.fromkeys((ReadHead, ReadIds, ReadShards), 0)

    def observed(protocol):
        answer = None
        while True:
            try:
                operation = protocol.send(answer)
            except StopIteration as end:
                return end.value
            for one in operation.operations if isinstance(operation, Together) else (operation,):
                if type(one) in reads:
                    reads[type(one)] += 1
            answer = yield operation

    spec = queue._catalog.entry(queue.name).spec
    return driver.run(observed(module.estimate(spec))), reads


def registered() -> Table:
    """Return a table whose wide row the registry lists."""
    table = Table()
    for registration in registry.registration(table.spec, table.row, 0):
        table.store.execute(registration)
    return table


def test_an_estimate_is_exact_where_nothing_lands_late_and_there_is_little(queue):
    queue.send_many([cqueue.Message(b"x", priority=n % 3) for n in range(30)])
    queue.send_many([cqueue.Message(b"x", delay=timedelta(hours=n)) for n in range(1, 5)])
    with queue.consumer() as consumer:
        held = consumer.receive(5, wait=timedelta(seconds=5))
        held[0].nack(timedelta(hours=1))
        rough, exact = queue.stats(), queue.stats(exact=True)
        assert (rough.ready, rough.delayed, rough.waiting, rough.live) == (25, 4, 1, 34)
        assert (exact.ready, exact.delayed, exact.waiting, exact.live) == (25, 4, 1, 34)
        assert rough.claimed == exact.claimed == 4
        assert rough.oldest == exact.oldest
        assert not rough.at_least


def oldest(table):
    """Since when the oldest message may be claimed: an estimate and an exact count say the same."""
    rough, exact = (table.run(kind(table.spec)).oldest_us for kind in (module.estimate, count))
    assert rough == exact
    return rough


def test_what_a_dead_consumer_held_has_an_age():
    """Nobody else says that a queue falls behind whose workers are all gone."""
    table = registered()
    table.put(NOON_US, NOON_US + 1)
    table.pass_time(SECOND_US)
    assert oldest(table) == NOON_US
    held = table.poll(table.view()).taken
    free_us = held[0].lease.due_ms * 1000 + table.spec.skew_us
    for time_us, since_us in ((free_us - 1, None), (free_us, free_us), (free_us + SECOND_US, free_us)):
        table.time_us = time_us
        assert oldest(table) == since_us


def test_what_was_given_back_has_an_age_until_it_is_acked():
    """Its slot may stand for longer than the message, with nobody at work who would free it."""
    table = registered()
    leases, memory = [], table.view()
    for number in range(2):
        table.put(NOON_US + number * SECOND_US)
        table.pass_time(SECOND_US)
        leases.append(table.poll(memory).taken[0].lease)
    given_back = []
    for lease in leases:
        table.run(ack.release(lease))
        given_back.append(table.time_us)
        table.pass_time(SECOND_US)
    for lease, since_us in zip(leases, given_back, strict=True):
        assert oldest(table) == since_us
        table.store.execute(DeleteMessages(table.row, 0, lease.slot.ids))
    assert oldest(table) is None


def test_what_waits_above_the_boundary_counts_once(queue):
    """As a message that is put off by its id, before any consumer has come to it."""
    put_off, _ = queue.send(b"x"), queue.send(b"y")
    queue.reschedule(put_off, timedelta(hours=1))
    stats = queue.stats()
    assert (stats.ready, stats.waiting, stats.live) == (1, 1, 2)


def test_counting_ends_at_its_bound_and_says_so(queue, monkeypatch):
    """A backlog of millions counts as at least ten thousand, without a wait for the rest."""
    queue.send_many([cqueue.Message(b"x") for _ in range(300)])
    counts, reads = counted(queue, monkeypatch, PAGE=10, MAX_IDS=100, AT_ONCE=2)
    assert 100 <= counts.ready <= 100 + 2 * 10
    assert counts.at_least == {"ready", "delayed", "live"}
    assert reads[ReadIds] <= 100 // 10 + 2


def test_messages_that_are_delayed_leave_the_figure_of_ready_ones_whole(queue, monkeypatch):
    queue.send(b"now")
    queue.send_many([cqueue.Message(b"x", delay=timedelta(hours=1)) for _ in range(300)])
    counts, _ = counted(queue, monkeypatch, PAGE=10, MAX_IDS=100)
    assert counts.ready == 1
    assert counts.at_least == {"delayed", "live"}


def test_behind_a_delayed_message_of_a_wide_row_nothing_is_ready(monkeypatch):
    """A count that ends among delayed messages has seen all ready ones, though the wide row has begun."""
    monkeypatch.setattr(module, "PAGE", 10)
    monkeypatch.setattr(module, "MAX_IDS", 10)
    table = registered()
    table.put(NOON_US, *(NOON_US + 30 * SECOND_US + number for number in range(20)))
    table.pass_time(SECOND_US)
    counts = table.run(module.estimate(table.spec))
    assert (counts.ready, counts.at_least) == (1, {"delayed", "live"})


def test_a_wide_row_begins_with_its_first_microsecond():
    """An estimate and an exact count say the same, at the last moment before and at the first."""
    table = registered()
    for time_us, future in ((NOON_US - 1, 1), (NOON_US, 0)):
        table.time_us = time_us
        counts = [table.run(kind(table.spec)) for kind in (module.estimate, count)]
        assert [(one.wide_rows, one.future_wide_rows) for one in counts] == [(1, future)] * 2


def test_more_that_are_due_at_this_very_moment_may_be_ready(monkeypatch):
    """A count that ends among them is a lower bound of what is ready."""
    monkeypatch.setattr(module, "PAGE", 10)
    monkeypatch.setattr(module, "MAX_IDS", 10)
    table = registered()
    table.put(*[NOON_US] * 20)
    counts = table.run(module.estimate(table.spec))
    assert (counts.ready, counts.at_least) == (10, {"ready", "delayed", "live"})


def test_the_number_of_reads_is_bounded_however_many_wide_rows_there_are(queue, monkeypatch):
    """Messages due at many different times stand in one wide row each."""
    queue.send_many([cqueue.Message(b"x", delay=timedelta(minutes=n)) for n in range(300)])
    counts, reads = counted(queue, monkeypatch, MAX_ROWS=20, MAX_READS=10, MAX_EPOCHS=2)
    assert (reads[ReadHead], reads[ReadShards]) == (20, 3)
    assert reads[ReadIds] <= 10 + module.AT_ONCE
    assert counts.delayed < 300
    assert counts.at_least == {"delayed", "live"}, "what is left out is not due yet"


@pytest.mark.parametrize(("later_us", "due"), [(0, True), (-1, False)])
def test_wide_rows_of_epochs_that_are_not_read_may_be_due(later_us, due, monkeypatch):
    """If the last one that is read has begun, any figure may be higher; if not, nothing left out is due."""
    monkeypatch.setattr(module, "MAX_EPOCHS", 1)
    table = registered()
    next_day = WideRow(table.spec.partition, table.row.time_shard + 86_400_000, 0)
    for registration in registry.registration(table.spec, next_day, 0):
        table.store.execute(registration)
    table.time_us = NOON_US + later_us
    left_out = {"ready", "claimed", "waiting"} if due else set()
    counts = table.run(module.estimate(table.spec))
    assert (counts.wide_rows, counts.at_least) == (1, {"delayed", "live"} | left_out)


def test_the_last_read_that_is_allowed_is_made(queue, monkeypatch):
    queue.send_many([cqueue.Message(b"x") for _ in range(5)])
    counts, reads = counted(queue, monkeypatch, MAX_READS=1)
    assert (counts.ready, reads[ReadIds] >= 1) == (5, True)


def test_a_place_that_cannot_be_read_makes_a_lower_bound_not_an_error(queue):
    """Cassandra refuses a read across too many tombstones; a monitor still gets the other figures."""
    queue.send(b"x")

    def observed(protocol):
        operation = next(protocol)
        while True:
            reads = operation.operations if isinstance(operation, Together) else ()
            answer = yield operation
            if any(isinstance(one, ReadIds) for one in reads):
                answer = [error for _ in reads]
            try:
                operation = protocol.send(answer)
            except StopIteration as end:
                return end.value

    def estimated():
        return queue._driver.run(observed(module.estimate(queue._catalog.entry("q").spec)))

    error = TooManyTombstones("TombstoneOverwhelming")
    counts = estimated()
    assert counts.ready == 0
    assert counts.at_least == {"ready", "delayed", "live"}
    error = Unavailable("no answer")
    with pytest.raises(Unavailable):  # an outage is no lower bound of 0
        estimated()


def test_dead_letters_are_estimated_beside(queue):
    queue.send_many([cqueue.Message(b"x") for _ in range(3)])
    with queue.consumer() as consumer:
        for message in consumer.receive(10, wait=timedelta(seconds=5)):
            message.dead("no")
    assert queue.stats().dead == 3
    with cqueue.connect("memory://") as client:
        assert client.create_queue("empty").stats().dead == 0
