"""What is used of cassandra-driver though the driver does not promise it; and the stock path without it.

The driver is written for requests that are few and large. What a queue does is many and small, so cqueue
replaces parts of the driver, and some of these are private. A version of the driver may change them. So each
part is looked at once a process, before it is used (cqueue.store.driver.probe): whether it is there, and
whether it does what is relied on. A part that fails is left to the driver, and a line of the log says so.
What is stored, and what is promised, is the same with and without; docs/explanation/driver.md says what each
part brings.

Nothing outside this package uses anything of the driver that its documentation does not name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from uuid import UUID

from cassandra.query import BatchStatement, BoundStatement, PreparedStatement

from cqueue import ids
from cqueue.store import cells
from cqueue.store.driver import errors, probe, sockets, wire
from cqueue.store.driver.probe import Part
from cqueue.store.driver.sockets import Login, LoginRefused

__all__ = ["PARTS", "Driver", "Login", "LoginRefused", "look", "used"]

PARTS: Final = (*sockets.MIXINS, wire.RESULTS, wire.KNOWN_COLUMNS, wire.ENCODED_BATCHES, errors.ERRORS)
V5: Final = 5


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver with the parts that can be used of it.

    connection_class, protocol_handler: for a cluster and for a session.
    """

    parts: frozenset[Part]
    connection_class: Any
    protocol_handler: Any

    @property
    def has_ids(self) -> bool:
        """Whether timeuuids come as integers, and not as UUID objects."""
        return wire.RESULTS in self.parts

    def configure(self, prepared: PreparedStatement, *, raw: bool) -> None:
        """Let a prepared statement take and give integers for timeuuids; and, if `raw`, rows as bytes."""
        if self.has_ids:
            wire.use_ids(prepared)
            if raw:
                wire.leave_raw(prepared)

    def bind(self, prepared: PreparedStatement, values: Iterable[Any]) -> BoundStatement:
        """A prepared statement with these values, integers for timeuuids."""
        if self.has_ids:
            return prepared.bind(list(values))
        columns = prepared.column_metadata
        return prepared.bind([_uuids(column.type, one) for column, one in zip(columns, values, strict=True)])

    def rows(self, found: list[Any]) -> list[Any]:
        """The rows of an answer, with integers for timeuuids."""
        return found if self.has_ids else [tuple(map(_ids, row)) for row in found]

    def many(
        self,
        batch: Callable[[], BatchStatement],
        prepared: PreparedStatement,
        partition: Sequence[bytes],
        rows: Sequence[bytes],
    ) -> Any:
        """A batch of one statement with the values of many rows; of one row the statement itself.

        batch: makes an empty one.
        partition: the values of the partition key, which come first in the statement.
        rows: all other values of each row, as cells on the wire.
        """
        encoded = wire.ENCODED_BATCHES in self.parts
        if len(rows) == 1:
            return _bound(prepared, [*partition, *wire.values(rows[0])], encoded=encoded)
        whole = batch()
        if not encoded:
            for row in rows:
                whole.add(_bound(prepared, [*partition, *wire.values(row)], encoded=False))
            return whole
        whole.add(_bound(prepared, partition, encoded=True))  # tells the driver where the batch belongs
        before = b"".join(map(cells.of, partition))
        whole._statements_and_parameters = wire.EncodedRows(prepared, before, rows)  # noqa: SLF001 - see there
        return whole


@cache
def used() -> Driver:
    """The driver as this process uses it."""
    return look()


def look() -> Driver:
    """Look at each part of the driver; one line of the log for each that cannot be used."""
    parts = frozenset(part for part in PARTS if probe.has(part))
    return Driver(parts, sockets.connection_class(parts), wire.handler(parts))


def _bound(prepared: PreparedStatement, values: Sequence[Any], *, encoded: bool) -> BoundStatement:
    """A statement with values that are encoded. encoded: give them to the driver as they are."""
    if encoded:
        statement = BoundStatement(prepared)
        statement.values = list(values)
        return statement
    columns = zip(prepared.column_metadata, values, strict=True)
    return prepared.bind(
        [column.type.from_binary(one, V5) if isinstance(one, bytes) else one for column, one in columns]
    )


def _uuids(type_: Any, value: Any) -> Any:
    """What the driver takes for a timeuuid, or a list of them."""
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
