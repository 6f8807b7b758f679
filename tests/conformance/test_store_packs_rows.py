"""Messages that share a row: what stands in Cassandra's tables."""

# ruff: noqa: S608 - put together from constants of this module

import pytest

from cqueue.store.cassandra import CassandraStore
from cqueue.store.operations import ReadMessages
from tests.conformance.test_store_packs import delete, ids_of, insert, live, pack
from tests.fix_store import now_us

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
