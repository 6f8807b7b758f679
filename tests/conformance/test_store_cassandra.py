"""What only Cassandra itself can show: its order, its timestamps, its tombstones, its refusals."""

# ruff: noqa: S608 - the text is this module's own

import gc
import logging
import os
import random

import pytest
from cassandra import ConsistencyLevel
from cassandra.policies import FallthroughRetryPolicy

from cqueue import ids
from cqueue.errors import NotDone, SchemaMismatch, Unavailable
from cqueue.store import statements
from cqueue.store.cassandra import CassandraStore
from cqueue.store.log_operations import ReadSubscription, SubscriptionKey
from cqueue.store.operations import (
    RETIRED_TTL_S,
    DeleteMessages,
    IdSlice,
    InsertBodies,
    InsertMessages,
    ListQueues,
    LockState,
    Mutate,
    ReadBodies,
    ReadHead,
    ReadIds,
    ReadShards,
    ReadSlice,
    RegisterShard,
    ShardRow,
    Slice,
    SlotChange,
    SlotRow,
    SlotState,
    WideRow,
)
from tests.fix_store import lock, message, new_id, new_ids, now_us

pytestmark = pytest.mark.cassandra

END = ids.highest_at(now_us() + 86_400_000_000)
WHERE = "WHERE queue = %s AND time_shard = %s AND shard = %s"


@pytest.fixture
def session(cassandra_store):
    """The store's own session: timeuuids come back as integers."""
    return cassandra_store._session


# ── Ids ──


def test_bounds_are_cassandras(session):
    """`lowest_at` and `highest_at` of a ms are min_timeuuid and max_timeuuid of it."""
    for ms in (0, 1_700_000_000_123, 4_102_444_800_000):
        query = f"SELECT min_timeuuid({ms}), max_timeuuid({ms}) FROM system.local"
        (row,) = session.execute(query)
        assert tuple(row) == (ids.lowest_at(ms * 1000), ids.highest_at(ms * 1000 + 999))


def test_ids_stay_integers_when_the_server_has_forgotten_its_statements(cassandra_store, session, wide_row):
    """An altered table makes it; the driver then prepares again, and reads columns with types of its own."""
    rows = tuple(message(id_, b"body", headers={"a": "b"}) for id_ in new_ids(3))
    looks = [
        ReadSlice(wide_row, 0, ids.START, END, 10),
        ReadIds(wide_row, 0, ids.START, END, 10),
        ReadHead(wide_row),
    ]

    def write():
        cassandra_store.execute(InsertMessages(wide_row, rows))
        slot = SlotRow(0, 0, SlotState.CLAIMED, tuple(row.id for row in rows), 1, 1, b"me", 1, None, 0)
        cassandra_store.execute(Mutate(wide_row, slots=(SlotChange(None, slot),)))

    def look():
        slice_, found, head = (cassandra_store.execute(one) for one in looks)
        return slice_.rows, found.ids, head

    write()
    before = look()
    assert before[0] == list(rows)
    assert before[1] == [row.id for row in rows]
    assert before[2].slots[0].ids == tuple(row.id for row in rows)
    for change in ("ADD IF NOT EXISTS forgotten text", "DROP IF EXISTS forgotten"):
        session.execute(f"ALTER TABLE messages {change}")
        assert look() == before
        write()
        assert look() == before


def test_a_store_prepares_again_what_another_one_of_its_session_prepared_last(
    cassandra_store, session, wide_row
):
    """The driver knows the other store's statement, and refers to it weakly."""
    one, other = (InsertMessages(wide_row, tuple(message(id_) for id_ in new_ids(3))) for _ in range(2))
    cassandra_store.execute(one)
    CassandraStore(session).execute(one)
    gc.collect()
    for change in ("ADD IF NOT EXISTS forgotten text", "DROP IF EXISTS forgotten"):
        session.execute(f"ALTER TABLE messages {change}")
    cassandra_store.execute(other)
    assert len(cassandra_store.execute(ReadIds(wide_row, 0, ids.START, END, 10)).ids) == 6


