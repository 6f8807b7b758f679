"""Encoding and decoding that the driver's own protocol handler does too slowly.

Each class is mixed into the driver's protocol handler, or its result, if the probe of its part passes.

*Ids*: the driver makes a UUID object of each timeuuid; at 500 ids in a read this costs more than the rest of
the row. Here a timeuuid is decoded to an integer (cqueue.ids). The driver takes the types of a result from
its protocol handler, so the handler is replaced, and the driver's fast row parser stays in use. The price:
*every* timeuuid read through a session with this handler is an integer.

*Metadata*: an answer describes its columns, unless the request says that the client knows them. The driver
never says so. It parses the description each time, and makes a class of each collection type: a fifth of the
cost of a small read. docs/explanation/driver.md has a patch for the driver.

*Batches* of one statement with many rows: the driver writes each value of each row separately. Here rows come
as bytes (`EncodedRows`), and are joined.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from cassandra import ProtocolVersion
from cassandra.protocol import ProtocolHandler
from cassandra.query import UNSET_VALUE, BatchType, PreparedStatement

from cqueue import ids
from cqueue.store import cells
from cqueue.store.driver.probe import Part, find, find_or

_COUNT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_PREPARED = b"\x01"
_HEADER = 9  # bytes before the body of a message
_SKIP_METADATA = 2
_UUID_CELL = struct.Struct(">iQQ").pack
_UUID_IN_LIST = struct.Struct(">4xQQ")
_SIGNS = 0x8080808080808080

_Type: Any = find_or("cassandra.cqltypes:_CassandraType", object)
_Batch: Any = find_or("cassandra.protocol:BatchMessage", object)
_Execute: Any = find_or("cassandra.protocol:ExecuteMessage", object)
_Result: Any = find_or("cassandra.protocol:ResultMessage", object)
_Base: Any = object  # the driver's


# Names with an underscore: the driver enters all others in its registry, for the whole process.
class _TimeUuid(_Type):  # type: ignore[misc]
    """A timeuuid as an integer."""

    typename = "timeuuid"

    @staticmethod
    def serialize(value: int, _protocol: int) -> bytes:
        return ids.to_bytes(value)

    @staticmethod
    def deserialize(data: bytes, _protocol: int) -> int:
        return ids.from_bytes(data)


class _TimeUuidList(_Type):  # type: ignore[misc]
    """A list<timeuuid> as a tuple of integers. A whole pack's ids, in order, are stored as one element."""

    typename = "list"

    @staticmethod
    def serialize(value: Sequence[int], _protocol: int) -> bytes:
        elements = ids.shortened(value)
        return _COUNT.pack(len(elements)) + b"".join([_UUID_CELL(16, *ids.halves(id_)) for id_ in elements])

    @staticmethod
    def deserialize(data: bytes, _protocol: int) -> tuple[int, ...]:
        # The inlined body of `ids.from_bytes`, for speed.
        return ids.lengthened(
            [
                ((high & 0xFFF) << 48 | (high & 0xFFFF0000) << 16 | high >> 32) << 64 | (low ^ _SIGNS)
                for high, low in _UUID_IN_LIST.iter_unpack(memoryview(data)[4:])
            ]
        )


class IdResult(_Base):  # type: ignore[misc]
    """An answer with integers for timeuuids, and with undecoded rows where the statement is raw."""

    @classmethod
    def read_type(cls, stream: Any, user_types: Any) -> Any:
        """Read the type of a column; ids get a type of this module."""
        return _id_type(super().read_type(stream, user_types))

    def recv_results_rows(
        self, stream: Any, version: int, user_types: Any, columns: Any, policy: Any
    ) -> None:
        """Decode the rows, unless `columns`, the statement's metadata, marks them as raw."""
        if type(columns) is not _RawColumns:
            begin = stream.tell()
            try:
                super().recv_results_rows(stream, version, user_types, columns, policy)
            except Exception:  # noqa: BLE001 - whatever the driver makes of what it cannot decode
                stream.seek(begin)
                self._recv_damaged(stream, version, user_types, columns)
            return
        self.recv_results_metadata(stream, user_types)
        self.column_names = self.column_types = None
        self.parsed_rows = stream.read()

    def _recv_damaged(self, stream: Any, version: int, user_types: Any, columns: Any) -> None:
        """Decode cell by cell, so that an undecodable cell costs neither the other cells nor the
        connection.
        """
        self.recv_results_metadata(stream, user_types)
        columns, result = self.column_metadata or columns, cast("Any", self)
        result.column_names = [column[2] for column in columns]
        result.column_types = types = [column[3] for column in columns]
        (rows,) = _COUNT.unpack(stream.read(4))
        self.parsed_rows = [
            tuple(_cell(type_, cell, version) for type_, cell in zip(types, row, strict=True))
            for row in (self.recv_row(stream, len(columns)) for _ in range(rows))
        ]


