"""What all parts of the Cassandra store have in common: sending a statement, and what its answer says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cqueue.store import decode
from cqueue.store.log_operations import ChangeLog
from cqueue.store.operations import ChangeQueue, Operation, Pending
from cqueue.store.quarantine import Quarantine
from cqueue.store.requests import Answer, Request, Requests
from cqueue.store.statements import Statement

Starter = Callable[[Any], Pending[Any]]
Starters = dict[type[Operation[Any]], Starter]
"""How each operation is sent."""


class Sender:
    """Sends statements, and sets rows aside that cannot be read."""

    def __init__(self, requests: Requests, quarantine: Quarantine) -> None:
        self._requests = requests
        self.quarantine = quarantine

    def _write(self, statement: Statement, *values: Any) -> Request[None]:
        return self._requests.send(statement, values, nothing)

    def _change(self, statement: Statement, *values: Any) -> Request[bool]:
        """A conditional mutation: whether it was applied."""
        return self._requests.send(statement, values, applied)

    def _all(
        self, statement: Statement, values: Iterable[Any], found: Callable[..., decode.Found], **how: bool
    ) -> Request[Any]:
        """What can be read. found: what decodes an answer, with the options `how`."""
        return self._requests.send(
            statement, values, lambda answer: decode.kept(found(answer.rows, **how), self.quarantine)
        )

    def _one(
        self, statement: Statement, values: Iterable[Any], found: Callable[..., decode.Found], **how: bool
    ) -> Request[Any]:
        """The only row, if there is one; DamagedRow if it cannot be read."""
        return self._requests.send(
            statement, values, lambda answer: decode.single(found(answer.rows, **how), self.quarantine)
        )


def nothing(_found: Answer) -> None:
    """Of a plain write."""


def applied(found: Answer) -> bool:
    """Whether a conditional mutation was applied."""
    return bool(found.rows[0][0])


def change_values(op: ChangeQueue | ChangeLog) -> tuple[Any, ...]:
    """The values that change a queue's row, or a log's."""
    row, seen = op.row, op.expect_version
    return row.state, row.config, decode.next_version(seen), row.name, seen, row.incarnation