def test_cassandra_compares_as_integers_do(cassandra_store, session, wide_row):
    """Every id is the bound of a slice that holds exactly the smaller ones."""
    rng = random.Random(11)
    start = now_us() * 10
    some = sorted(ids.from_ticks(start + rng.randrange(2), rng.getrandbits(62)) for _ in range(60))
    cassandra_store.execute(InsertMessages(wide_row, tuple(message(id_) for id_ in some)))
    reads = cassandra_store.together(tuple(ReadIds(wide_row, 0, ids.START, id_, 99) for id_ in some))
    assert [found.ids for found in reads] == [some[: i + 1] for i in range(60)]
    rows = session.execute(f"SELECT id FROM messages {WHERE}", wide_row)
    assert [row.id for row in rows] == some


# ── Timestamps and tombstones ──


def test_rows_are_written_at_the_time_of_their_id(cassandra_store, session, wide_row):
    """Messages and bodies: µs of the id. Registry rows: µs of the time shard."""
    id_ = new_id(now_us() + 77_000_000)
    cassandra_store.execute(InsertMessages(wide_row, (message(id_),)))
    cassandra_store.execute(InsertBodies(wide_row, ((id_, b"body"),)))
    key = (wide_row.queue, 0, wide_row.time_shard, 0, frozenset({1}))
    cassandra_store.execute(RegisterShard(*key))
    for query in (
        f"SELECT writetime(format) FROM messages {WHERE} AND kind = 3",
        f"SELECT writetime(body) FROM bodies {WHERE}",
    ):
        assert session.execute(query, wide_row).one()[0] == ids.time_us(id_)
    query = "SELECT writetime(priorities) FROM shards WHERE queue = %s AND epoch = 0"
    assert session.execute(query, (wide_row.queue,)).one()[0] == [wide_row.time_shard * 1000]


def test_missing_values_leave_no_tombstones(cassandra_store, wide_row):
    """Some 10,000 columns without a value are crossed without a warning."""
    some = new_ids(1500)
    cassandra_store.execute(InsertMessages(wide_row, tuple(message(id_) for id_ in some)))
    assert cassandra_store.execute(ReadSlice(wide_row, 0, ids.START, END, 5000)).tombstones == 0
    assert cassandra_store.execute(ReadIds(wide_row, 0, ids.START, END, 5000)) == IdSlice(some, 0)


def test_tombstones_are_counted_and_not_logged(cassandra_store, wide_row, caplog):
    """Above 1,000 Cassandra warns: the number is in the answer, and not in the log of the driver."""
    some = new_ids(1200)
    for part in (some[:600], some[600:]):
        cassandra_store.execute(InsertMessages(wide_row, tuple(message(id_) for id_ in part)))
        cassandra_store.execute(DeleteMessages(wide_row, 0, tuple(part)))
    with caplog.at_level(logging.WARNING):
        assert cassandra_store.execute(ReadIds(wide_row, 0, ids.START, END, 5000)) == IdSlice([], 1200)
        assert cassandra_store.execute(ReadSlice(wide_row, 0, ids.START, END, 5000)) == Slice([], 1200)
        assert cassandra_store.execute(ReadIds(wide_row, 0, some[300], END, 5000)).tombstones == 0
    assert caplog.messages == []


def test_slots_are_overwritten_without_a_tombstone(cassandra_store, session, wide_row):
    """Claims by the thousand through the same slots keep the head small."""
    for rev in range(1, 60):
        row = SlotRow(0, 0, SlotState.FREE, (), 0, 0, b"", rev)
        assert cassandra_store.execute(Mutate(wide_row, slots=(SlotChange(rev - 1 or None, row),)))
    found = session.execute(f"SELECT * FROM messages {WHERE} AND kind < 3", wide_row, trace=True)
    events = [event.description for event in found.get_query_trace().events]
    assert any("Read 1 live rows and 0 tombstone" in event for event in events), events


