"""Records taken from the bytes of an answer are those that the driver decodes, as rows and as columns."""

import io
import struct

from cassandra.cqltypes import BytesType, MapType, TimeUUIDType, UTF8Type
from hypothesis import given, settings
from hypothesis import strategies as st

from cqueue import ids
from cqueue.log import arrow
from cqueue.log.batches import Batch, in_order
from cqueue.protocol.columns import PartitionStretch, Stretch
from cqueue.store import wire
from cqueue.store.cassandra_log import _columns
from cqueue.store.log_operations import RecordRow
from cqueue.store.record_columns import RecordColumns, pairs, text_map
from cqueue.store.requests import Answer

PROTOCOL = 5
TEXT_MAP = MapType.apply_parameters((UTF8Type, UTF8Type))
TYPES = (wire._id_type(TimeUUIDType), UTF8Type, UTF8Type, TEXT_MAP, BytesType)
METADATA = [("ks", "log", name, type_) for name, type_ in zip(RecordRow._fields, TYPES, strict=True)]

texts = st.text(max_size=8)
rows = st.builds(
    RecordRow,
    st.builds(ids.from_ticks, st.integers(0, 10**17), st.integers(0, 2**62 - 1)),
    texts,
    st.none() | texts,
    st.none() | st.dictionaries(texts, texts, max_size=3),
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
    result = wire._IdResult(kind=2)
    result.recv_results_rows(io.BytesIO(data), PROTOCOL, {}, metadata, None)
    return _columns(Answer(result.parsed_rows, None))


@settings(deadline=None)
@given(st.lists(rows, max_size=12))
def test_raw_rows_are_the_drivers_rows(some):
    """Null keys, empty headers, any text, empty bodies; and the same when the mark was lost."""
    raw, plain = (decoded(frame(some), columns(METADATA)) for columns in (wire._RawColumns, list))
    assert raw.rows() == plain.rows() == some
    assert raw.columns[:3] == plain.columns[:3]
    assert len(raw) == len(some)


@settings(deadline=None)
@given(st.dictionaries(texts, texts, max_size=4))
def test_headers_survive(headers):
    assert dict(pairs(text_map(headers))) == headers


@settings(deadline=None)
@given(st.lists(rows, max_size=12))
def test_arrow_columns_hold_the_same(some):
    """Cell by cell, null where it was null."""
    batch = arrow.batch_of(Batch(decoded(frame(some), wire._RawColumns(METADATA)), [3] * len(some)))
    batch.validate(full=True)
    assert batch.schema == arrow.SCHEMA
    for found, row in zip(batch.to_pylist(), some, strict=True):
        assert (found["partition"], found["topic"], found["key"], found["body"]) == (
            3,
            row.topic,
            row.key,
            row.body,
        )
        assert found["id"] == ids.to_bytes(row.id)
        assert (None if found["headers"] is None else dict(found["headers"])) == row.headers
    assert batch.column("time").cast("int64").to_pylist() == [ids.time_us(row.id) for row in some]


@settings(deadline=None)
@given(st.lists(st.tuples(rows, st.integers(0, 3)), max_size=20), st.booleans())
def test_stretches_of_partitions_become_one_batch_in_order(some, reverse):
    """Whatever was read from where; each record keeps its partition."""
    some = list({row.id: (row, partition) for row, partition in some}.values())
    found = []
    for wanted in range(4):
        mine = sorted((row for row, at in some if at == wanted), reverse=reverse, key=lambda row: row.id)
        columns, middle = RecordColumns.of(mine), len(mine) // 2
        found += [
            PartitionStretch(wanted, Stretch(columns, 0, middle)),
            PartitionStretch(wanted, Stretch(columns, middle, len(mine))),
        ]
    batch = in_order(found, reverse=reverse)
    expected = sorted(some, key=lambda pair: pair[0].id, reverse=reverse)
    assert list(zip(batch.columns.rows(), batch.partitions, strict=True)) == expected
