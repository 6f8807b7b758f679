"""The undocumented parts of cassandra-driver that cqueue replaces, each with a fallback.

The driver is written for few and large requests. A queue makes many small ones, so cqueue replaces parts of
the driver for speed, and five because of a defect. Some of these parts are private, and a new version of the
driver may change them. Therefore each part is probed once a process, before its first use
(cqueue.store.driver.probe): whether it exists, and whether it behaves as expected. If a probe fails, the
driver's own code is used, and a log line says so. Stored data and promises are the same either way.
docs/explanation/driver.md says what each part gains.

Outside this package cqueue uses only what the driver's documentation names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from cassandra.cluster import Session
from cassandra.query import BatchStatement, BoundStatement, PreparedStatement

from cqueue import ids
from cqueue.store import cells
from cqueue.store.driver import errors, probe, reconnection, schema, sockets, wire
from cqueue.store.driver.probe import Part
from cqueue.store.driver.reconnection import Reconnection
from cqueue.store.driver.schema import OneKeyspace
from cqueue.store.driver.sockets import Login, LoginRefused

__all__ = ["PARTS", "Driver", "Login", "LoginRefused", "OneKeyspace", "Reconnection", "look", "used"]

PREPARE_TIME: Final = Part(
    "prepare time",
    ("cassandra.cluster:Session._default_timeout",),  # of requests without an execution profile: these alone
    lambda: Session.default_timeout.fget(SimpleNamespace(_default_timeout=7.0)) == 7.0,
    "a call that is the first to use a statement may take 10 s and more, whatever the request timeout is",
)
PARTS: Final = (
    *sockets.MIXINS,
    reconnection.MOVED_NODES,
    schema.ONE_KEYSPACE,
    wire.RESULTS,
    wire.KNOWN_COLUMNS,
    wire.ENCODED_BATCHES,
    errors.ERRORS,
    PREPARE_TIME,
)
V5: Final = 5
"""The version of Cassandra's protocol that cqueue speaks."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver, with the replaced parts that passed their probes.

    parts: those parts. connection_class: for `Cluster`. protocol_handler: for `Session`.
    """

    parts: frozenset[Part]
    connection_class: Any
    protocol_handler: Any

    @property
    def has_ids(self) -> bool:
        """Whether timeuuids are decoded as integers; otherwise they come as UUID objects."""
        return wire.RESULTS in self.parts

    @property
    def finds_moved_nodes(self) -> bool:
        """Whether nodes are found again after all of them have got other addresses."""
        return reconnection.MOVED_NODES in self.parts

    @property
    def reads_one_keyspace(self) -> bool:
        """Whether `OneKeyspace` may be the metadata of a cluster."""
        return schema.ONE_KEYSPACE in self.parts

    def prepare(self, session: Session, text: str, timeout_s: float) -> PreparedStatement:
        """Prepare a statement within that many seconds on one node, then within as many on all others.

        One call at a time for each session.
        """
        if PREPARE_TIME in self.parts:
            session._default_timeout = timeout_s  # noqa: SLF001 - see the part
        return session.prepare(text)

    def configure(self, prepared: PreparedStatement, *, raw: bool) -> None:
        """Make a prepared statement take and return integers for timeuuids. raw: return rows as bytes."""
        if self.has_ids:
            wire.use_ids(prepared)
            if raw:
                wire.leave_raw(prepared)

    def bind(self, prepared: PreparedStatement, values: Iterable[Any]) -> BoundStatement:
        """Bind values to a prepared statement, with integers for timeuuids."""
        if self.has_ids:
            return prepared.bind(list(values))
        columns = prepared.column_metadata
        return prepared.bind([_uuids(column.type, one) for column, one in zip(columns, values, strict=True)])

    def rows(self, found: list[Any]) -> list[Any]:
        """Return the rows of an answer with integers for timeuuids."""
        return found if self.has_ids else [tuple(map(_ids, row)) for row in found]

    def many(
        self,
        batch: Callable[[], BatchStatement],
        prepared: PreparedStatement,
        partition: Sequence[bytes],
        rows: Sequence[bytes],
    ) -> Any:
        """Make a batch of one statement for many rows; for a single row the bound statement itself.

        batch: makes an empty batch.
        partition: the encoded values of the partition key, which come first in the statement.
        rows: for each row its other values, encoded as cells.
        """
        encoded = wire.ENCODED_BATCHES in self.parts
        if len(rows) == 1:
            return _bound(prepared, [*partition, *wire.values(rows[0])], encoded=encoded)
        whole = batch()
        if not encoded:
            for row in rows:
                whole.add(_bound(prepared, [*partition, *wire.values(row)], encoded=False))
            return whole
        whole.add(_bound(prepared, partition, encoded=True))  # routes the batch to its replicas
        before = b"".join(map(cells.of, partition))
        whole._statements_and_parameters = wire.EncodedRows(prepared, before, rows)  # noqa: SLF001 - see there
        return whole


@cache
def used() -> Driver:
    """Return the driver as this process uses it; probed at the first call."""
    return look()


def look() -> Driver:
    """Probe each part of the driver. Log one line for each part that cannot be used."""
    parts = frozenset(part for part in PARTS if probe.has(part))
    return Driver(parts, sockets.connection_class(parts), wire.handler(parts))


def _bound(prepared: PreparedStatement, values: Sequence[Any], *, encoded: bool) -> BoundStatement:
    """Bind encoded values. encoded: the driver takes them as they are; otherwise they are decoded first."""
    if encoded:
        statement = BoundStatement(prepared)
        statement.values = list(values)
        return statement
    columns = zip(prepared.column_metadata, values, strict=True)
    return prepared.bind(
        [column.type.from_binary(one, V5) if isinstance(one, bytes) else one for column, one in columns]
    )


def _uuids(type_: Any, value: Any) -> Any:
    """Turn ids into UUID objects where the column is a timeuuid or a list of them."""
    if value is None or isinstance(value, cells.Unreadable):
        return value
    if type_.typename == "timeuuid":
        return _uuid(value)
    if type_.typename in {"list", "set"} and type_.subtypes[0].typename == "timeuuid":
        return [_uuid(one) for one in ids.shortened(value)]
    return value


def _uuid(id_: int) -> UUID:
    return UUID(bytes=ids.to_bytes(id_))


def _ids(value: Any) -> Any:
    if isinstance(value, UUID):
        return ids.from_bytes(value.bytes)
    if isinstance(value, list):  # of timeuuids: the schema has no other lists
        return ids.lengthened([ids.from_bytes(one.bytes) for one in value])
    return value
