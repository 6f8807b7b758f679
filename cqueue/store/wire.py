"""What the driver's own way onto the wire and off it costs too much for, done here.

*Ids*: the driver makes a UUID object of every timeuuid; at 500 ids a read that costs more than the rest of
the row. Here a timeuuid column is an integer (cqueue.ids) as soon as it is decoded. The driver takes the
types of a result from its protocol handler, so that is what is replaced; its own fast row parser stays in
use. The price: *every* timeuuid read through a session with this handler is an integer.

*Metadata*: an answer describes its columns, unless the request says that the client knows them. The driver
does not say so, and reads them anew, making a class of each collection type: a fifth of the cost of a small
read.

*Batches* of one statement with many rows: the driver writes each value of each row on its own. Here rows come
as bytes (`EncodedRows`), and are joined.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any, cast

from cassandra import ProtocolVersion, type_codes
from cassandra.cqltypes import _CassandraType
from cassandra.protocol import BatchMessage, ExecuteMessage, ProtocolHandler, ResultMessage
from cassandra.query import UNSET_VALUE, PreparedStatement

from cqueue import ids
from cqueue.store import cells

_COUNT = struct.Struct(">i")
_SHORT = struct.Struct(">H")
_PREPARED = b"\x01"
_HEADER = 9  # bytes before the body of a message
_SKIP_METADATA = 2
_UUID_CELL = struct.Struct(">iQQ").pack
_UUID_IN_LIST = struct.Struct(">4xQQ")
_SIGNS = 0x8080808080808080


# Names with an underscore: the driver enters all others in its registry, for the whole process.
class _TimeUuid(_CassandraType):  # type: ignore[misc]
    """A timeuuid as an integer."""

    typename = "timeuuid"

    @staticmethod
    def serialize(value: int, _protocol: int) -> bytes:
        return ids.to_bytes(value)

    @staticmethod
    def deserialize(data: bytes, _protocol: int) -> int:
        return ids.from_bytes(data)


class _TimeUuidList(_CassandraType):  # type: ignore[misc]
    """A list<timeuuid> as a tuple of integers. All ids of a pack, one after the other, are one element."""

    typename = "list"

    @staticmethod
    def serialize(value: Sequence[int], _protocol: int) -> bytes:
        elements = ids.shortened(value)
        return _COUNT.pack(len(elements)) + b"".join([_UUID_CELL(16, *ids.halves(id_)) for id_ in elements])

    @staticmethod
    def deserialize(data: bytes, _protocol: int) -> tuple[int, ...]:
        # `ids.from_bytes` in one go, too.
        return ids.lengthened(
            [
                ((high & 0xFFF) << 48 | (high & 0xFFFF0000) << 16 | high >> 32) << 64 | (low ^ _SIGNS)
                for high, low in _UUID_IN_LIST.iter_unpack(memoryview(data)[4:])
            ]
        )


_FastResult: Any = ProtocolHandler.message_types_by_opcode[ResultMessage.opcode]


class _IdResult(_FastResult):  # type: ignore[misc]
    type_codes = {**_FastResult.type_codes, type_codes.TimeUUIDType: _TimeUuid}  # noqa: RUF012

    @classmethod
    def read_type(cls, stream: Any, user_types: Any) -> Any:
        return _id_type(super().read_type(stream, user_types))

    def recv_results_rows(
        self, stream: Any, version: int, user_types: Any, columns: Any, policy: Any
    ) -> None:
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
        """Decode cell by cell: one that cannot be read must not cost the others, nor the connection."""
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
    """The values of a row's cells, as a bound statement takes them."""
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
    """The statements of a batch: one prepared statement with the values of many rows, as cells.

    Args:
        first: the cells that are the same in all rows; they come first.
        rows: the other cells of each row.
    """

    def __init__(self, prepared: PreparedStatement, first: bytes, rows: Sequence[bytes]) -> None:
        name = prepared.query_id
        before = b"".join(
            (_PREPARED, _SHORT.pack(len(name)), name, _SHORT.pack(len(prepared.column_metadata)), first)
        )
        self._count = len(rows)
        self.data = b"".join((_SHORT.pack(len(rows)), before, before.join(rows)))

    def __len__(self) -> int:
        return self._count


class _EncodedBatch(BatchMessage):  # type: ignore[misc]
    """A batch whose statements are bytes already."""

    def __init__(self, message: BatchMessage) -> None:
        self.__dict__.update(message.__dict__)
        self.queries = ()
        self._rows: EncodedRows = message.queries

    def send_body(self, f: Any, protocol_version: int) -> None:
        of_none = io.BytesIO()
        super().send_body(of_none, protocol_version)
        body = of_none.getvalue()  # the type, the number of statements in two bytes, and what follows them
        f.write(body[:1])
        f.write(self._rows.data)
        f.write(body[3:])


class IdProtocolHandler(ProtocolHandler):  # type: ignore[misc]
    """Decodes timeuuid as int and list<timeuuid> as tuple[int, ...]; takes batches of `EncodedRows`."""

    message_types_by_opcode = {  # noqa: RUF012
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _IdResult,
    }

    @classmethod
    def encode_message(  # noqa: D102 - the driver's
        cls, msg: Any, stream_id: int, protocol_version: int, *args: Any, **more: Any
    ) -> bytes:
        if type(msg) is BatchMessage and type(msg.queries) is EncodedRows:
            msg = _EncodedBatch(msg)
        encoded: bytes = super().encode_message(msg, stream_id, protocol_version, *args, **more)
        if type(msg) is ExecuteMessage and msg.skip_meta and protocol_version == ProtocolVersion.V5:
            return _without_metadata(msg, encoded)
        return encoded


def _without_metadata(msg: ExecuteMessage, encoded: bytes) -> bytes:
    """Say that the answer need not describe its columns: it does all the same once they have changed."""
    if msg.custom_payload:
        return encoded
    names = 4 + len(msg.query_id) + len(msg.result_metadata_id)
    at = _HEADER + names + 2 + 3  # behind the consistency; the last of four bytes of flags
    return b"".join((encoded[:at], bytes((encoded[at] | _SKIP_METADATA,)), encoded[at + 1 :]))


def use_ids(prepared: PreparedStatement) -> None:
    """Let a prepared statement take, and give, integers where CQL has a timeuuid or a list of them."""
    if prepared.column_metadata:
        prepared.column_metadata = [c._replace(type=_id_type(c.type)) for c in prepared.column_metadata]
    if prepared.result_metadata:
        prepared.result_metadata = [(*column, _id_type(type_)) for *column, type_ in prepared.result_metadata]


class _RawColumns(list[Any]):
    """A prepared statement's columns, marked: the driver hands them to whoever decodes an answer."""


def leave_raw(prepared: PreparedStatement) -> None:
    """Give the rows of this statement's answers as the bytes that came, after the metadata.

    The mark is lost when a node that has forgotten the statement prepares it again: then rows are tuples.
    """
    prepared.result_metadata = _RawColumns(prepared.result_metadata)


def _id_type(type_: Any) -> Any:
    if type_.typename == "timeuuid":
        return _TimeUuid
    if type_.typename in {"list", "set"} and [t.typename for t in type_.subtypes] == ["timeuuid"]:
        return _TimeUuidList
    return type_
