"""Our own encoding and decoding agree with the driver's."""

import logging
import struct
from uuid import UUID

import pytest
from cassandra.cqltypes import ListType, LongType, MapType, SetType, TimeUUIDType, UTF8Type
from cassandra.query import UNSET_VALUE
from hypothesis import given
from hypothesis import strategies as st

from cqueue import ids
from cqueue.store import codec, statements, tombstones, wire
from cqueue.store.operations import WideRow
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
    """The driver reads back what we write."""
    text_map = MapType.apply_parameters((UTF8Type, UTF8Type))
    assert dict(text_map.from_binary(codec.text_map(headers), PROTOCOL)) == headers


def test_what_is_missing_is_unset():
    """Null would be a tombstone for each column of each message."""
    (values,) = codec.message_values(WideRow("q", 1, -1), [message(ids.START, b"")])
    assert values[:3] == [b"q", struct.pack(">q", 1), struct.pack(">i", -1)]
    assert values[5] == b""
    assert [value is UNSET_VALUE for value in values[6:12]] == [True] * 6
    assert None not in values
    assert len(values) == statements.INSERT_MESSAGE.cql.count("?")


def test_a_plain_message_has_the_values_that_are_left():
    """Those that are unset for all of them are not sent; nothing else differs."""
    row, at = WideRow("q", 1, -1), ids.lowest_at(1_000_000)
    plain = message(at, b"x")
    (all_,) = codec.message_values(row, [plain])
    (values,) = codec.plain_values(row, [plain])
    assert values == [value for value in all_ if value is not UNSET_VALUE]
    assert len(values) == statements.INSERT_PLAIN_MESSAGE.cql.count("?")
    assert codec.are_plain([plain])
    others = {
        "size": 3, "headers": {"a": "b"}, "codec": "c", "task": "t", "key": "k", "trigger": "r", "expires": 1,
    }  # fmt: skip
    for name, value in others.items():
        assert not codec.are_plain([plain, plain._replace(**{name: value})]), name


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
    assert tombstones.crossed(warnings) == count


def test_only_tombstone_warnings_are_silenced(caplog):
    """Any other warning of the server is still logged."""
    tombstones.silence()
    tombstones.silence()
    log = logging.getLogger("cassandra.protocol")
    assert log.filters.count(tombstones._is_other) == 1
    with caplog.at_level(logging.WARNING):
        log.warning("Server warning: %s", "Read 0 live rows and 1001 tombstone cells for query …")
        log.warning("Server warning: %s", "something else")
    assert caplog.messages == ["Server warning: something else"]


def test_statements_are_documented_and_placed_by_kind():
    """Each has a name of its own and a reason; conditions and timestamps never meet in one statement.

    Who is at work or a member, and which partitions of a log exist, is written at the time of writing:
    it expires.
    """
    assert len({statement.name for statement in statements.ALL}) == len(statements.ALL) > 25
    for statement in statements.ALL:
        conditional = statement.kind is statements.Kind.CONDITIONAL
        assert statement.comment.endswith(".")
        assert not (conditional and "TIMESTAMP" in statement.cql)
        assert conditional or " IF " not in statement.cql
        if statement.kind is statements.Kind.WRITE:
            timeless = any(
                f"{{keyspace}}.{table}" in statement.cql
                for table in ("workers", "log_shards", "subscriptions")
            )
            assert timeless or "USING TIMESTAMP ?" in statement.cql
        assert (statement.kind is statements.Kind.READ) == statement.cql.startswith("SELECT")
