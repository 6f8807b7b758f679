"""Messages that share a row: what stands in Cassandra's tables."""

# ruff: noqa: S608 - put together from constants of this module

import pytest

from cqueue import ids
from cqueue.store import statements
from cqueue.store.cassandra import CassandraStore
from cqueue.store.operations import ReadIds, ReadMessages, ReadSlice
from tests.conformance.test_store_packs import END, delete, ids_of, insert, live, pack
from tests.fix_dispatcher import until
from tests.fix_store import message, new_id, now_us

pytestmark = pytest.mark.cassandra
WHERE = "WHERE queue = %s AND time_shard = %s AND shard = %s AND kind = 3"


def test_half_a_pack_is_refused(cassandra_store, wide_row):
    """Nothing is written of a pack of which messages are missing."""
    rows = pack(4)
    for part in (rows[:3], rows[1:], [*rows[:2], *rows[3:], rows[2]]):
        with pytest.raises(ValueError, match="all of its messages"):
            insert(cassandra_store, wide_row, part)
    assert live(cassandra_store, wide_row) == []


def test_what_stands_in_the_table(cassandra_store, store_connection, wide_row):
    """A pack is one row; what is gone is marked in it; with its last message the row goes."""
    session = store_connection.session

    def rows_there():
        return list(session.execute(f"SELECT id, format, gone FROM messages {WHERE}", wide_row))

    rows = pack(100)
    insert(cassandra_store, wide_row, rows)
    assert [(row.id, row.format, row.gone) for row in rows_there()] == [(rows[0].id, 1, None)]
    delete(cassandra_store, wide_row, *ids_of(rows[10:20]), rows[50].id)
    assert set(rows_there()[0].gone) == {10 * 256 + 19, 50 * 256 + 50}
    delete(cassandra_store, wide_row, *ids_of(rows[:50]))
    delete(cassandra_store, wide_row, *ids_of(rows[50:]))
    assert rows_there() == []


def test_what_a_reader_saw_gone_counts(cassandra_store, store_connection, wide_row):
    """One that takes the rest of a pack over lets the row go, though others deleted the first part."""
    rows = pack(10)
    insert(cassandra_store, wide_row, rows)
    delete(cassandra_store, wide_row, *ids_of(rows[:4]))
    other = CassandraStore(store_connection.session)
    left = other.execute(ReadMessages(wide_row, 0, tuple(ids_of(rows))))
    assert left == rows[4:]
    delete(other, wide_row, *ids_of(left))
    assert not list(store_connection.session.execute(f"SELECT id FROM messages {WHERE}", wide_row))


def test_a_row_of_which_several_deleted_all_is_deleted_by_a_reader(
    cassandra_store, store_connection, wide_row
):
    """None of them knew of the others."""
    rows, others = pack(10), pack(10, now_us() + 100)
    insert(cassandra_store, wide_row, rows, others)
    for part in (rows[:5], rows[5:], others[:9]):
        delete(CassandraStore(store_connection.session), wide_row, *ids_of(part))
    found = f"SELECT id FROM messages {WHERE}"
    assert len(list(store_connection.session.execute(found, wide_row))) == 2
    assert live(cassandra_store, wide_row) == [others[9].id]
    until(lambda: [row.id for row in store_connection.session.execute(found, wide_row)] == [others[0].id])
    assert live(cassandra_store, wide_row) == [others[9].id]


def test_marks_of_a_damaged_row_are_forgotten_once_it_is_mended(cassandra_store, store_connection, wide_row):
    """A client that met them does not take the row for one whose last message it deletes."""
    rows = pack(4)
    insert(cassandra_store, wide_row, rows)
    mend = f"UPDATE messages SET gone = gone - {{7}} {WHERE} AND priority = 0 AND id = %s"
    place = (*wide_row, ids.to_uuid(rows[0].id))
    store_connection.session.execute(mend.replace("-", "+"), place)
    assert cassandra_store.execute(ReadSlice(wide_row, 0, ids.START, END, 100)).damaged == (rows[3].id,)
    store_connection.session.execute(mend, place)
    delete(cassandra_store, wide_row, rows[0].id)
    assert cassandra_store.execute(ReadSlice(wide_row, 0, ids.START, END, 100)).rows == rows[1:]


