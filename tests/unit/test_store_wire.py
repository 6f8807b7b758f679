"""Our own encoding and decoding agree with the driver's."""

import inspect
import logging
import re
import struct
from types import SimpleNamespace
from uuid import UUID

import pytest
from cassandra import ConsistencyLevel
from cassandra.cqltypes import (
    BytesType,
    ByteType,
    Int32Type,
    ListType,
    LongType,
    MapType,
    SetType,
    TimeUUIDType,
    UTF8Type,
)
from cassandra.protocol import BatchMessage, ExecuteMessage, ProtocolHandler
from cassandra.query import UNSET_VALUE, BatchType
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.store import cells, codec, driver, requests, statements
from cqueue.store.driver import wire
from cqueue.store.operations import MessageRow, Mutate, WideRow
from tests.fix_store import message

PROTOCOL = 5
message_ids = st.builds(ids.from_ticks, st.integers(0, 10**17), st.integers(0, 2**62 - 1))
UUID_LIST = ListType.apply_parameters((TimeUUIDType,))


@given(message_ids)
def test_an_id_is_the_drivers_uuid(id_):
    """The same bytes as of a UUID object, both ways."""
    data = TimeUUIDType.to_binary(ids.to_uuid(id_), PROTOCOL)
    assert wire._id_type(TimeUUIDType).to_binary(id_, PROTOCOL) == data
    assert wire._id_type(TimeUUIDType).from_binary(data, PROTOCOL) == id_


@given(st.lists(message_ids, max_size=20))
def test_a_list_of_ids_is_the_drivers_list(some):
    """The same bytes as of a list of UUID objects, both ways; no element is an empty list."""
    data = UUID_LIST.to_binary([ids.to_uuid(id_) for id_ in some], PROTOCOL)
    assert wire._id_type(UUID_LIST).to_binary(some, PROTOCOL) == data
    assert wire._id_type(UUID_LIST).from_binary(data, PROTOCOL) == tuple(some)


def test_null_stays_null():
    """A column that is not set is None."""
    assert wire._id_type(TimeUUIDType).from_binary(None, PROTOCOL) is None
    assert wire._id_type(UUID_LIST).from_binary(None, PROTOCOL) is None


def test_other_types_are_left_alone():
    """Only timeuuid and collections of it are taken over, and the driver's registry knows nothing of it."""
    for type_ in (LongType, SetType.apply_parameters((LongType,)), MapType.apply_parameters((UTF8Type,) * 2)):
        assert wire._id_type(type_) is type_
    assert isinstance(TimeUUIDType.from_binary(UUID(int=1).bytes, PROTOCOL), UUID)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5))
def test_headers_are_the_drivers_map(headers):
    """The driver reads back what we write; the order in which they were given does not show."""
    assert cells.text_map(headers) == cells.text_map(dict(reversed(headers.items())))
    text_map = MapType.apply_parameters((UTF8Type, UTF8Type))
    assert dict(text_map.from_binary(cells.text_map(headers), PROTOCOL)) == headers


def test_what_is_missing_is_unset():
    """Null would be a tombstone for each column of each message."""
    assert codec.partition(WideRow("q", 1, -1)) == (b"q", struct.pack(">q", 1), struct.pack(">i", -1))
    (row,) = codec.message_cells([message(ids.START, b"")])
    found = wire.values(row)
    assert found[2] == b""
    assert [value is UNSET_VALUE for value in found[3:9]] == [True] * 6
    assert 3 + len(found) == statements.INSERT_MESSAGE.cql.count("?")


def test_all_values_of_a_message_are_sent():
    """As the driver would write them."""
    at = ids.from_ticks(70_000_000_123, 99)
    row = MessageRow(7, at, b"body", 12, {"a": "b"}, "json", "täsk", "k", "t", 1234, 5678, 1)
    types = [
        ByteType, TimeUUIDType, BytesType, Int32Type, MapType.apply_parameters((UTF8Type, UTF8Type)),
        UTF8Type, UTF8Type, UTF8Type, UTF8Type, LongType, LongType, ByteType, LongType,
    ]  # fmt: skip
    expected = [*row, ids.time_us(at)]
    expected[1] = ids.to_uuid(at)
    (found,) = codec.message_cells([row])
    assert wire.values(found) == [
        type_.to_binary(value, PROTOCOL) for type_, value in zip(types, expected, strict=True)
    ]