def test_a_tally_that_was_never_written_is_nought(cassandra_store, session, wide_row):
    """As older processes leave it."""
    key = (*wide_row, ids.to_uuid(ids.START))
    session.execute(
        "INSERT INTO messages (queue, time_shard, shard, kind, priority, id, state, owner, until, fence) "
        "VALUES (%s, %s, %s, 1, 0, %s, 0, 0x, 0, 7)",
        key,
    )
    head = cassandra_store.execute(ReadHead(wide_row))
    assert head.lock == lock(7, LockState.FREE, b"")._replace(until_ms=0)
    assert head.is_whole


def test_registrations_at_one_moment_add_up(cassandra_store, wide_row):
    """Twenty at once, each with one priority: all of them are there."""
    key = (wide_row.queue, 0, wide_row.time_shard, 0)
    done = cassandra_store.together(tuple(RegisterShard(*key, frozenset({n % 10})) for n in range(20)))
    assert done == [None] * 20
    found = cassandra_store.execute(ReadShards(wide_row.queue, 0, 0))
    assert found == [ShardRow(wide_row.time_shard, 0, frozenset(range(10)))]


# ── Conditional mutations ──


def test_the_marker_of_retirement_expires(cassandra_store, session, wide_row):
    """It has a TTL; a lock written later has none; the partition's delete lies below both."""
    cassandra_store.execute(Mutate(wide_row, lock(1)))
    cassandra_store.execute(Mutate(wide_row, lock(2, LockState.RETIRED), 1, retire=True))
    query = f"SELECT ttl(fence), ttl(state), writetime(fence) FROM messages {WHERE} AND kind = 1"
    fence_ttl, state_ttl, _ = session.execute(query, wide_row).one()
    assert RETIRED_TTL_S - 60 < fence_ttl <= RETIRED_TTL_S
    assert RETIRED_TTL_S - 60 < state_ttl <= RETIRED_TTL_S
    assert cassandra_store.execute(Mutate(wide_row, lock(3), 2))
    assert tuple(session.execute(query, wide_row).one())[:2] == (None, None)


def test_many_retirements_in_a_row(cassandra_store, wide_row):
    """Retire, take, retire, as fast as it goes: nothing that was applied is lost to a delete beside it."""
    for fence in range(1, 60, 3):
        before = fence - 1 or None
        row = SlotRow(0, 0, SlotState.CLAIMED, (new_id(),), 0, 1, b"me", fence)
        claim = Mutate(wide_row, lock(fence), before, slots=(SlotChange(None, row),))
        assert cassandra_store.execute(claim)
        assert cassandra_store.execute(ReadHead(wide_row)).slots == (row,)
        retire = Mutate(wide_row, lock(fence + 1, LockState.RETIRED), fence, retire=True)
        assert cassandra_store.execute(retire)
        head = cassandra_store.execute(ReadHead(wide_row))
        assert (head.lock, head.slots) == (lock(fence + 1, LockState.RETIRED), ())
        assert cassandra_store.execute(Mutate(wide_row, lock(fence + 2), fence + 1))


def test_contending_mutations_apply_once(cassandra_store, wide_row):
    """Of ten at one moment that expect the same fence at most one is applied, and it is the one stored."""
    attempts = tuple(Mutate(wide_row, lock(7, owner=bytes([n]))) for n in range(10))
    results = cassandra_store.together(attempts)
    assert results.count(True) <= 1
    stored = cassandra_store.execute(ReadHead(wide_row, serial=True)).lock
    if True in results:
        assert stored == attempts[results.index(True)].lock


# ── How statements are sent ──


