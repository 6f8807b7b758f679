"""Records, the registry of their partitions, and logs: what every store promises."""

import time
import uuid

import pytest

from cqueue import ids
from cqueue.store.log_operations import (
    AppendRecords,
    ChangeLog,
    CreateLog,
    DeleteRecords,
    DropRecords,
    ListLogs,
    LogRow,
    LogShard,
    PeekRecords,
    ReadLog,
    ReadLogShards,
    ReadRecordIds,
    RecordRow,
    RegisterLogShard,
    RemoveLog,
    UnregisterLogShard,
)
from cqueue.store.record_page import ReadRecordPage

DAY_S = 86_400
BEGAN_TICKS = time.time_ns() // 100
END = 1 << 123


@pytest.fixture
def name():
    return f"log-{uuid.uuid4().hex}@1"


@pytest.fixture
def shard(name):
    return LogShard(name, 3, time.time_ns() // 1_000_000 // 600_000 * 600_000)


def record(number, **changes):
    id_ = ids.from_ticks(BEGAN_TICKS + number * 10, number)
    return RecordRow(id_, "clicks", None, None, b"%d" % number)._replace(**changes)


def read(store, shard, after=0, upto=END, limit=100, **options):
    return list(store.execute(ReadRecordPage(shard, after, upto, limit, **options)).rows())


def test_records_come_back_in_the_order_of_their_ids(store, shard):
    """As they were appended, whole, within the bounds asked for."""
    full = record(1, key="user-1", headers={"b": "2", "a": "é"}, body=b"\x00\xff")
    rows = [record(0, body=b""), full, record(2), record(3)]
    store.execute(AppendRecords(shard, tuple(reversed(rows)), DAY_S))
    assert read(store, shard) == rows
    assert read(store, shard, limit=2) == rows[:2]
    assert read(store, shard, rows[0].id, rows[2].id) == rows[1:3]
    assert read(store, shard, limit=3, reverse=True) == rows[:0:-1]
    assert read(store, shard._replace(partition=4)) == []
    assert store.execute(ReadRecordIds(shard, rows[0].id, END, 2)) == [rows[1].id, rows[2].id]


def test_an_append_repeated_is_stored_once(store, shard):
    rows = (record(0), record(1))
    for ttl_s in (DAY_S, 0, DAY_S):
        store.execute(AppendRecords(shard, rows, ttl_s))
    assert read(store, shard) == list(rows)


def test_a_delete_beats_its_append_whenever_that_lands(store, shard):
    """A record that was made again under a new id does not come back with a late write."""
    rows = (record(0), record(1), record(2))
    store.execute(DeleteRecords(shard, (rows[1].id,)))
    store.execute(AppendRecords(shard, rows, DAY_S))
    store.execute(DeleteRecords(shard, (rows[0].id,)))
    store.execute(AppendRecords(shard, rows[:1], DAY_S))
    assert read(store, shard) == [rows[2]]


def test_a_peek_tells_which_partitions_have_something(store, shard):
    rows = [record(0), record(1)]
    store.execute(AppendRecords(shard, tuple(rows), DAY_S))
    store.execute(AppendRecords(shard._replace(partition=32_767), (rows[1],), DAY_S))

    def peek(after, upto, partitions=(3, 4, 32_767)):
        return store.execute(PeekRecords(shard.log, partitions, shard.time_shard, after, upto))

    assert peek(0, END) == {3: rows[0].id, 32_767: rows[1].id}
    assert peek(rows[0].id, END) == {3: rows[1].id, 32_767: rows[1].id}
    assert peek(rows[1].id, END) == {}
    assert peek(0, rows[0].id) == {3: rows[0].id}
    assert peek(0, END, (4,)) == {}


def test_partitions_are_registered_and_gone(store, shard):
    other = shard._replace(time_shard=shard.time_shard - 600_000, partition=0)
    others = (shard._replace(log=f"{shard.log}x"), shard._replace(time_shard=shard.time_shard + 600_000))
    for each in (shard, shard, shard._replace(partition=5), other, *others):
        store.execute(RegisterLogShard(each, DAY_S))
    asked = (shard.time_shard, other.time_shard, other.time_shard - 600_000)
    found = store.execute(ReadLogShards(shard.log, asked))
    assert found == {shard.time_shard: frozenset({3, 5}), other.time_shard: frozenset({0})}
    store.execute(UnregisterLogShard(other))
    assert list(store.execute(ReadLogShards(shard.log, asked))) == [shard.time_shard]


@pytest.mark.parametrize("ttls_s", [(DAY_S, 1), (1, DAY_S), (0, 1), (1, 0), (0, DAY_S, 1), (1, 0, DAY_S)])
def test_of_several_registrations_the_one_that_lasts_longest_stays(store, shard, ttls_s, eventually):
    """Clients that know different configurations register the same partition, in any order."""
    brief = shard._replace(partition=5)
    for ttl_s in ttls_s:
        store.execute(RegisterLogShard(shard, ttl_s))
    store.execute(RegisterLogShard(brief, 1))
    asked, both = ReadLogShards(shard.log, (shard.time_shard,)), frozenset({shard.partition, 5})
    eventually(lambda: store.execute(asked) != {shard.time_shard: both})
    assert store.execute(asked) == {shard.time_shard: {shard.partition}}


def test_a_partition_is_dropped_whole(store, shard):
    store.execute(AppendRecords(shard, (record(0), record(1)), 0))
    store.execute(DropRecords(shard, time.time_ns() // 1000 + 1000))
    assert read(store, shard) == []


def test_a_log_changes_only_from_the_version_seen(store, name):
    row = LogRow(name, "1", 1, "active", "{}", 1_800_000_000_000)
    assert store.execute(ReadLog(name)) is None
    assert store.execute(CreateLog(row)) is True
    assert store.execute(CreateLog(row._replace(incarnation="2"))) is False
    assert row in store.execute(ListLogs())
    changed = row._replace(config='{"partitions": 2}', state="deleting")
    assert store.execute(ChangeLog(changed, 1)) is True
    assert store.execute(ChangeLog(changed, 1)) is False
    assert store.execute(ChangeLog(changed._replace(incarnation="2"), 2)) is False
    assert store.execute(ReadLog(name)) == changed._replace(version=2)
    assert store.execute(RemoveLog(name, "2")) is False
    assert store.execute(RemoveLog(name, "1")) is True
    assert store.execute(ReadLog(name)) is None