@pytest.mark.parametrize("count", [1, 2, 500])
@pytest.mark.parametrize("version", [4, 5])
def test_a_batch_of_encoded_rows_is_the_drivers_batch(count, version):
    """The same bytes, whether the driver writes each value or rows are joined."""
    prepared = SimpleNamespace(query_id=b"name of a statement", column_metadata=[None] * 4)
    rows = [[b"queue", b"\0\0", b"row %d" % number, UNSET_VALUE] for number in range(count)]
    first = b"".join(cells.of(value) for value in rows[0][:2])
    encoded = [cells.of(value) + cells.UNSET for _, _, value, _ in rows]

    def encode(queries):
        batch = BatchMessage(BatchType.UNLOGGED, queries, ConsistencyLevel.QUORUM, 9, timestamp=77)
        return driver.used().protocol_handler.encode_message(
            batch, 3, version, compressor=None, allow_beta_protocol_version=False
        )

    theirs = encode([(True, prepared.query_id, row) for row in rows])
    assert encode(wire.EncodedRows(prepared, first, encoded)) == theirs


def execute_message(*, skip_meta):
    return ExecuteMessage(
        b"statement", [b"value", None], ConsistencyLevel.QUORUM, 9, 500, None, 77, skip_meta=skip_meta,
        result_metadata_id=b"columns",
    )  # fmt: skip


@pytest.mark.parametrize(("version", "skip_meta", "flag"), [(5, True, 2), (5, False, 0), (4, True, 0)])
def test_columns_that_are_known_are_not_asked_for(version, skip_meta, flag):
    """Nothing else differs from what the driver sends."""

    def encode(handler):
        msg = execute_message(skip_meta=skip_meta)
        return handler.encode_message(msg, 3, version, compressor=None, allow_beta_protocol_version=False)

    ours, theirs = encode(driver.used().protocol_handler), encode(ProtocolHandler)
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    assert different == ([] if not flag else [(b | flag, b) for _, b in different])
    assert len(different) == (1 if flag else 0)
    if flag:
        at = next(place for place, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        body = 9 + 2 + len(b"statement") + 2 + len(b"columns") + 2
        assert at == body + 3


@pytest.mark.parametrize(
    ("warnings", "count"),
    [
        (None, 0),
        ([], 0),
        (["Aggregation query used without partition key"], 0),
        (["Read 3 live rows and 1500 tombstone cells for query SELECT …; token 7 (see …)"], 1500),
        (["2 nodes scanned up to 1200 tombstones and issued tombstone warnings for query …"], 1200),
        (
            ["Read 0 live rows and 1001 tombstone cells …", "Read 9 live rows and 4000 tombstone cells"],
            4000,
        ),
    ],
)
def test_tombstones_are_read_from_warnings(warnings, count):
    """In both of Cassandra's wordings; the largest counts."""
    assert requests.tombstones(warnings) == count


def test_only_tombstone_warnings_are_silenced(caplog):
    """Any other warning of the server is still logged."""
    requests.silence_warnings()
    requests.silence_warnings()
    log = logging.getLogger("cassandra.protocol")
    assert log.filters.count(requests._is_other) == 1
    with caplog.at_level(logging.WARNING):
        log.warning("Server warning: %s", "Read 0 live rows and 1001 tombstone cells for query …")
        log.warning("Server warning: %s", "something else")
    assert caplog.messages == ["Server warning: something else"]


def test_statements_are_documented_and_placed_by_kind():
    """Each has a reason above it; conditions and timestamps never meet in one statement.

    Rows of workers, members and a log's partitions carry no timestamp of their own: they expire.
    """
    source = inspect.getsource(statements)
    assert len(statements.ALL) > 70
    for name, statement in statements.ALL.items():
        assert re.search(rf"^# .*\.\n{name.split(' ')[0]} = ", source, re.MULTILINE), name
        conditional = statement.kind is statements.Kind.CONDITIONAL
        assert not (conditional and "TIMESTAMP" in statement.cql)
        assert conditional or " IF " not in statement.cql
        if statement.kind is statements.Kind.WRITE:
            timeless = any(
                f"{{keyspace}}.{table}" in statement.cql
                for table in ("workers", "listeners", "log_shards", "subscriptions")
            )
            assert timeless or "USING TIMESTAMP ?" in statement.cql
        assert (statement.kind is statements.Kind.READ) == statement.cql.startswith("SELECT")


@pytest.mark.parametrize("wrong", [{}, {"retire": True}, {"cursors": ((0, 1, 2),)}])
def test_a_mutation_needs_a_condition(wrong):
    """Without one it would be a plain write to rows that only conditional ones may touch."""
    with pytest.raises(ValueError, match="without a condition"):
        Mutate(WideRow("q", 0, 0), **wrong)
