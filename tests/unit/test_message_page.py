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
from cqueue.store import wire
from cqueue.store.cells import pairs
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


rows_in_part = st.builds(
    lambda row, keep: tuple(
        value if column < 2 or column in keep else None for column, value in enumerate((*row, None))
    ),
    full,
    st.sets(st.integers(2, 11)),
)


@settings(deadline=None)
@given(st.lists(st.tuples(rows_in_part, st.booleans()), max_size=8))
def test_rows_that_a_read_repair_brought_in_part_disturb_no_others(some):
    """Any columns may be missing, wherever in the page such a row stands, of packs as well."""
    rows = [
        (row[0], ids.packed(ids.ticks_of(row[1]), row[1], 3)[0], None, *row[3:]) if is_packed else row
        for row, is_packed in some
    ]
    data = struct.pack(">i", len(rows)) + b"".join(b"".join(map(cell, TYPES, row)) for row in rows)
    page = parse(data)
    assert page.ids() == [row[1] for row in rows]
    assert page.starts[-1] == len(data)
    alone = [row[1] for row, (_, is_packed) in zip(rows, some, strict=True) if not is_packed]
    kept = MessagePage.joined(list(page.messages(ids.START, 1 << 128)))
    assert [id_ for id_ in kept.ids() if id_ in alone] == alone
