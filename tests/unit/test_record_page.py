"""What is taken from the bytes of an answer is what the driver decodes: records, messages, Arrow columns."""

import io
import struct

from cassandra.cqltypes import BytesType, MapType, TimeUUIDType, UTF8Type
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.log import arrow
from cqueue.log.protocol.source import Stretch, passed_upto
from cqueue.store import driver
from cqueue.store.cassandra_log import _page
from cqueue.store.cells import pairs, text_map
from cqueue.store.driver import wire
from cqueue.store.log_operations import RecordRow
from cqueue.store.record_page import RecordPage

PROTOCOL = 5
TEXT_MAP = MapType.apply_parameters((UTF8Type, UTF8Type))
TYPES = (wire._id_type(TimeUUIDType), UTF8Type, UTF8Type, TEXT_MAP, BytesType)
METADATA = [("ks", "log", name, type_) for name, type_ in zip(RecordRow._fields, TYPES, strict=True)]


def in_order(headers):
    """As Cassandra stores them."""
    return dict(sorted(headers.items(), key=lambda item: item[0].encode()))


texts = st.text(max_size=8)
rows = st.builds(
    RecordRow,
    st.builds(ids.from_ticks, st.integers(0, 10**17), st.integers(0, 2**62 - 1)),
    texts,
    st.none() | texts,
    st.none() | st.dictionaries(texts, texts, max_size=3).map(in_order),
    st.binary(max_size=20),
)


def int_(number):
    return struct.pack(">i", number)


def cell(data):
    return int_(-1) if data is None else int_(len(data)) + data


def frame(some):
    """The body of an answer without metadata, written by the driver's own types."""
    no_metadata = int_(0x0004) + int_(len(TYPES))
    cells = (
        cell(None if value is None else type_.to_binary(value, PROTOCOL))
        for row in some
        for type_, value in zip(TYPES, row, strict=True)
    )
    return no_metadata + int_(len(some)) + b"".join(cells)


def decoded(data, metadata):
    """What the protocol handler makes of the answer."""
    result = driver.used().protocol_handler.message_types_by_opcode[8](kind=2)
    result.recv_results_rows(io.BytesIO(data), PROTOCOL, {}, metadata, None)
    return _page(result.parsed_rows)


@given(st.lists(rows, max_size=12))
def test_raw_rows_are_the_drivers_rows(some):
    """Null keys, empty headers, any text, empty bodies; and the same when the mark was lost."""
    raw, plain = (decoded(frame(some), columns(METADATA)) for columns in (wire._RawColumns, list))
    assert list(raw.rows()) == list(plain.rows()) == some
    assert raw == plain
    assert len(raw) == len(some)
    assert list(raw.rows(0, len(some) // 2)) == some[: len(some) // 2]
    assert [raw.id_at(place) for place in range(len(some))] == [row.id for row in some]


@given(st.dictionaries(texts, texts, max_size=4))
def test_headers_survive(headers):
    assert dict(pairs(text_map(headers))) == headers


@given(st.lists(rows, min_size=1, max_size=12), st.data())
def test_arrow_columns_hold_the_same(some, data):
    """Cell by cell, null where it was null; also of a part of a page."""
    start = data.draw(st.integers(0, len(some)))
    stop = data.draw(st.integers(start, len(some)))
    batch = arrow.batch_of([Stretch(3, decoded(frame(some), wire._RawColumns(METADATA)), start, stop)])
    batch.validate(full=True)
    assert batch.schema == arrow.SCHEMA
    for found, row in zip(batch.to_pylist(), some[start:stop], strict=True):
        assert (found["partition"], found["topic"]) == (3, row.topic)
        assert (found["key"], found["body"]) == (row.key, row.body)
        assert found["id"] == ids.to_bytes(row.id)
        assert (None if found["headers"] is None else dict(found["headers"])) == row.headers
    times = batch.column("time").cast("int64").to_pylist()
    assert times == [ids.time_us(row.id) for row in some[start:stop]]


@given(st.lists(st.tuples(rows, st.integers(0, 3)), min_size=1, max_size=20), st.booleans())
def test_stretches_of_partitions_become_one_batch_in_order(some, reverse):
    """Whatever was read from where; each record keeps its partition, and its own cells."""
    some = list({row.id: (row, partition) for row, partition in some}.values())
    found = []
    for wanted in range(4):
        mine = sorted((row for row, at in some if at == wanted), reverse=reverse, key=lambda row: row.id)
        page, middle = RecordPage.of(mine), len(mine) // 2
        found += [Stretch(wanted, page, 0, middle), Stretch(wanted, page, middle, len(mine))]
    batch = arrow.batch_of(found, reverse=reverse).to_pylist()
    expected = sorted(some, key=lambda pair: pair[0].id, reverse=reverse)
    for row, (record, partition) in zip(batch, expected, strict=True):
        assert (row["id"], row["partition"]) == (ids.to_bytes(record.id), partition)
        assert (row["topic"], row["key"], row["body"]) == (record.topic, record.key, record.body)


@given(st.lists(rows, max_size=12), st.integers(0, 10**17), st.booleans())
def test_a_watermark_divides_a_stretch(some, ticks, reverse):
    """Forwards what is up to it is passed, backwards what is above it."""
    some = sorted({row.id: row for row in some}.values(), key=lambda row: row.id, reverse=reverse)
    watermark = ids.from_ticks(ticks, 0)
    stretch = Stretch(0, RecordPage.of(some), 0, len(some))
    passed = [row for row in some if (row.id > watermark if reverse else row.id <= watermark)]
    assert passed_upto(stretch, watermark, reverse=reverse) == len(passed)
