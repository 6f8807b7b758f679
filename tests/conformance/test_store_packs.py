"""Messages that share a row: every store gives them out as if each had its own."""

import random

from cqueue import ids
from cqueue.store.operations import DeleteMessages, InsertMessages, ReadIds, ReadMessages, ReadSlice
from tests.fix_store import message, new_id, now_us

END = ids.highest_at(now_us() + 86_400_000_000)


def pack(count, at_us=None, **columns):
    """Messages with different bodies, some of them empty, that share the rest."""
    some = ids.packed((at_us or now_us()) * 10, random.getrandbits(62), count)
    shared = {"format": 0, **columns}
    return [message(id_, b"%d" % id_ * (place % 4), **shared) for place, id_ in enumerate(some)]


def insert(store, wide_row, *several):
    for rows in several:
        store.execute(InsertMessages(wide_row, tuple(rows)))


def delete(store, wide_row, *some):
    store.execute(DeleteMessages(wide_row, 0, tuple(some)))


def ids_of(rows):
    return [row.id for row in rows]


def live(store, wide_row):
    return store.execute(ReadIds(wide_row, 0, ids.START, END, 10_000)).ids


def test_a_pack_comes_back_as_its_messages(store, wide_row):
    """All columns of all messages, in order; by range and by id."""
    rows = pack(100, headers={"a": "1", "b": "ключ"}, codec="json", task="t", key="k", trigger="x", expires=5)
    insert(store, wide_row, rows)
    assert store.execute(ReadSlice(wide_row, 0, ids.START, END, 200)).rows == rows
    assert store.execute(ReadMessages(wide_row, 0, tuple(ids_of(rows)))) == rows
    assert live(store, wide_row) == ids_of(rows)


def test_packs_of_all_sizes(store, wide_row):
    """From two messages to the most, up to the largest bodies, beside single ones."""
    rows = [message(new_id(), format=0)]
    for at, count in enumerate((2, 3, 127, 128, 255, ids.MOST_PACKED)):
        rows += pack(count, now_us() + 1000 * at)
    large = pack(2, now_us() + 10_000)
    rows += [row._replace(body=bytes([place]) * 0xFFFF) for place, row in enumerate(large)]
    insert(store, wide_row, rows)
    assert store.execute(ReadSlice(wide_row, 0, ids.START, END, 10_000)).rows == rows


def test_several_packs_and_rows_with_columns_in_one_flush(store, wide_row):
    """Packs that differ in columns, in one batch with single messages that do."""
    start = now_us()
    rows = [
        *pack(3, start, task="a"),
        message(new_id(start + 1), format=0, headers={"h": "v"}),
        *pack(5, start + 2),
        message(new_id(start + 3), None, size=70_000, format=0),
    ]
    insert(store, wide_row, rows)
    assert store.execute(ReadSlice(wide_row, 0, ids.START, END, 100)).rows == rows


def test_messages_of_a_pack_die_one_by_one(store, wide_row):
    """Each is deleted alone, the last ones by one that does not know of the others."""
    rows = pack(6)
    insert(store, wide_row, rows)
    left = ids_of(rows)
    for dead in (3, 0, 3, 2, 0):
        delete(store, wide_row, left.pop(dead))
        assert live(store, wide_row) == left
        assert ids_of(store.execute(ReadMessages(wide_row, 0, tuple(ids_of(rows))))) == left
        assert ids_of(store.execute(ReadSlice(wide_row, 0, ids.START, END, 100)).rows) == left


def test_sending_again_revives_nothing(store, wide_row):
    """Neither a message that was deleted alone, nor a pack that is gone as a whole."""
    rows = pack(4)
    insert(store, wide_row, rows)
    delete(store, wide_row, rows[1].id)
    insert(store, wide_row, rows)
    assert live(store, wide_row) == ids_of([rows[0], *rows[2:]])
    delete(store, wide_row, *ids_of(rows))
    insert(store, wide_row, rows)
    assert live(store, wide_row) == []


def test_a_delete_that_comes_before_its_insert(store, wide_row):
    """Wins all the same, of one message and of all."""
    some, others = pack(3), pack(3, now_us() + 50)
    delete(store, wide_row, some[2].id)
    delete(store, wide_row, *ids_of(others))
    assert live(store, wide_row) == []
    assert store.execute(ReadSlice(wide_row, 0, ids.START, END, 10)).rows == []
    insert(store, wide_row, some, others)
    assert live(store, wide_row) == ids_of(some[:2])


def test_the_first_that_are_live(store, wide_row):
    """A limit counts messages that live, whichever rows they stand in."""
    some, others = pack(3), pack(3, now_us() + 50)
    single = message(new_id(now_us() + 100), format=0)
    insert(store, wide_row, some, others, [single])
    asked = tuple(ids_of([*some, *others, single]))
    delete(store, wide_row, *ids_of([*some, others[0]]))
    assert store.execute(ReadMessages(wide_row, 0, asked, 1)) == [others[1]]
    assert store.execute(ReadMessages(wide_row, 0, asked, 3)) == [*others[1:], single]


def test_ranges_that_cut_packs(store, wide_row):
    """Any bounds and any limit, whatever was deleted, give what a list of messages would."""
    rng = random.Random(11)
    start = now_us()
    rows = []
    for at in range(40):
        count = rng.choice((1, 1, 2, 5, 60, 128))
        rows += [message(new_id(start + at), format=0)] if count == 1 else pack(count, start + at)
    rows.sort(key=lambda row: row.id)
    insert(store, wide_row, rows)
    alive = {row.id: row for row in rows}
    for _ in range(60):
        after, upto = sorted((rng.choice(rows).id + rng.choice((-1, 0, 1)), rng.choice(rows).id))
        if rng.random() < 0.2:
            after, upto = ids.START, END
        limit = rng.choice((1, 2, 7, 100, 1000, 5000))
        expected = [alive[id_] for id_ in sorted(alive) if after < id_ <= upto][:limit]
        assert store.execute(ReadSlice(wide_row, 0, after, upto, limit)).rows == expected
        assert store.execute(ReadIds(wide_row, 0, after, upto, limit)).ids == ids_of(expected)
        dead = [id_ for id_ in alive if rng.random() < 0.04]
        if len(expected) > 1 and rng.random() < 0.5:
            dead += ids_of(expected)
        if dead:
            delete(store, wide_row, *dead)
        for id_ in dead:
            alive.pop(id_, None)
    assert len(alive) < len(rows)
