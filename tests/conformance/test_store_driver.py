"""The store on the driver's stock paths: whichever part of the driver is missing, all is stored and read."""

import time
from contextlib import closing
from dataclasses import replace

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT

from cqueue import ids
from cqueue.errors import Unavailable
from cqueue.runtime.waiting import within
from cqueue.settings import load
from cqueue.store import driver
from cqueue.store.cassandra import CassandraStore
from cqueue.store.connection import open_session
from cqueue.store.driver import probe
from cqueue.store.log_operations import AppendRecords, LogShard, ReadRecordIds, RecordRow
from cqueue.store.operations import (
    DeleteMessages,
    InsertBodies,
    InsertMessages,
    Mutate,
    ReadBodies,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadShards,
    ReadSlice,
    RegisterShard,
    ShardRow,
    SlotChange,
    SlotRow,
    SlotState,
    WideRow,
)
from cqueue.store.record_page import ReadRecordPage
from tests.faults.proxy import Proxy
from tests.fix_dispatcher import until
from tests.fix_store import lock, message, new_id, new_ids, now_us

pytestmark = pytest.mark.cassandra

END = ids.highest_at(now_us() + 86_400_000_000)


@pytest.fixture(params=[*((part,) for part in driver.PARTS), driver.PARTS], ids=lambda parts: "+".join(
    part.name for part in parts))  # fmt: skip
def stock(request, monkeypatch, cassandra_url, store_connection):
    """A store of a process whose driver has everything but these parts."""
    missing = {part.names[0] for part in request.param}
    find = probe.find

    def without(name):
        if name in missing:
            raise AttributeError(name)
        return find(name)

    monkeypatch.setattr(probe, "find", without)
    driver.used.cache_clear()
    assert not driver.used().parts & set(request.param)
    settings = replace(load(cassandra_url), keyspace=store_connection.session.keyspace)
    with open_session(settings) as connection:
        yield CassandraStore(connection.session)
    driver.used.cache_clear()


def test_messages_are_sent_claimed_and_deleted(stock, wide_row):
    """Of one row, of many rows, of packs, with all columns; claimed in a slot; deleted one by one."""
    alone = [message(new_ids(1)[0], b"x", headers={"a": "ä"}, codec="json", task="t", key="k", expires=9)]
    plain = [message(id_) for id_ in new_ids(20)]
    pack = [message(id_, b"%d" % id_) for id_ in ids.packed(now_us() * 10, 77, 5)]
    rows = sorted((*alone, *plain, *pack), key=lambda row: row.id)
    for some in (alone, plain, pack):
        stock.execute(InsertMessages(wide_row, tuple(some)))
    every = (wide_row, 0, ids.START, END, 100)
    assert stock.execute(ReadSlice(*every)).rows == rows
    assert stock.execute(ReadIds(*every)).ids == [row.id for row in rows]
    assert stock.execute(ReadMessages(wide_row, 0, (pack[1].id, plain[0].id))) == [plain[0], pack[1]]

    claimed = tuple(row.id for row in rows)
    slot = SlotRow(0, 0, SlotState.CLAIMED, claimed, 1, 1, b"me", 1)
    assert stock.execute(Mutate(wide_row, lock(1), slots=(SlotChange(None, slot),)))
    assert not stock.execute(Mutate(wide_row, lock(1)))
    head = stock.execute(ReadHead(wide_row, serial=True))
    assert (head.lock, [each.ids for each in head.slots]) == (lock(1), [claimed])

    stock.execute(DeleteMessages(wide_row, 0, (pack[0].id, pack[4].id)))
    assert stock.execute(ReadIds(*every)).ids == [row.id for row in rows if row not in (pack[0], pack[4])]
    stock.execute(DeleteMessages(wide_row, 0, claimed))
    assert stock.execute(ReadSlice(*every)).rows == []


def test_bodies_and_registrations(stock, wide_row):
    """Large bodies beside their messages; time shards with priorities."""
    bodies = {id_: bytes(200_000) for id_ in new_ids(3)}
    stock.execute(InsertBodies(wide_row, tuple(bodies.items())))
    assert stock.execute(ReadBodies(wide_row, (*bodies, new_id()))) == bodies
    stock.execute(RegisterShard(wide_row.queue, 0, wide_row.time_shard, 0, frozenset({1, 3})))
    shards = stock.execute(ReadShards(wide_row.queue, 0, 0))
    assert shards == [ShardRow(wide_row.time_shard, 0, frozenset({1, 3}))]


def test_records(stock, wide_row):
    """Of a log, with and without key and headers."""
    shard = LogShard(wide_row.queue, 0, wide_row.time_shard)
    first, second = new_ids(2)
    rows = (RecordRow(first, "t", None, None, b""), RecordRow(second, "t", "k", {"a": "b"}, b"body"))
    stock.execute(AppendRecords(shard, rows, 600))
    assert list(stock.execute(ReadRecordPage(shard, ids.START, END, 10)).rows()) == list(rows)
    assert stock.execute(ReadRecordIds(shard, ids.START, END, 10)) == [first, second]


@pytest.mark.parametrize(("call_s", "request_s"), [(0.1, 60.0), (60.0, 0.1)])
def test_a_statement_is_prepared_within_the_time_of_its_call(
    cassandra_url, store_connection, call_s, request_s
):
    """Where no answer comes: a thread that uses a statement first would wait for the driver's 10 s, and for
    each further statement again.
    """
    proxy = Proxy(load(cassandra_url).hosts[0], ("127.0.0.1", 0))
    through = f"cassandra://{proxy.address[0]}:{proxy.address[1]}/?local_dc=datacenter1&connect_timeout=60"
    settings = replace(load(through), keyspace=store_connection.session.keyspace)
    with closing(proxy), open_session(settings) as connection:
        # Only now, as a starved node does not answer the connect in a tenth of a second
        connection.session.get_execution_profile(EXEC_PROFILE_DEFAULT).request_timeout = request_s
        store = CassandraStore(connection.session)
        proxy.stall()
        began_s = time.monotonic()
        with within(call_s):
            reads = store.together(
                (ReadHead(WideRow("q", 0, 0)), ReadShards("q", 0, 0), ReadBodies(WideRow("q", 0, 0), (1,)))
            )
        assert [type(read) for read in reads] == [Unavailable] * 3
        assert time.monotonic() - began_s < 9
        proxy.resume()


def test_of_the_schema_the_replication_of_the_own_keyspace_is_read_and_followed_and_nothing_else(
    new_keyspace, connection, cassandra_url
):
    """Requests go to the present replicas; tables are not read, and other keyspaces are not either."""
    own, other = (new_keyspace(schema=False).name for _ in range(2))
    with open_session(replace(load(cassandra_url), keyspace=own), use_keyspace=False) as opened:
        metadata = opened.cluster.metadata

        def known():
            return {
                name: each.replication_strategy.replication_factor
                for name, each in metadata.keyspaces.items()
            }

        def execute(cql):
            connection.session.execute(cql, timeout=60)

        assert not known()
        replication = "WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': {}}}".format
        execute(f"CREATE KEYSPACE {other} {replication(1)}")
        execute(f"CREATE KEYSPACE {own} {replication(1)}")
        until(lambda: known() == {own: 1})
        assert metadata.get_replicas(own, b"key")
        execute(f"CREATE TABLE {own}.anything (id int PRIMARY KEY)")
        execute(f"ALTER KEYSPACE {own} {replication(3)}")
        until(lambda: known() == {own: 3})
        assert not metadata.keyspaces[own].tables
        execute(f"DROP KEYSPACE {own}")
        until(lambda: not known())
