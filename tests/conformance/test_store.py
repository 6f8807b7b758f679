"""Messages, bodies and slices: what every store promises. See also test_store_*.py."""

import random

import pytest

from cqueue import ids
from cqueue.errors import Unavailable
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    DropBodies,
    HasMessages,
    IdSlice,
    InsertBodies,
    InsertMessages,
    MessageRow,
    ReadBodies,
    ReadHead,
    ReadIds,
    ReadMessages,
    ReadSlice,
    Slice,
)
from tests.fix_dispatcher import until
from tests.fix_store import message, new_id, new_ids, now_us

END = ids.highest_at(now_us() + 86_400_000_000)
MIB = 1 << 20


def live(store, wide_row, priority=0):
    return store.execute(ReadIds(wide_row, priority, ids.START, END, 10_000)).ids


def insert(store, wide_row, *some, **columns):
    store.execute(InsertMessages(wide_row, tuple(message(id_, **columns) for id_ in some)))


# ── Columns ──


@pytest.mark.parametrize("apart", [False, True])
def test_every_column_comes_back(store, wide_row, apart):
    """A message is read as it was written, whatever its values are, and wherever its body stands."""
    row = MessageRow(
        priority=9,
        id=new_id(),
        body=None if apart else bytes(range(256)),
        size=1_048_576 if apart else None,
        headers={"z": "last", "a": "first", "ключ": "naïve \U0001f600", "empty": ""},
        codec="json",
        task="shop.mail.send",
        key="k" * 200,
        trigger="cron:nightly",
        sent_at=1_700_000_000_123,
        expires=1_800_000_000_456,
        format=0,
    )
    store.execute(InsertMessages(wide_row, (row,)))
    assert store.execute(ReadSlice(wide_row, 9, ids.START, END, 10)).rows == [row]
    assert store.execute(ReadMessages(wide_row, 9, (row.id,))) == [row]


def test_missing_values_stay_missing(store, wide_row):
    """None is read as None: a body elsewhere differs from an empty body, no headers from empty ones."""
    first, second, third = new_ids(3)
    rows = [message(first, None, size=5), message(second, b""), message(third, headers={})]
    store.execute(InsertMessages(wide_row, tuple(rows)))
    assert store.execute(ReadSlice(wide_row, 0, ids.START, END, 10)).rows == rows