def _cell(type_: Any, data: bytes | None, version: int) -> Any:
    try:
        return type_.from_binary(data, version)
    except Exception:  # noqa: BLE001 - as above
        return cells.Unreadable(data or b"")


def values(row: bytes) -> list[Any]:
    """Split a row of cells into the values that a bound statement takes."""
    found: list[Any] = []
    at = 0
    while at < len(row):
        (size,) = cells.COUNT.unpack_from(row, at)
        at += 4
        if size < 0:
            found.append(UNSET_VALUE if size == cells.UNSET_SIZE else None)
        else:
            found.append(row[at : at + size])
            at += size
    return found


class EncodedRows:
    """The encoded statements of a batch: one prepared statement for many rows.

    Args:
        prepared: the prepared statement.
        first: the leading cells, which all rows have in common.
        rows: the other cells of each row.
    """

    def __init__(self, prepared: Any, first: bytes, rows: Sequence[bytes]) -> None:
        name = prepared.query_id
        before = b"".join(
            (_PREPARED, _SHORT.pack(len(name)), name, _SHORT.pack(len(prepared.column_metadata)), first)
        )
        self._count = len(rows)
        self.data = b"".join((_SHORT.pack(len(rows)), before, before.join(rows)))

    def __len__(self) -> int:
        return self._count


class _EncodedBatch(_Batch):  # type: ignore[misc]
    """A batch message whose statements are encoded already."""

    def __init__(self, message: Any) -> None:
        self.__dict__.update(message.__dict__)
        self.queries = ()
        self._rows: EncodedRows = message.queries

    def send_body(self, f: Any, protocol_version: int) -> None:
        of_none = io.BytesIO()
        super().send_body(of_none, protocol_version)
        body = of_none.getvalue()  # batch type, number of statements (two bytes), the rest
        f.write(body[:1])
        f.write(self._rows.data)
        f.write(body[3:])


class EncodedBatches(_Base):  # type: ignore[misc]
    """Lets the protocol handler send batches of `EncodedRows`."""

    @classmethod
    def encode_message(cls, msg: Any, *args: Any, **more: Any) -> bytes:  # noqa: D102 - the driver's
        if type(msg) is _Batch and type(msg.queries) is EncodedRows:
            msg = _EncodedBatch(msg)
        return super().encode_message(msg, *args, **more)  # type: ignore[no-any-return]


class KnownColumns(_Base):  # type: ignore[misc]
    """Asks Cassandra to leave out the description of known columns."""

    @classmethod
    def encode_message(  # noqa: D102 - the driver's
        cls, msg: Any, stream_id: int, protocol_version: int, *args: Any, **more: Any
    ) -> bytes:
        encoded: bytes = super().encode_message(msg, stream_id, protocol_version, *args, **more)
        if type(msg) is _Execute and msg.skip_meta and protocol_version == ProtocolVersion.V5:
            return _without_metadata(msg, encoded)
        return encoded


def _without_metadata(msg: Any, encoded: bytes) -> bytes:
    """Set the flag that leaves out the columns' description. Cassandra sends it anyway after a change."""
    if msg.custom_payload:
        return encoded
    at = _flags_at(msg) + 3  # the last of four bytes
    return b"".join((encoded[:at], bytes((encoded[at] | _SKIP_METADATA,)), encoded[at + 1 :]))


def _flags_at(msg: Any) -> int:
    """Return the offset of the flags in an encoded message: after two names and the consistency."""
    return _HEADER + 4 + len(msg.query_id) + len(msg.result_metadata_id) + 2


def use_ids(prepared: PreparedStatement) -> None:
    """Make a prepared statement take and return integers for timeuuids and lists of them."""
    if prepared.column_metadata:
        prepared.column_metadata = [c._replace(type=_id_type(c.type)) for c in prepared.column_metadata]
    if prepared.result_metadata:
        prepared.result_metadata = [(*column, _id_type(type_)) for *column, type_ in prepared.result_metadata]


class _RawColumns(list[Any]):
    """Marks a statement's columns as raw. The driver passes the columns to the decoder of the answer."""


def leave_raw(prepared: PreparedStatement) -> None:
    """Leave the rows of this statement's answers undecoded, as the bytes after the metadata.

    The mark is lost when a node that forgot the statement prepares it again. Then rows are tuples.
    """
    prepared.result_metadata = _RawColumns(prepared.result_metadata)


def _id_type(type_: Any) -> Any:
    if type_.typename == "timeuuid":
        return _TimeUuid
    if type_.typename in {"list", "set"} and [t.typename for t in type_.subtypes] == ["timeuuid"]:
        return _TimeUuidList
    return type_


