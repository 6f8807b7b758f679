"""Messages taken from the bytes of an answer have what the driver's own types wrote."""

import struct

from cassandra.cqltypes import (
    BytesType,
    ByteType,
    Int32Type,
    LongType,
    MapType,
    SetType,
    TimeUUIDType,
    UTF8Type,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cqueue import ids
from cqueue.store import packs
from cqueue.store.cells import pairs
from cqueue.store.driver import wire
from cqueue.store.message_page import MessagePage, parse
from cqueue.store.operations import MessageRow

PROTOCOL = 5
TEXT_MAP = MapType.apply_parameters((UTF8Type, UTF8Type))
GONE = SetType.apply_parameters((Int32Type,))
TYPES = (
    ByteType, wire._id_type(TimeUUIDType), BytesType, Int32Type, TEXT_MAP,
    UTF8Type, UTF8Type, UTF8Type, UTF8Type, LongType, LongType, ByteType, GONE,
)  # fmt: skip
TEXTS = ("codec", "task", "key", "trigger")


def in_order(headers):
    """As Cassandra stores them."""
    return dict(sorted(headers.items(), key=lambda item: item[0].encode()))


texts = st.none() | st.text(max_size=6)
whole = st.integers(0, 2**62)
plain = st.builds(
    lambda id_, body, sent_at: MessageRow(0, id_, body, *[None] * 6, sent_at, None, 0),
    st.builds(ids.from_ticks, st.integers(0, 10**17), st.integers(0, 2**62 - 1)),
    st.binary(max_size=20),
    whole,
)
full = st.builds(
    lambda row, size, headers, names, expires: row._replace(
        body=row.body if size is None else None,
        size=size,
        headers=headers,
        expires=expires,
        **dict(zip(TEXTS, names, strict=True)),
    ),
    plain,
    st.none() | st.integers(0, 2**31 - 1),
    st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3).map(in_order),
    st.tuples(texts, texts, texts, texts),
    st.none() | whole,
)


def cell(type_, value):
    data = None if value is None else type_.to_binary(value, PROTOCOL)
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def answer(rows):
    written = [b"".join(map(cell, TYPES, (*row, None))) for row in rows]
    return struct.pack(">i", len(rows)) + b"".join(written)


@settings(deadline=None)
@given(st.lists(plain | full, max_size=12))
def test_a_page_holds_what_was_written(rows):
    """Small bodies and large ones, any text, null or not."""
    page = parse(answer(rows))
    assert page == MessagePage.of(rows)
    assert [page.id_at(place) for place in range(len(page))] == [row.id for row in rows]
    for place, row in enumerate(rows):
        rest = page.rest.get(place)
        assert page.body_at(place) == (row.body or b"")
        if rest is None:
            assert row[3:9] == (None,) * 6
            assert row.expires is None
            continue
        assert (rest.size, rest.sent_at, rest.expires) == (row.size, row.sent_at, row.expires)
        for name in TEXTS:
            stored = getattr(rest, name)
            assert (None if stored is None else stored.decode()) == getattr(row, name)
        assert (None if rest.headers is None else dict(pairs(rest.headers))) == row.headers


numbers = st.none() | st.integers(-5, 5) | st.integers(-(2**31), 2**31 - 1)
times = st.none() | st.integers(-5, 2**45) | st.integers(-(2**63), 2**63 - 1)
marks = st.none() | st.sets(st.integers(-300, 2000) | st.integers(0, 4).map(lambda at: at * 257), max_size=3)


def stored_row(row, packed, values):
    """Columns as a damaged row may have them: any of them null, or a value that nobody writes."""
    body, size, sent_at, expires, format_, gone, keep = values
    id_ = ids.packed(ids.ticks_of(row.id), row.id, 3)[0] if packed else row.id
    columns = (0, id_, body, size, *row[4:9], sent_at, expires, format_, gone or None)
    return tuple(value if at < 2 or at in keep else None for at, value in enumerate(columns))


bodies = st.none() | st.binary(max_size=12) | st.just(struct.pack(">3H", 1, 0, 2) + b"abc")
damaged_rows = st.builds(
    stored_row,
    full,
    st.booleans(),
    st.tuples(
        bodies,
        st.none() | numbers,
        st.just(7) | times,
        st.none() | times,
        st.sampled_from([0, 1]) | st.none() | st.integers(-128, 127),
        st.none() | marks,
        st.just(set(range(2, 13))) | st.sets(st.integers(2, 12)),
    ),
)


@settings(deadline=None)
@given(st.lists(damaged_rows, max_size=8, unique_by=lambda row: row[1]))
def test_damaged_rows_disturb_no_others(rows):
    """Whatever stands in a row, no error is raised, and both ways to read it agree on what it holds."""
    data = struct.pack(">i", len(rows)) + b"".join(b"".join(map(cell, TYPES, row)) for row in rows)
    page, found = parse(data), packs.messages(rows)
    assert page.starts[-1] == len(data)
    assert {page.id_at(place): why for place, why in page.damaged.items()} == {
        id_: why for id_, why in found.damaged.items() if not (ids.is_packed(id_) and "format is not" in why)
    }
    kept = MessagePage.joined(list(page.messages(ids.START, 1 << 128)))
    read = {row.id: row for row in found.messages}
    assert [id_ for id_ in kept.ids() if id_ in read] == [row.id for row in found.messages]
    for place, id_ in enumerate(kept.ids()):
        if id_ in read:
            assert kept.body_at(place) == (read[id_].body or b"")


@settings(deadline=None)
@given(st.lists(damaged_rows, max_size=8, unique_by=lambda row: row[1]))
def test_ids_of_damaged_rows_are_listed(rows):
    """A reader of ids alone passes over no row that another one may have to quarantine, or deliver."""
    short = [(row[1], row[11], row[12]) for row in rows]
    listed = set(packs.live_ids(short, ids.START, packs.EVERY))
    found = packs.messages(rows)
    assert {row.id for row in found.messages} <= listed
    gone = set(packs.wholly_gone(short))
    assert not gone & {row.id for row in found.messages}
    assert all(any(ids.is_any_of_row(id_, [one]) for one in listed) for id_ in set(found.damaged) - gone)