def test_an_insert_without_a_value_erases_none(store, wide_row):
    """Columns without a value are not written: a repeat that lacks one leaves what is stored."""
    id_ = new_id()
    insert(store, wide_row, id_, codec="json", headers={"a": "b"})
    insert(store, wide_row, id_)
    assert store.execute(ReadMessages(wide_row, 0, (id_,))) == [
        message(id_, codec="json", headers={"a": "b"})
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_inserts_of_one_id_the_larger_values_stay(store, wide_row, order):
    """In whichever order they come, as their timestamps are the same; more headers are larger."""
    id_ = new_id()
    first = message(id_, b"b", codec="a", headers={"z": "1"})
    for row in (first, message(id_, b"a", headers={"a": "1", "b": "1"}))[::order]:
        store.execute(InsertMessages(wide_row, (row,)))
    merged = first._replace(headers={"a": "1", "b": "1"})
    assert store.execute(ReadMessages(wide_row, 0, (id_,))) == [merged]


def test_one_batch_takes_many_messages_of_several_priorities(store, wide_row):
    """A flush of 500 rows is one operation; priorities are read apart."""
    some = new_ids(500)
    rows = tuple(message(id_, b"x" * 200, priority=i % 3) for i, id_ in enumerate(some))
    store.execute(InsertMessages(wide_row, rows))
    for priority in range(3):
        assert live(store, wide_row, priority) == some[priority::3]


def test_messages_are_no_part_of_the_head(store, wide_row):
    """The head of a wide row with messages only is empty."""
    insert(store, wide_row, new_id())
    head = store.execute(ReadHead(wide_row))
    assert (head.lock, dict(head.cursors), head.slots) == (None, {}, ())


# ── Order and slices ──


def test_ids_come_in_the_order_of_integers(store, wide_row):
    """The integer order of ids is the order of rows, also where only random bytes with high bits differ."""
    rng = random.Random(7)
    start_us = now_us()
    some = [ids.from_ticks(start_us * 10 + rng.randrange(3), rng.getrandbits(62)) for _ in range(300)]
    some += [ids.from_ticks(start_us * 10, 0x80 << 8 * i) for i in range(7)]
    some += [ids.from_ticks(start_us * 10, 0x7F << 8 * i) for i in range(7)]
    insert(store, wide_row, *some)
    assert live(store, wide_row) == sorted(some)


def test_order_is_by_time_and_not_by_bytes(store, wide_row):
    """A UUID begins with the low bits of its time: where they wrap around, later is still later."""
    wrap = ((now_us() * 10 + ids.TICKS_1970) >> 32 << 32) - ids.TICKS_1970
    before, after = ids.from_ticks(wrap - 1, 5), ids.from_ticks(wrap, 5)
    assert ids.to_bytes(before) > ids.to_bytes(after)
    insert(store, wide_row, after, before)
    assert live(store, wide_row) == [before, after]


def test_a_slice_excludes_its_start_and_includes_its_end(store, wide_row):
    """`after` < id <= `upto`."""
    some = new_ids(6)
    insert(store, wide_row, *some)
    found = store.execute(ReadSlice(wide_row, 0, some[1], some[4], 100))
    assert [row.id for row in found.rows] == some[2:5]
    assert store.execute(ReadIds(wide_row, 0, some[1], some[4], 100)).ids == some[2:5]


def test_a_slice_ends_at_its_limit(store, wide_row):
    """At most `limit` rows, the first ones."""
    some = new_ids(6)
    insert(store, wide_row, *some)
    assert [r.id for r in store.execute(ReadSlice(wide_row, 0, ids.START, END, 2)).rows] == some[:2]
    assert store.execute(ReadIds(wide_row, 0, some[0], END, 2)).ids == some[1:3]


def test_an_empty_slice_is_no_error(store, wide_row):
    """Nothing there, or bounds that contain nothing: an empty answer."""
    assert store.execute(ReadSlice(wide_row, 0, ids.START, END, 10)) == Slice([], 0)
    insert(store, wide_row, id_ := new_id())
    assert store.execute(ReadIds(wide_row, 0, id_, id_, 10)) == IdSlice([], 0)
    assert store.execute(ReadIds(wide_row, 0, END, ids.START, 10)) == IdSlice([], 0)


def test_a_wide_row_has_messages_until_all_are_deleted(store, wide_row):
    """Of whatever priority, and not those of another one."""
    first, last = new_ids(2)
    assert not store.execute(HasMessages(wide_row))
    insert(store, wide_row, first, priority=2)
    insert(store, wide_row, last, priority=9)
    for priority, id_ in ((2, first), (9, last)):
        assert store.execute(HasMessages(wide_row))
        assert not store.execute(HasMessages(wide_row._replace(shard=-3)))
        store.execute(DeleteMessages(wide_row, priority, (id_,)))
    assert not store.execute(HasMessages(wide_row))


def test_bounds_of_a_microsecond_hold_all_its_ids(store, wide_row):
    """`highest_at(t)` is above every id of t and `lowest_at(t)` not above any."""
    at_us = now_us() - 1000
    inside = [ids.from_ticks(at_us * 10 + t, bits) for t in (0, 9) for bits in (0, 2**62 - 1, 0x8080808080)]
    outside = [ids.from_ticks(at_us * 10 - 1, 2**62 - 1), ids.from_ticks(at_us * 10 + 10, 0)]
    insert(store, wide_row, *inside, *outside)
    found = store.execute(ReadIds(wide_row, 0, ids.lowest_at(at_us) - 1, ids.highest_at(at_us), 100))
    assert found.ids == sorted(inside)


def test_wide_rows_and_priorities_are_apart(store, wide_row):
    """Each wide row and each priority in it has messages of its own."""
    here, there, urgent = new_ids(3)
    other = wide_row._replace(shard=-3)
    insert(store, wide_row, here, priority=1)
    insert(store, wide_row, urgent, priority=0)
    insert(store, other, there, priority=1)
    assert (live(store, wide_row, 1), live(store, wide_row, 0), live(store, other, 1)) == (
        [here],
        [urgent],
        [there],
    )


def test_given_messages_are_read_in_order(store, wide_row):
    """ReadMessages: those that are live, in id order, repeated ids once, at most `limit`."""
    some = new_ids(5)
    insert(store, wide_row, *some)
    store.execute(DeleteMessages(wide_row, 0, (some[1],)))
    asked = (some[4], some[1], some[0], some[2], some[0], new_id())
    assert [r.id for r in store.execute(ReadMessages(wide_row, 0, asked))] == [some[0], some[2], some[4]]
    assert [r.id for r in store.execute(ReadMessages(wide_row, 0, asked, limit=2))] == [some[0], some[2]]
    assert store.execute(ReadMessages(wide_row, 0, ())) == []
    assert store.execute(ReadMessages(wide_row, 1, asked)) == []


# ── Timestamps ──


def test_the_same_message_twice_is_one(store, wide_row):
    """Sending an id with the same bytes again changes nothing."""
    id_ = new_id()
    for _ in range(3):
        insert(store, wide_row, id_)
    assert store.execute(ReadSlice(wide_row, 0, ids.START, END, 10)).rows == [message(id_)]


@pytest.mark.parametrize("first", ["insert", "delete"])
def test_a_delete_beats_its_insert_in_any_order(store, wide_row, first):
    """A message is dead once deleted, also when its insert arrives later or again."""
    id_ = new_id()
    if first == "insert":
        insert(store, wide_row, id_)
    store.execute(DeleteMessages(wide_row, 0, (id_,)))
    insert(store, wide_row, id_)
    assert live(store, wide_row) == []
    assert store.execute(ReadMessages(wide_row, 0, (id_,))) == []


def test_a_message_due_in_the_future_can_be_deleted(store, wide_row):
    """Its timestamps lie in the future, and the delete's above the insert's."""
    id_ = new_id(now_us() + 3_600_000_000)
    insert(store, wide_row, id_)
    assert live(store, wide_row) == [id_]
    store.execute(DeleteMessages(wide_row, 0, (id_,)))
    insert(store, wide_row, id_)
    assert live(store, wide_row) == []


def test_a_delete_of_several_covers_the_latest(store, wide_row):
    """The timestamp is the largest by time: the largest by bytes may be an earlier one."""
    wrap = ((now_us() * 10 + ids.TICKS_1970) >> 32 << 32) - ids.TICKS_1970
    some = [ids.from_ticks(wrap - 1, 9), ids.from_ticks(wrap + 50, 1), ids.from_ticks(wrap + 100, 0)]
    insert(store, wide_row, *some)
    store.execute(DeleteMessages(wide_row, 0, (some[2], some[0], some[1])))
    insert(store, wide_row, *some)
    assert live(store, wide_row) == []


def test_a_delete_touches_nothing_else(store, wide_row):
    """Neighbours, the same id under another priority, and 499 others stay."""
    some = new_ids(500)
    insert(store, wide_row, *some)
    insert(store, wide_row, some[7], priority=1)
    store.execute(DeleteMessages(wide_row, 0, tuple(some[:7] + some[8:])))
    assert live(store, wide_row) == [some[7]]
    store.execute(DeleteMessages(wide_row, 0, (some[7],)))
    assert (live(store, wide_row), live(store, wide_row, 1)) == ([], [some[7]])


# ── Bodies ──


def test_large_bodies_come_back(store, wide_row):
    """Bodies of up to 1 MiB, more of them than may be under way at once; missing ones are left out."""
    some = new_ids(7)
    bodies = {id_: bytes([i]) * (MIB - i) for i, id_ in enumerate(some)}
    store.execute(InsertBodies(wide_row, tuple(bodies.items())))
    assert store.execute(ReadBodies(wide_row, (*some, new_id()))) == bodies

    def everywhere():
        try:
            return store.execute(ReadBodies(wide_row, tuple(some), everywhere=True))
        except Unavailable:  # all replicas have a second for 7 MiB, which is short for a starved node
            return None

    assert until(everywhere) == bodies
    assert store.execute(ReadBodies(wide_row, ())) == {}
    store.execute(InsertBodies(wide_row, ()))


def test_many_bodies_at_once_come_back(store, wide_row):
    """As many as share a batch or an answer, and more; whether or not their sizes are told."""
    bodies = {id_: bytes([i % 251]) * (5000 + 37 * i) for i, id_ in enumerate(new_ids(700))}
    store.execute(InsertBodies(wide_row, tuple(bodies.items())))
    sizes = tuple(map(len, bodies.values()))
    assert store.execute(ReadBodies(wide_row, tuple(bodies), sizes)) == bodies
    assert store.execute(ReadBodies(wide_row, tuple(bodies))) == bodies


def test_deleted_bodies_stay_dead(store, wide_row):
    """As messages: a delete beats each insert whenever that arrives."""
    dead, other = new_ids(2)
    store.execute(InsertBodies(wide_row, ((dead, b"dead"), (other, b"other"))))
    store.execute(DeleteBodies(wide_row, (dead,)))
    store.execute(InsertBodies(wide_row, ((dead, b"dead"),)))
    assert store.execute(ReadBodies(wide_row, (dead, other))) == {other: b"other"}


def test_dropping_bodies_covers_what_is_not_later(store, wide_row):
    """One tombstone at a time: bodies of ids up to it go and never come back, later ones stay."""
    at_us = now_us() - 1000
    early, exact, late = (new_id(at_us + us) for us in (-1, 0, 1))
    bodies = tuple((id_, b"body") for id_ in (early, exact, late))
    store.execute(InsertBodies(wide_row, bodies))
    store.execute(DropBodies(wide_row, at_us))
    store.execute(DropBodies(wide_row, at_us - 1))
    store.execute(InsertBodies(wide_row, bodies))
    assert store.execute(ReadBodies(wide_row, (early, exact, late))) == {late: b"body"}


# ── Side by side ──


def test_together_answers_in_order(store, wide_row):
    """Results stand where their operations stood, of whatever kind they are."""
    some = new_ids(3)
    insert(store, wide_row, *some)
    store.execute(InsertBodies(wide_row, ((some[0], b"body"),)))
    results = store.together(
        (
            ReadIds(wide_row, 0, ids.START, END, 1),
            ReadBodies(wide_row, (some[0],)),
            InsertMessages(wide_row, (message(new_id(), priority=5),)),
            ReadIds(wide_row, 0, some[0], END, 10),
        )
    )
    assert results == [IdSlice([some[0]], 0), {some[0]: b"body"}, None, IdSlice(some[1:], 0)]
    assert store.together(()) == []


def test_time_samples_are_of_now(store):
    """Each sample is the cluster's time at the moment of return, with the round trip it took."""
    before_us = now_us()
    samples = store.sample_time_us()
    after_us = now_us()
    for server_us, round_trip_us in samples:
        assert before_us - 100_000 < server_us < after_us + round_trip_us + 100_000
        assert round_trip_us >= 0
