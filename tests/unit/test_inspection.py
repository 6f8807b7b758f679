"""Test walks through a wide row: they miss nothing, and no read crosses more than Cassandra allows."""

from collections import Counter
from itertools import pairwise

import pytest

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown, TooManyTombstones, Unavailable
from cqueue.protocol import inspection, registry
from cqueue.protocol.inspection import END, ROWS_AT_ONCE, Walk
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import DeleteMessages, Now, RandomBits, ReadShards, ReadSlice, WideRow
from tests.simulation.hand import Table

ROW = WideRow("q@1", 1_700_000_000_000, 0)


def spec(width_ms: int) -> QueueSpec:
    return QueueSpec("q", "1", 4, width_ms, 3_600_000, 1, 30_000, 5_000, 5, 2_000_000, 500_000, 10**9)


def pieces(width_ms: int, tombstones: int = 0) -> list[tuple[int, int]]:
    walk, found = Walk(spec(width_ms), ROW, 0), []
    while not walk.done:
        found.append((walk.after, walk.upto))
        walk.passed(None, tombstones)
    return found


@pytest.mark.parametrize("width_ms", [1000, 30_000, 3_600_000, 30 * 24 * 3_600_000])
def test_the_pieces_of_a_walk_leave_nothing_out(width_ms):
    """Each piece begins where the last one ended, from the lowest id to the highest.

    They are few, because each is a request: a dead-letter queue has many wide rows of ten hours.
    """
    found = pieces(width_ms)
    assert (found[0][0], found[-1][1]) == (ids.START, END)
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert len(found) == 4


def test_a_walk_goes_in_shorter_steps_where_tombstones_lie():
    """A piece that crossed 5,000 of them is followed by one a tenth as long."""
    walk = Walk(spec(30_000), ROW, 0)
    first_us = ids.time_us(walk.upto) - ROW.time_shard * 1000
    walk.passed(None, 5000)
    assert ids.time_us(walk.upto) - ids.time_us(walk.after) == pytest.approx(first_us / 10, rel=0.01)


def walked(walk: Walk, longest_us: int) -> list[tuple[int, int]]:
    """The pieces that a walk has read on a store that refuses reads of more than that much time."""
    begin_us, found = ROW.time_shard * 1000, []

    def look(read: ReadSlice) -> None:
        upto_us = min(ids.time_us(read.upto), registry.end_us(spec(3_600_000), ROW))
        if upto_us - max(ids.time_us(read.after), begin_us) > longest_us:
            raise TooManyTombstones("tombstone_failure_threshold")
        found.append((read.after, read.upto))

    table = Table()
    while not walk.done:
        table.run(walk.next_rows(100), look)
    return found


@pytest.mark.parametrize("after", [ids.START, ids.lowest_at((ROW.time_shard + 1_800_000) * 1000)])
def test_a_piece_that_cassandra_refuses_is_read_in_shorter_ones(after):
    """Pieces get long where no tombstones lie, and the next one may have too many."""
    found = walked(Walk(spec(3_600_000), ROW, 0, after), 10_000_000)
    assert (found[0][0], found[-1][1]) == (after, END)
    assert all(before[1] == after[0] for before, after in pairwise(found))


def test_a_refusal_of_the_shortest_piece_is_an_error():
    """Else the walk would ask for ever."""
    with pytest.raises(TooManyTombstones):
        walked(Walk(spec(3_600_000), ROW, 0), 0)


def test_a_full_page_is_read_on_behind_its_last_id():
    """The end of the piece stays the same."""
    walk = Walk(spec(30_000), ROW, 0)
    upto, last = walk.upto, ids.lowest_at(1_700_000_000_200_000)
    walk.passed(last, 0)
    assert (walk.after, walk.upto) == (last, upto)


@pytest.mark.parametrize(
    ("script", "is_whole"),
    [(inspection.wide_rows, False), (inspection.purge, True), (inspection.forget, True)],
)
def test_what_is_deleted_is_also_what_is_registered_beside_the_grid(script, is_whole):
    """A store sets aside wide rows that begin at no time shard's start, unless it is asked without a grid."""
    table = Table()
    for registration in registry.registration(table.spec, table.row, 0):
        table.store.execute(registration)
    table.run(script(table.spec))
    epoch = registry.epoch_of(table.spec, table.row)
    (read,) = [one for one in table.log if type(one) is ReadShards and one.epoch == epoch]
    assert (read.grid is None) is is_whole


def filled(wide_rows: int) -> Table:
    """A table whose wide rows follow each other; each is registered and has two messages."""
    table = Table()
    for number in range(wide_rows):
        row = table.row._replace(time_shard=table.row.time_shard + number * table.spec.width_ms)
        for registration in registry.registration(table.spec, row, 0):
            table.store.execute(registration)
        table.put(row.time_shard * 1000, row.time_shard * 1000 + 1, row=row)
    return table


@pytest.mark.parametrize(
    "script", [inspection.count, inspection.purge, inspection.examine, inspection.forget]
)
def test_eight_wide_rows_take_as_many_requests_one_after_the_other_as_one(script):
    """Of a queue with delayed messages each may have a wide row of its own."""
    rounds = []
    for wide_rows in (1, ROWS_AT_ONCE):
        table, asked = filled(wide_rows), []

        def recorded(steps, asked=asked):
            value = None
            while True:
                try:
                    operation = steps.send(value)
                except StopIteration as stop:
                    return stop.value
                asked.append(type(operation))
                value = yield operation

        table.run(recorded(script(table.spec)))
        rounds.append(sum(kind is not Now and kind is not RandomBits for kind in asked))
    assert rounds[0] == rounds[1]


@pytest.mark.parametrize("fails_at", range(1, 8))
def test_a_purge_that_stops_says_whether_something_is_deleted(fails_at):
    """Another wide row may have been emptied in the moment in which one fails."""
    table, asked = filled(3), Counter()

    def hook(operation):
        asked[type(operation)] += 1
        if type(operation) in {ReadSlice, DeleteMessages} and asked.total() >= fails_at:
            raise Unavailable("no node")

    with pytest.raises((NotDone, OutcomeUnknown)) as error:
        table.run(inspection.purge(table.spec), hook)
    left = table.run(inspection.count(table.spec)).live
    assert isinstance(error.value, OutcomeUnknown) == (left < 6)
    if left < 6:
        assert f"{6 - left} messages are deleted" in str(error.value)
