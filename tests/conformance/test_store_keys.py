"""The look-up table of keyed queues: what every store promises."""

import uuid

import pytest

from cqueue.store import decode
from cqueue.store.keys import DeleteKeys, DropKey, InsertKeys, KeyPlace, KeyRow, KeyWrite, ReadKey, ScanKeys

NOON_US = 1_700_000_000_000_000
START = (0, -1)


@pytest.fixture
def place():
    return KeyPlace(f"q@{uuid.uuid4().hex}", "order-17")


def row(number, priority=0, at_us=NOON_US):
    return KeyRow((number << 64) + (1 << 100), priority, NOON_US // 1000, number % 3, at_us)


def read(store, place, after=START, limit=1000):
    return store.execute(ReadKey(place, after, limit))


def insert(store, place, *rows, ttl_s=0):
    store.execute(InsertKeys(tuple(KeyWrite(place, one, ttl_s) for one in rows)))


def delete(store, place, *rows):
    store.execute(DeleteKeys(tuple(KeyWrite(place, one) for one in rows)))


def test_rows_of_several_keys_are_written_together(store, place):
    """In one batch, and deleted so."""
    other = place._replace(key="x" * 1000)
    store.execute(InsertKeys((KeyWrite(place, row(1)), KeyWrite(other, row(2)), KeyWrite(place, row(3)))))
    assert (read(store, place), read(store, other)) == ([row(1), row(3)], [row(2)])
    store.execute(DeleteKeys((KeyWrite(place, row(1)), KeyWrite(other, row(2)))))
    assert (read(store, place), read(store, other)) == ([row(3)], [])


def test_rows_come_in_order_and_in_pages(store, place):
    """By id and priority: the same id with another priority is another message."""
    rows = [row(1), row(2, 3), row(2, 7), row(3), row(4)]
    insert(store, place, *reversed(rows))
    assert read(store, place) == rows
    assert read(store, place, limit=2) == rows[:2]
    assert read(store, place, rows[1][:2], limit=2) == rows[2:4]
    assert read(store, place, rows[-1][:2]) == []
    assert read(store, place._replace(key="order-18")) == []


def test_the_later_write_wins_and_a_delete_wins_a_tie(store, place):
    """A row that was read and deleted stays away, unless it has been written again since."""
    insert(store, place, row(1), row(2))
    delete(store, place, row(1))
    insert(store, place, row(1))
    assert read(store, place) == [row(2)]
    again = row(1, at_us=NOON_US + 1)
    insert(store, place, again)
    delete(store, place, row(1), row(3))
    assert read(store, place) == [again, row(2)]
    insert(store, place, row(1))
    assert read(store, place) == [again, row(2)], "an insert that comes late changes nothing"


def test_writes_count_by_their_timestamps_in_whatever_order_they_come(store, place):
    """An older insert changes no newer row, and an older delete makes no room for what a newer one covers."""
    first, second, third = (row(1, at_us=NOON_US + at) for at in range(3))
    insert(store, place, second)
    insert(store, place, first)
    assert read(store, place) == [second]
    delete(store, place, third)
    delete(store, place, first)
    insert(store, place, second)
    assert read(store, place) == []


def test_rows_expire(store, place, eventually):
    """With their time to live, counted from the write."""
    insert(store, place, row(1), ttl_s=3)
    insert(store, place, row(2), ttl_s=1000)
    assert len(read(store, place)) == 2
    eventually(lambda: read(store, place) == [row(2)])


def test_a_key_is_dropped_whole(store, place):
    """What was written later stays."""
    later = row(3, at_us=NOON_US + 10)
    insert(store, place, row(1), row(2), later)
    store.execute(DropKey(place, NOON_US + 9))
    assert read(store, place) == [later]


def test_a_scan_finds_all_keys(store, place):
    """Each once, page by page, of all queues."""
    wanted = {place._replace(key=f"key-{number}") for number in range(25)}
    for one in wanted:
        insert(store, one, row(1), row(2))
    found, token = [], -(1 << 63)
    while page := store.execute(ScanKeys(token, 7)):
        assert len(page) <= 7
        found += [one for one, _ in page if one.queue == place.queue]
        token = page[-1][1]
    assert len(found) == 25
    assert set(found) == wanted


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((1, 10, 0, 0, 5), "priority"),
        ((1, 0, None, 0, 5), "time_shard is null"),
        ((1, 0, 0, 1000, 5), "shard"),
        ((1, 0, 0, 0, None), "write timestamp is null"),
    ],
)
def test_damaged_rows_are_told_apart(place, values, why):
    """What nobody can have written is reported; the rows beside it are read."""
    found = decode.key_rows(place, [values, row(2)])
    assert found.values == [row(2)]
    (damage,) = found.damages
    assert (damage.table, damage.key) == ("message_keys", (*place, *values[:2]))
    assert why in damage.reason