def test_many_rows_without_messages_are_crossed(cassandra_store, store_connection, wide_row):
    """In few requests, each of which asks for more."""
    start = now_us()
    many = [pack(2, start + n) for n in range(600)]
    insert(cassandra_store, wide_row, *many)
    for place in (0, 1):
        other = CassandraStore(store_connection.session)
        delete(other, wide_row, *(rows[place].id for rows in many[:-1]))
    reader, sent = CassandraStore(store_connection.session), []
    of = reader._requests.send
    reader._requests.send = lambda *args: sent.append(args[0]) or of(*args)
    end = ids.highest_at(start + 10_000)
    assert reader.execute(ReadSlice(wide_row, 0, ids.START, end, 1)).rows == many[-1][:1]
    assert 1 < sent.count(statements.READ_SLICE) < 14


def test_what_a_read_repair_brought_in_part_is_no_message(cassandra_store, store_connection, wide_row):
    """It repairs the columns of its own read: where an insert was not acknowledged, others are missing."""
    rows, others = pack(4), pack(4, now_us() + 100)
    insert(cassandra_store, wide_row, rows, others)
    cut = f"DELETE body, sent_at FROM messages USING TIMESTAMP %s {WHERE} AND priority = 0 AND id = %s"
    at_us = ids.time_us(rows[0].id)
    store_connection.session.execute(cut, (at_us, *wide_row, ids.to_uuid(rows[0].id)))
    assert cassandra_store.execute(ReadSlice(wide_row, 0, ids.START, END, 100)).rows == others
    assert cassandra_store.execute(ReadMessages(wide_row, 0, tuple(ids_of([*rows, *others])))) == others


def test_a_single_row_that_a_read_repair_brought_in_part_may_become_a_message(
    cassandra_store, store_connection, wide_row
):
    """It has the columns that a read of ids repairs; its sender goes on, and must find no row set aside."""
    row = message(new_id(), format=0)
    store_connection.session.execute(
        "INSERT INTO messages (queue, time_shard, shard, kind, priority, id, format) "
        "VALUES (%s, %s, %s, 3, 0, %s, 0) USING TIMESTAMP %s",
        (*wide_row, ids.to_uuid(row.id), ids.time_us(row.id)),
    )
    assert live(cassandra_store, wide_row) == [row.id]
    assert cassandra_store.execute(ReadSlice(wide_row, 0, ids.START, END, 100)) == ([], 0, ())
    assert cassandra_store.execute(ReadMessages(wide_row, 0, (row.id,))) == []
    insert(cassandra_store, wide_row, [row])
    assert cassandra_store.execute(ReadIds(wide_row, 0, ids.START, END, 100)) == ([row.id], 0, ())
    assert cassandra_store.execute(ReadMessages(wide_row, 0, (row.id,))) == [row]


def test_many_messages_of_as_many_packs_are_read_in_parts(cassandra_store, wide_row):
    """Each of them brings its whole pack along."""
    start = now_us()
    many = [pack(3, start + n) for n in range(150)]
    insert(cassandra_store, wide_row, *many)
    asked = [rows[n % 3] for n, rows in enumerate(many)]
    found = cassandra_store.execute(ReadMessages(wide_row, 0, tuple(ids_of(asked))))
    assert found == asked
    delete(cassandra_store, wide_row, *ids_of(asked[:70]))
    first = cassandra_store.execute(ReadMessages(wide_row, 0, tuple(ids_of(asked)), 2))
    assert first == asked[70:72]


def test_a_pack_is_written_and_marked_at_the_time_of_its_ids(cassandra_store, store_connection, wide_row):
    """So that whatever comes late, and in whatever order, a delete wins."""
    at_us = now_us() - 5_000_000
    rows = pack(5, at_us)
    insert(cassandra_store, wide_row, rows)
    delete(cassandra_store, wide_row, rows[0].id)
    found = store_connection.session.execute(
        f"SELECT writetime(body) AS body, writetime(gone) AS gone FROM messages {WHERE}", wide_row
    ).one()
    assert (found.body, list(found.gone)) == (at_us, [at_us])