def handler(parts: Collection[Part]) -> Any:
    """Return the driver's protocol handler, with the mixins of these parts."""
    own: Any = ProtocolHandler
    more: dict[str, Any] = {}
    if RESULTS in parts:
        opcodes = own.message_types_by_opcode
        base = opcodes[_Result.opcode]
        codes = {**base.type_codes, find("cassandra.type_codes:TimeUUIDType"): _TimeUuid}
        more["message_types_by_opcode"] = {
            **opcodes,
            _Result.opcode: type("_IdResult", (IdResult, base), {"type_codes": codes}),
        }
    mixins = [mixin for part, mixin in _MIXINS.items() if part in parts]
    return type("Handler", (*mixins, own), more) if mixins or more else own


# ── Probes: try on samples whether the driver behaves as expected ──

_SAMPLE_ID: Final = ids.from_ticks(17_000_000_000_000_000, 1)


def _encode(with_: Any, message: Any) -> bytes:
    encoded: bytes = with_.encode_message(
        message, 3, ProtocolVersion.V5, compressor=None, allow_beta_protocol_version=False
    )
    return encoded


def _decodes() -> bool:
    """Decode an answer with an id, a list of ids and an invalid text, as values and raw."""
    with_ = handler([RESULTS])
    id_ = ids.to_bytes(_SAMPLE_ID)
    columns = b"\0\1a\0\x0f" + b"\0\1b\0\x20\0\x0f" + b"\0\1c\0\x0d"
    before = struct.pack(">iii", 2, 1, 3) + b"\0\1k\0\1t" + columns

    def decoded(text: bytes, known: list[Any] | None) -> Any:
        cells_ = (id_, struct.pack(">ii", 1, 16) + id_, text)
        data = before + _COUNT.pack(1) + b"".join(map(cells.of, cells_))
        found = with_.decode_message(ProtocolVersion.V5, {}, 0, 0, _Result.opcode, data, None, known)
        return found.parsed_rows if known is None else before + found.parsed_rows == data

    row = (_SAMPLE_ID, (_SAMPLE_ID,))
    read = [decoded(text, None) for text in (b"text", b"\xff")]
    return read == [[(*row, "text")], [(*row, cells.Unreadable(b"\xff"))]] and decoded(b"text", _RawColumns())


def _flags_are_where_they_were() -> bool:
    message = _Execute(b"name", [b""], 1, 9, 500, None, 77, skip_meta=True, result_metadata_id=b"columns")
    theirs, ours = (_encode(handler(parts), message) for parts in ((), [KNOWN_COLUMNS]))
    at = _flags_at(message)
    of_sample = 0x01 | 0x04 | 0x10 | 0x20  # values, page size, serial consistency, timestamp
    (flags,) = _COUNT.unpack_from(theirs, at)
    return flags & ~_SKIP_METADATA == of_sample and ours == b"".join(
        (theirs[:at], _COUNT.pack(of_sample | _SKIP_METADATA), theirs[at + 4 :])
    )


def _batches_are_the_same() -> bool:
    prepared = SimpleNamespace(query_id=b"name", column_metadata=(None, None))
    rows = [cells.of(b"one"), cells.UNSET]
    theirs, ours = (
        _encode(handler([ENCODED_BATCHES]), _Batch(BatchType.UNLOGGED, queries, 1, 9, 77))
        for queries in (
            [(True, prepared.query_id, [b"key", *values(row)]) for row in rows],
            EncodedRows(prepared, cells.of(b"key"), rows),
        )
    )
    return theirs == ours


RESULTS: Final = Part(
    "results",
    (
        "cassandra.cqltypes:_CassandraType",
        "cassandra.protocol:ResultMessage",
        "cassandra.query:PreparedStatement.column_metadata",
        "cassandra.query:PreparedStatement.result_metadata",
    ),
    _decodes,
    "the driver decodes each row: reading takes longer, and one damaged row fails the whole read",
)
KNOWN_COLUMNS: Final = Part(
    "known columns",
    ("cassandra.protocol:ExecuteMessage",),
    _flags_are_where_they_were,
    "each answer describes its columns anew: small reads take longer",
)
ENCODED_BATCHES: Final = Part(
    "encoded batches",
    (
        "cassandra.protocol:BatchMessage",
        "cassandra.query:BatchStatement._statements_and_parameters",
        "cassandra.query:BoundStatement.values",
    ),
    _batches_are_the_same,
    "the driver binds each row: writing takes longer",
)
_MIXINS: Final = {ENCODED_BATCHES: EncodedBatches, KNOWN_COLUMNS: KnownColumns}