@pytest.mark.parametrize("statement", statements.ALL.values(), ids=statements.ALL)
def test_statements_are_sent_as_their_kind_demands(cassandra_store, statement):
    """Only serial reads have a consistency of their own, conditional ones are not repeated."""
    prepared = cassandra_store._requests.prepared(statement)
    assert prepared.consistency_level == (ConsistencyLevel.LOCAL_SERIAL if statement.serial else None)
    assert prepared.serial_consistency_level is prepared.retry_policy is None
    assert prepared.is_idempotent == (statement.kind is not statements.Kind.CONDITIONAL)
    assert prepared.fetch_size == (statement.page_rows or None)


def test_the_store_says_at_which_consistency_it_asks(cassandra_store, session, wide_row):
    """Of one statement and of a batch; nothing is left to the session, and nothing is repeated."""
    sent = []

    def note(future):
        sent.append((future.message.consistency_level, future.message.serial_consistency_level))

    session.add_request_init_listener(note)
    try:
        key = SubscriptionKey("l@1", "s")
        for operation in (
            ReadHead(wide_row), ReadHead(wide_row, serial=True), Mutate(wide_row, lock(1)),
            ReadSubscription(key), ReadSubscription(key, serial=True),
        ):  # fmt: skip
            cassandra_store.execute(operation)
    finally:
        session.remove_request_init_listener(note)
    serial, quorum = ConsistencyLevel.LOCAL_SERIAL, ConsistencyLevel.LOCAL_QUORUM
    assert sent == [(quorum, serial), (serial, serial), (quorum, serial), (quorum, serial), (serial, serial)]
    assert isinstance(cassandra_store._requests.profile.retry_policy, FallthroughRetryPolicy)


def test_bodies_are_asked_of_all_replicas_only_if_wanted(cassandra_store, session, wide_row):
    """What one read asks for does not stay with the next one of the same statement."""
    sent = []

    def note(future):
        sent.append(future.message.consistency_level)

    session.add_request_init_listener(note)
    try:
        for everywhere in (False, True, False):
            cassandra_store.execute(ReadBodies(wide_row, (new_id(),), everywhere=everywhere))
    finally:
        session.remove_request_init_listener(note)
    quorum, everyone = ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.ALL
    assert sent == [quorum, everyone, quorum]


# ── Errors ──


def test_a_missing_table_is_a_schema_mismatch(store_connection, connection, new_keyspace):
    """In a keyspace without the schema, reads and writes say what to run."""
    keyspace = new_keyspace(schema=False).name
    connection.session.execute(
        f"CREATE KEYSPACE {keyspace} WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
    )
    session = store_connection.cluster.connect(keyspace)
    try:
        bare = CassandraStore(session)
        with pytest.raises(SchemaMismatch, match="cqueue schema apply"):
            bare.execute(ListQueues())
        first, second = bare.together((ListQueues(), InsertBodies(WideRow("q", 0, 0), ((new_id(), b""),))))
        assert isinstance(first, SchemaMismatch)
        assert isinstance(second, SchemaMismatch)
    finally:
        session.shutdown()


def test_a_closed_store_has_done_nothing(store_connection, wide_row):
    """After `close` nothing leaves the process: not done, also for a conditional mutation."""
    session = store_connection.cluster.connect(store_connection.session.keyspace)
    closed = CassandraStore(session)
    operations = (
        ReadHead(wide_row),
        InsertMessages(wide_row, (message(new_id()),)),
        Mutate(wide_row, lock(1)),
    )
    closed.together(operations)
    closed.close()
    errors = closed.together(operations)
    assert [type(error) for error in errors] == [Unavailable] * 3
    assert all(error.__cause__ is not None for error in errors)
    with pytest.raises(Unavailable):
        closed.sample_time_us()


def test_a_message_too_large_for_the_node_is_not_done(cassandra_store, wide_row):
    """Cassandra refuses it unread; the connection goes on."""
    rows = tuple(message(id_, os.urandom(1 << 20)) for id_ in new_ids(40))
    with pytest.raises(NotDone, match="exceeds"):
        cassandra_store.execute(InsertMessages(wide_row, rows))
    assert cassandra_store.execute(ReadIds(wide_row, 0, ids.START, END, 10)).ids == []
