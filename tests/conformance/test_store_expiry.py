"""Rows that would expire after the last date that Cassandra knows, and rows that have expired."""

import uuid

from cqueue.store.control import KeepResult, ReadResult, ResultRow
from cqueue.store.keys import (
    InsertKeys,
    KeyPlace,
    KeyRow,
    KeyWrite,
    Place,
    ReadKey,
    ReadReservation,
    ReservationRow,
    WriteReservation,
)
from cqueue.store.log_operations import AppendRecords, LogShard, ReadLogShards, RecordRow, RegisterLogShard
from cqueue.store.memory_rows import SWEPT_FROM, Expiring
from cqueue.store.record_page import ReadRecordPage
from tests.fix_store import new_id, now_us

LATE_S = 12 * 365 * 86_400
"""A time to live that ends after January 2038."""


def test_what_would_expire_too_late_for_cassandra_is_stored_all_the_same(store):
    """It refuses such a row: a log would take no record any more, and a result would hold its ack up."""
    name = f"{uuid.uuid4().hex}@1"
    result = ResultRow(name, "succeeded", "json", b"[1]", None, None, 1_000)
    store.execute(KeepResult(result, LATE_S))
    assert store.execute(ReadResult(name)) == result
    shard, record = LogShard(name, 3, 600_000), RecordRow(new_id(), "clicks", None, None, b"1")
    store.execute(RegisterLogShard(shard, LATE_S))
    store.execute(AppendRecords(shard, (record,), LATE_S))
    assert store.execute(ReadLogShards(name, (600_000,))) == {600_000: {3}}
    assert list(store.execute(ReadRecordPage(shard, 0, 1 << 123, 10)).rows()) == [record]
    place = Place(600_000, 0, 0, new_id())
    first = ReservationRow(name, "k", place, None, now_us(), sent=False)
    assert store.execute(WriteReservation(first, LATE_S))
    assert store.execute(WriteReservation(first._replace(sent=True), LATE_S, place))
    assert store.execute(ReadReservation(name, "k")) == first._replace(sent=True)
    key = KeyRow(new_id(), 0, 600_000, 0, now_us())
    store.execute(InsertKeys((KeyWrite(KeyPlace(name, "k"), key, LATE_S),)))
    assert store.execute(ReadKey(KeyPlace(name, "k"), (0, -1), 10)) == [key]


def test_a_store_in_memory_forgets_what_has_expired():
    """A program that keeps results for a minute holds those of some minutes, however long it runs."""
    now_s = 0
    rows = Expiring[int, None](lambda: now_s * 1_000_000)
    rows.put(-1, None, 0)
    for now_s in range(100 * SWEPT_FROM):
        rows.put(now_s, None, 60)
    assert len(rows._rows) <= 2 * SWEPT_FROM
    assert set(rows.alive()) == {-1, *range(now_s - 59, now_s + 1)}
