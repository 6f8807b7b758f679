"""Ids and lists of ids on the wire, without a `uuid.UUID` for each.

The driver makes a UUID object of every timeuuid; at 500 ids a read that costs more than the rest of the row.
Here a timeuuid column is an integer (cqueue.ids) as soon as it is decoded. The driver takes the types of a
result from its protocol handler, so that is what is replaced; its own fast row parser stays in use.

The price: *every* timeuuid read through a session with this handler is an integer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from cassandra import type_codes
from cassandra.cqltypes import _CassandraType
from cassandra.protocol import ProtocolHandler, ResultMessage
from cassandra.query import PreparedStatement

from cqueue import ids

_COUNT = struct.Struct(">i")
_UUID_LENGTH = b"\x00\x00\x00\x10"
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
    """A list<timeuuid> as a tuple of integers."""

    typename = "list"

    @staticmethod
    def serialize(value: Sequence[int], _protocol: int) -> bytes:
        return _COUNT.pack(len(value)) + _UUID_LENGTH.join([b"", *map(ids.to_bytes, value)])

    @staticmethod
    def deserialize(data: bytes, _protocol: int) -> tuple[int, ...]:
        # `ids.from_bytes` in one go: a slot may list 500.
        return tuple(
            ((high & 0xFFF) << 48 | (high & 0xFFFF0000) << 16 | high >> 32) << 64 | (low ^ _SIGNS)
            for high, low in _UUID_IN_LIST.iter_unpack(memoryview(data)[4:])
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
            super().recv_results_rows(stream, version, user_types, columns, policy)
            return
        self.recv_results_metadata(stream, user_types)
        self.column_names = self.column_types = None
        self.parsed_rows = stream.read()


class IdProtocolHandler(ProtocolHandler):  # type: ignore[misc]
    """Decodes timeuuid as int and list<timeuuid> as tuple[int, ...]."""

    message_types_by_opcode = {  # noqa: RUF012
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: _IdResult,
    }


def bind_ids(prepared: PreparedStatement) -> None:
    """Let a prepared statement take integers where CQL wants a timeuuid or a list of them."""
    if prepared.column_metadata:
        prepared.column_metadata = [c._replace(type=_id_type(c.type)) for c in prepared.column_metadata]


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
