"""Rows of messages that nobody wrote as they are: what is read of them, and of those beside them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.store import packs
from cqueue.store.cells import Unreadable
from cqueue.store.operations import MessageRow

texts = st.none() | st.text(max_size=6) | st.just(Unreadable(b"\xff"))
headers = st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3)
numbers = st.none() | st.integers(-5, 5) | st.integers(-(2**31), 2**31 - 1)
times = st.none() | st.just(7) | st.integers(-5, 2**45) | st.integers(-(2**63), 2**63 - 1)
marks = st.none() | st.sets(st.integers(-300, 2000) | st.integers(0, 4).map(lambda at: at * 257), max_size=3)
bodies = st.none() | st.binary(max_size=12) | st.just(struct.pack(">3H", 1, 0, 2) + b"abc")
formats = st.sampled_from([0, 1]) | st.none() | st.integers(-128, 127)


def stored_row(ticks, packed, columns, keep):
    """Columns as a damaged row may have them: any of them null, or a value that nobody writes."""
    id_ = ids.packed(ticks, ticks, 3)[0] if packed else ids.from_ticks(ticks, ticks)
    row = (0, id_, *columns)
    return tuple(value if at < 2 or at in keep else None for at, value in enumerate(row))


damaged_rows = st.builds(
    stored_row,
    st.integers(0, 10**17),
    st.booleans(),
    st.tuples(bodies, numbers, headers, texts, texts, texts, texts, times, times, formats, marks),
    st.just(set(range(2, 13))) | st.sets(st.integers(2, 12)),
)
several = st.lists(damaged_rows, max_size=8, unique_by=lambda row: row[1])


@given(several)
def test_damaged_rows_disturb_no_others(rows):
    """Whatever stands in a row, no error is raised, and the others hold what they hold without it."""
    found = packs.messages(rows)
    alone = [packs.messages([row]) for row in rows]
    assert found.messages == [message for one in alone for message in one.messages]
    assert found.damaged == {id_: why for one in alone for id_, why in one.damaged.items()}
    for message in found.messages:
        assert (message.body is None) != (message.size is None)
        assert message.format == packs.SINGLE
        assert 0 <= message.sent_at <= packs.LAST_MS
        assert not any(isinstance(value, Unreadable) for value in message)


@given(several)
def test_ids_of_damaged_rows_are_listed(rows):
    """A reader of ids alone passes over no row that another one may have to quarantine, or deliver."""
    short = [(row[1], row[11], row[12]) for row in rows]
    listed = set(packs.live_ids(short, ids.START, packs.EVERY))
    found = packs.messages(rows)
    assert {row.id for row in found.messages} <= listed
    gone = set(packs.wholly_gone(short))
    assert not gone & {row.id for row in found.messages}
    assert all(any(ids.is_any_of_row(id_, [one]) for one in listed) for id_ in set(found.damaged) - gone)


@given(damaged_rows)
def test_a_plain_row_is_not_damaged(row):
    """Most rows are read without a look at each column; none of them may have something wrong."""
    plain = (0, ids.from_ticks(7, 7), b"body", *[None] * 6, 7, None, packs.SINGLE, None)
    assert packs._is_plain(plain)
    for column in range(1, 13):
        one = (*plain[:column], row[column], *plain[column + 1 :])
        if packs._is_plain(one):
            assert not packs.is_partial(one)
            assert packs.damage(one) is None
            assert not ids.is_packed(one[1])


@pytest.mark.parametrize("column", ["body", "sent_at", "format"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_row_that_lacks_one_column_is_set_aside(packed, column):
    """Reads of ids list it, so that its wide row is not dropped with it."""
    id_ = ids.packed(7, 7, 2)[0] if packed else ids.from_ticks(7, 7)
    columns = dict.fromkeys(MessageRow._fields) | {"priority": 0, "id": id_, "sent_at": 7}
    columns |= {"body": struct.pack(">2H", 1, 1) + b"ab" if packed else b"a", "format": int(packed)}
    sound = (*columns.values(), None)
    row = (*(columns | {column: None}).values(), None)
    assert len(packs.messages([sound]).messages) == 1 + packed
    assert packs.messages([row]).messages == []
    assert list(packs.messages([row]).damaged) == [id_]
    assert id_ in packs.live_ids([(id_, row[11], row[12])], ids.START, packs.EVERY)


def test_marks_alone_are_no_message():
    """They came after the tombstone of their pack was forgotten."""
    row = (0, ids.packed(7, 7, 2)[0], *[None] * 10, {0})
    assert packs.messages([row]) == ([], {})
    assert list(packs.live_ids([(row[1], None, {0})], ids.START, packs.EVERY)) == []
