"""Base of all parts of the Cassandra store: send a statement, and decode the usual answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cqueue.store import decode
from cqueue.store.log_operations import ChangeLog
from cqueue.store.operations import ChangeQueue, Operation, Pending
from cqueue.store.quarantine import Quarantine
from cqueue.store.requests import Request, Requests, nothing
from cqueue.store.statements import Statement

Starter = Callable[[Any], Pending[Any]]
Starters = dict[type[Operation[Any]], Starter]
"""By operation type, the function that sends it."""


class Sender:
    """Sends statements, and reports damaged rows to the quarantine."""

    def __init__(self, requests: Requests, quarantine: Quarantine) -> None:
        self._requests = requests
        self.quarantine = quarantine

    def _write(self, statement: Statement, *values: Any) -> Request[None]:
        return self._requests.send(statement, values, nothing)

    def _change(self, statement: Statement, *values: Any) -> Request[bool]:
        """Send a conditional mutation; its result says whether it was applied."""
        return self._requests.send(statement, values, applied)

    def _all(
        self, statement: Statement, values: Iterable[Any], found: Callable[..., decode.Decoded], **how: bool
    ) -> Request[Any]:
        """Send a read whose result is all readable rows. found: decodes an answer, with the options `how`."""
        return self._requests.send(
            statement, values, lambda rows: decode.readable_rows(found(rows, **how), self.quarantine)
        )

    def _one(
        self, statement: Statement, values: Iterable[Any], found: Callable[..., decode.Decoded], **how: bool
    ) -> Request[Any]:
        """Send a read whose result is its only row or None; it raises DamagedRow for a damaged one."""
        return self._requests.send(
            statement, values, lambda rows: decode.only_row(found(rows, **how), self.quarantine)
        )


def applied(rows: list[Any]) -> bool:
    """Decode the answer to a conditional mutation: True if it was applied."""
    return bool(rows[0][0])


def change_values(op: ChangeQueue | ChangeLog) -> tuple[Any, ...]:
    """Return the values of CHANGE_QUEUE or CHANGE_LOG, in their order."""
    row, seen = op.row, op.expect_version
    return row.state, row.config, decode.next_version(seen), row.name, seen, row.incarnation
