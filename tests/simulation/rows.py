"""Rows of messages as a client's store writes and reads them: the real store's code, without a session.

`RowStore` is `CassandraStore`, whose statements about messages go to the model of a cluster: what it makes of
packs, marks, ranges, several requests and what it remembers is the code that runs in production. Here stands
only what Cassandra does with a statement. Rows are written as `packs.joined` gives them; their encoding as
cells has tests of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cqueue import ids
from cqueue.store import packs
from cqueue.store import statements as cql
from cqueue.store.cassandra import CassandraStore
from cqueue.store.operations import (
    DeleteMessages,
    IdSlice,
    InsertMessages,
    MessageRow,
    Operation,
    ReadIds,
    ReadMessages,
    ReadSlice,
    Slice,
    WideRow,
)
from cqueue.store.packs import Density, Known
from cqueue.store.quarantine import Quarantine
from cqueue.store.requests import nothing
from cqueue.store.statements import Kind, Statement

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.replica import Rows, View

Values = tuple[Any, ...]


@dataclass(slots=True)
class Insert(Operation[None]):
    """An insert as it is sent. rows: the messages; stored: the rows that hold them."""

    wide_row: WideRow
    rows: tuple[MessageRow, ...]
    stored: list[MessageRow]


@dataclass(slots=True)
class Delete(Operation[None]):
    """A delete as it is sent. ids: what was asked; rows: deleted as a whole; marks: of other packs."""

    wide_row: WideRow
    priority: int
    ids: tuple[int, ...]
    at_us: int = 0
    rows: list[int] = field(default_factory=list)
    marks: dict[int, set[int]] = field(default_factory=dict)
    answered: Callable[[Any], None] = field(default=lambda _: None, repr=False)

    def add(self, statement: Statement, values: Values) -> None:
        """Add what one statement deletes."""
        if statement is cql.MARK_GONE:
            at_us, marks, *_, pack = values
            if at_us > ids.time_us(pack):
                raise AssertionError("a mark outlives the tombstone of its row")
            self.marks[pack] = marks
        else:
            self.at_us, *_, self.rows = values


PLANNED = frozenset({InsertMessages, DeleteMessages})
"""What a client's store makes something else of, as it sends it."""


def planned(operation: Any, store: RowStore) -> Any:
    """What a client sends: a write of messages with the rows that its store makes of it, at this moment."""
    if type(operation) is InsertMessages:
        return Insert(operation.wide_row, operation.rows, packs.joined(operation.rows))
    return store.plan(operation) if type(operation) is DeleteMessages else operation


class _Asked:
    """A request: of a read the answer comes when it is asked for."""

    __slots__ = ("_answer", "_decode", "parts")
    warnings = None

    def __init__(self, parts: list[tuple[Statement, Values]], decode: Any, answer: Any) -> None:
        self.parts = parts
        self._decode = decode
        self._answer = answer

    def result(self) -> Any:
        return self._decode(self._answer(*self.parts[0]))

    def answered(self, found: Any) -> None:
        """A write was acknowledged."""
        self._decode(found)


class _Requests:
    """What `CassandraStore` sends statements through."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rows: Rows | None = None
        self._view: View | None = None  # of the first request of a read

    def begin(self, rows: Rows, view: View) -> None:
        """A read begins: its first request is answered by these replicas."""
        self._rows, self._view = rows, view

    def send(self, statement: Statement, values: Iterable[Any], decode: Any) -> _Asked:
        """As `Requests.send`."""
        values = tuple(values)
        if statement.kind is Kind.WRITE and self._rows is not None:
            self._reap(statement, values)
        return _Asked([(statement, values)], decode, self._answer)

    def write(self, statement: Statement, *values: Any) -> _Asked:
        """As `Requests.write`."""
        return self.send(statement, values, nothing)

    def send_batch(self, _: Kind, parts: Iterable[tuple[Statement, Values]], decode: Any) -> _Asked:
        """As `Requests.send_batch`."""
        return _Asked(list(parts), decode, self._answer)

    def end(self) -> None:
        """A read is over."""
        self._rows = None

    def _reap(self, statement: Statement, values: Values) -> None:
        wide_row, priority, rows = WideRow(*values[1:4]), values[4], values[5]
        some = tuple(id_ for row in rows for id_ in range(row, row + ids.pack_size(row)))
        delete = Delete(wide_row, priority, some)
        delete.add(statement, values)
        self._cluster.reap(delete)

    def _answer(self, statement: Statement, values: Values) -> list[tuple[Any, ...]]:
        rows, view = self._rows, self._view
        if rows is None:
            raise AssertionError("an answer to no read")
        if view is None:
            view = self._cluster.another_view(WideRow(*values[:3]))
        self._view = None
        if statement is cql.READ_MESSAGES:
            return rows.read(values[4], view)
        after, upto, limit = values[4:]
        return rows.read(rows.between(after, upto), view, limit, whole=statement is cql.READ_SLICE)


class RowStore(CassandraStore):
    """One client's store, as far as messages go."""

    def __init__(self, cluster: Cluster) -> None:
        self._asked: Any = _Requests(cluster)
        self._requests = self._asked
        self.quarantine = Quarantine()
        self._known = Known()
        self._density = Density()
        self._reads: dict[type[Operation[Any]], Callable[[Any], Any]] = {
            ReadSlice: self._read_slice,
            ReadIds: self._read_ids,
            ReadMessages: self._read_messages,
        }

    def plan(self, op: DeleteMessages) -> Delete:
        """What is written for a delete."""
        asked: Any = self._delete_messages(op)
        delete = Delete(op.wide_row, op.priority, op.ids, answered=asked.answered)
        for statement, values in asked.parts:
            delete.add(statement, values)
        return delete

    def nothing(self, op: Operation[Any]) -> Any:
        """The answer where no replica has heard of any message."""
        if type(op) is ReadMessages:
            return []
        return Slice([], 0) if type(op) is ReadSlice else IdSlice([], 0)

    def read(self, op: Operation[Any], rows: Rows, view: View) -> Any:
        """Read messages; the first request is answered by the replicas of this view."""
        self._asked.begin(rows, view)
        try:
            return self._reads[type(op)](op).result()
        finally:
            self._asked.end()
