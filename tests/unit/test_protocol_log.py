"""Logs as a protocol: appends that count, and readers that pass none of them."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from cqueue import ids
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.log.protocol import merge as merging
from cqueue.log.protocol.append import Entry, append
from cqueue.log.protocol.following import Following
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import in_order
from cqueue.log.protocol.spec import LogSpec, partition_of
from cqueue.protocol.writing import WriterState
from cqueue.store.log_operations import AppendRecords, DeleteRecords, ReadLogShards, RegisterLogShard
from cqueue.store.record_page import ReadRecordPage
from tests.simulation.hand import NOON_US, SECOND_US, SETTLE_US, SKEW_US, Table

SPEC = LogSpec("events", "1", 4, 60_000, 0, NOON_US // 1000, SETTLE_US, SKEW_US)


def put(table, *entries, spec=SPEC, state=None, hook=lambda _: None, **options):
    return table.run(append(spec, state or WriterState(), list(entries), **options), hook)


def entries(count, **values):
    return [Entry("t", b"%d" % number, **values) for number in range(count)]


def stored(table):
    """Return all stored records by body, of all partitions."""
    shards = {op.shard for op in table.log if type(op) is AppendRecords}
    pages = (table.store.execute(ReadRecordPage(shard, 0, 1 << 123, 10_000)) for shard in shards)
    rows = [row for page in pages for row in page.rows()]
    return sorted(row.body for row in rows)


def everything(table, *, spec=SPEC, partitions=range(4), reverse=False, end_us=None):
    """Return what a reader finds now, in its order."""
    end_us = table.time_us if end_us is None else end_us
    low, high = ids.lowest_at(NOON_US) - 1, spec.horizon(end_us)
    merge = Merge(spec, dict.fromkeys(partitions, high if reverse else low), reverse=reverse)
    found = []
    while (more := table.run(merge.more(spec, low if reverse else high, table.time_us))) is not None:
        found += in_order(more, reverse=reverse)
    return found


# ── appending ──


def test_records_of_one_key_stand_in_one_partition_in_order():
    """Also where they are too many for one mutation."""
    table = Table()
    writes = put(table, *entries(1200, key="user-17"))
    assert sorted(len(write.rows) for write in writes) == [200, 500, 500]
    table.pass_time(10 * SECOND_US)
    found = everything(table)
    assert [record.row.body for record in found] == [b"%d" % number for number in range(1200)]
    assert {record.partition for record in found} == {partition_of("user-17", 4)}


def test_writes_without_a_key_take_turns():
    table = Table()
    state = WriterState()
    for _ in range(8):
        put(table, *entries(3), state=state)
    assert sorted(op.shard.partition for op in table.log if type(op) is AppendRecords) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


def test_an_append_without_an_answer_is_repeated_under_its_ids():
    """There is one copy, whether the first try was stored or not."""
    table, left = Table(), [2]

    def hook(operation):
        if type(operation) is AppendRecords and left[0]:
            left[0] -= 1
            if left[0]:
                table.store.execute(operation)
            raise OutcomeUnknown("lost")

    (write,) = put(table, *entries(2), hook=hook)
    assert write.error is None
    assert not write.remade
    assert stored(table) == [b"0", b"1"]


def test_a_late_answer_does_not_count():
    """Readers may have passed the ids, so the records are written again, and the first copies deleted."""
    table, slow = Table(), [True]

    def hook(operation):
        if type(operation) is AppendRecords and slow.pop() if slow else False:
            table.pass_time(SETTLE_US + 1)

    (write,) = put(table, *entries(2), hook=hook)
    assert write.error is None
    assert write.remade
    assert ids.time_us(write.rows[0].id) >= NOON_US + SETTLE_US
    assert any(type(op) is DeleteRecords for op in table.log)
    assert stored(table) == [b"0", b"1"]


@pytest.mark.parametrize("again", [(0,), (1,), (0, 1)])
def test_records_of_one_key_keep_their_order_when_some_are_late(again):
    """Those behind a late one are written again as well, although their own answers came in time."""
    table, tries = Table(), Counter()

    def hook(operation):
        if type(operation) is AppendRecords and int(operation.rows[0].body) in {500 * at for at in again}:
            first = operation.rows[0].body
            tries[first] += 1
            if tries[first] == 1:
                raise NotDone("no")
            table.pass_time(SETTLE_US + 1 if tries[first] == 2 else 0)

    writes = put(table, *entries(1200, key="user-17"), hook=hook)
    assert {write.error for write in writes} == {None}
    table.pass_time(10 * SECOND_US)
    assert [record.row.body for record in everything(table)] == [b"%d" % number for number in range(1200)]


@pytest.mark.parametrize(
    ("error", "known"), [(NotDone("no"), NotDone), (OutcomeUnknown("?"), OutcomeUnknown)]
)
def test_what_is_never_answered_is_reported_as_what_is_known(error, known):
    table = Table()

    def hook(operation):
        if type(operation) is AppendRecords:
            raise error

    (write,) = put(table, *entries(1), hook=hook)
    assert isinstance(write.error, known)
    assert NOON_US < table.time_us <= NOON_US + SETTLE_US


def test_a_writer_that_dies_before_its_insert_is_answered_has_registered_its_place():
    """A process that repeats the work finds what was stored; registered beside the insert, it may not."""
    table, registered = Table(), []

    def hook(operation):
        if type(operation) is AppendRecords:
            known = table.store.execute(ReadLogShards(SPEC.partition, (operation.shard.time_shard,)))
            registered.append(operation.shard.partition in known.get(operation.shard.time_shard, ()))

    put(table, *entries(3), *entries(2, partition=3), hook=hook, register_first=True)
    assert registered == [True, True]
    assert len(stored(table)) == 5


def test_what_cannot_be_registered_first_is_not_written():
    table = Table()

    def hook(operation):
        if type(operation) is RegisterLogShard:
            raise OutcomeUnknown("lost")

    (write,) = put(table, *entries(1), hook=hook, register_first=True)
    assert isinstance(write.error, NotDone)
    assert stored(table) == []


# ── reading ──


@pytest.mark.parametrize("reverse", [False, True])
def test_a_merge_is_the_merge_of_its_partitions(reverse):
    """The order holds over time shards, dense and empty ones, and partitions of very different sizes."""
    rng = Random(5)
    table, state = Table(), WriterState()
    for _ in range(60):
        count = rng.choice((1, 3, 90, 700))
        put(table, *entries(count, partition=rng.choice((0, 0, 0, 1, 3))), state=state)
        table.pass_time(rng.choice((1000, SECOND_US, 150 * SECOND_US)))
    table.pass_time(10 * SECOND_US)
    whole = everything(table, reverse=reverse)
    alone = [record for partition in range(4) for record in everything(table, partitions=[partition])]
    assert whole == sorted(alone, key=lambda record: record.row.id, reverse=reverse)
    assert len(whole) == sum(len(op.rows) for op in table.log if type(op) is AppendRecords)


def test_ids_alone_are_those_of_the_records():
    """A stream plans its batches by ids, which are read in rounds and without bodies."""
    table, state = Table(), WriterState()
    for _ in range(30):
        put(table, *entries(70, partition=len(table.log) % 3), state=state)
        table.pass_time(20 * SECOND_US)
    table.pass_time(10 * SECOND_US)
    expected = [record.row.id for record in everything(table)]
    table.log.clear()
    merge, found = Merge(SPEC, dict.fromkeys(range(4), ids.lowest_at(NOON_US) - 1), ids_only=True), []
    while (more := table.run(merge.more(SPEC, SPEC.horizon(table.time_us), table.time_us))) is not None:
        found += sorted(id_ for stretch in more for id_ in stretch.ids())
    assert found == expected
    assert not any(type(op) is ReadRecordPage for op in table.log)


@pytest.mark.parametrize("by_one", [False, True])
def test_what_one_read_of_each_partition_holds_is_bounded(monkeypatch, by_one):
    """Also for a member, which takes its partitions over one by one: its memory is that of all of them."""
    monkeypatch.setattr(merging, "MERGE_BYTES", 64 << 10)
    table, low = Table(), ids.lowest_at(NOON_US) - 1
    for partition in range(4):
        put(table, *[Entry("t", bytes(1000), partition=partition)] * 400)
    table.pass_time(10 * SECOND_US)
    table.log.clear()
    merge = Merge(SPEC, {} if by_one else dict.fromkeys(range(4), low))
    for partition in range(4) if by_one else ():
        merge.add(SPEC, partition, low)
    count = 0
    while (more := table.run(merge.more(SPEC, SPEC.horizon(table.time_us), table.time_us))) is not None:
        count += sum(stretch.size for stretch in more)
    assert count == 1600
    limits = [op.limit for op in table.log if type(op) is ReadRecordPage]
    assert max(limits[4:]) <= (64 << 10) // 4 // 1000, "the first reads of each go by no size"


def test_the_first_reads_of_very_many_partitions_are_small():
    """How large records are is not known yet, so each of 2,048 partitions gets its share of all rows."""
    table = Table()
    spec, first = replace(SPEC, partitions=2048), ids.lowest_at(NOON_US) - 1
    table.pass_time(10 * SECOND_US)
    table.log.clear()
    merge = Merge(spec, dict.fromkeys(range(2048), first))
    while table.run(merge.more(spec, spec.horizon(table.time_us), table.time_us)) is not None:
        pass
    limits = {op.shard.partition: op.limit for op in table.log if type(op) is ReadRecordPage}
    assert len(limits) == 2048
    assert sum(limits.values()) <= merging.MERGE_BYTES >> 10


def test_the_first_read_of_a_partition_asks_for_few_records():
    """They may have 1 MiB each, and the 32 partitions that are read side by side all begin so."""
    table = Table()
    spec, first = replace(SPEC, partitions=32), ids.lowest_at(NOON_US) - 1
    table.pass_time(10 * SECOND_US)
    table.log.clear()
    table.run(Merge(spec, dict.fromkeys(range(32), first)).more(spec, spec.horizon(table.time_us), NOON_US))
    limits = [op.limit for op in table.log if type(op) is ReadRecordPage]
    assert len(limits) == 32
    assert sum(limits) <= 256


def test_a_read_that_goes_back_over_early_records_takes_one_request():
    """It knows from the last read how large they are."""
    table, state = Table(), WriterState()
    table.run(append(SPEC, state, [Entry("t", b"body", partition=0)] * 200))
    following = Following(SPEC, {0: ids.lowest_at(NOON_US)}, beyond_horizon=True)
    assert len(table.run(following.read(SPEC)).records) == 200
    table.run(append(SPEC, state, [Entry("t", b"one more", partition=0)]))
    table.log.clear()
    assert [one.row.body for one in table.run(following.read_hinted(SPEC, [0])).records] == [b"one more"]
    assert sum(type(op) is ReadRecordPage for op in table.log) == 1


def test_a_long_silence_costs_few_reads():
    """The registry shows a week of empty time shards, so none of them is read."""
    spec = replace(SPEC, partitions=1)
    table = Table()
    put(table, *entries(1), spec=spec)
    table.pass_time(7 * 86_400 * SECOND_US)
    put(table, *entries(1), spec=spec)
    table.pass_time(10 * SECOND_US)
    table.log.clear()
    assert len(everything(table, spec=spec, partitions=[0])) == 2
    assert sum(type(op) is ReadRecordPage for op in table.log) <= 5
    assert sum(type(op) is ReadLogShards for op in table.log) <= 7 * 1440 // 64 + 1


def test_a_reader_at_the_tail_goes_on_where_it_was():
    """Each poll gives what has become stable since the last one, once."""
    table, state = Table(), WriterState()
    merge = Merge(SPEC, dict.fromkeys(range(4), ids.lowest_at(NOON_US) - 1))
    found = []
    for number in range(300):
        put(table, Entry("t", b"%d" % number), state=state)
        table.pass_time(SECOND_US)
        end = SPEC.horizon(table.time_us)
        while (more := table.run(merge.more(SPEC, end, table.time_us))) is not None:
            found += [record.row.body for record in in_order(more)]
        assert found == [b"%d" % seen for seen in range(max(0, number - 1))][: len(found)]
        assert len(found) >= number - 2
    assert len(found) >= 297
