"""Runs statements of the schema, and translates the driver's errors into this library's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import cassandra
from cassandra import AlreadyExists, ConsistencyLevel, InvalidRequest, Unauthorized
from cassandra.cluster import NoHostAvailable, Session
from cassandra.query import SimpleStatement

from cqueue.errors import ConfigError, CqueueError, OutcomeUnknown, Unavailable
from cqueue.settings import CONSISTENCY_OF, SerialConsistency
from cqueue.store import outcome
from cqueue.store.connection import DRIVER_ERRORS, SCHEMA, Connection
from cqueue.store.driver.errors import (
    ConfigurationException,
    ConnectionBusy,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    SyntaxException,
)

AGREEMENT_LIMIT_S: Final = 60.0
"""Seconds to wait for all nodes to have the same schema; then the step fails, and can be repeated."""

_REFUSED: Final = (AlreadyExists, ConfigurationException, InvalidRequest, SyntaxException)
_NOT_RUN: Final = (
    cassandra.Unavailable,
    ConnectionBusy,
    IsBootstrappingErrorMessage,
    NoHostAvailable,
    OverloadedErrorMessage,
)


def run(
    session: Session,
    cql: str,
    values: Sequence[Any] = (),
    *,
    serial: SerialConsistency | None = None,
    commit: str | None = None,
    read_at: int | None = None,
) -> list[Any]:
    """Run one statement and return its rows.

    Args:
        session: from `open_session`.
        cql: the statement, with %s for each of `values`.
        values: values of the statement.
        serial: run a conditional statement at this level instead of SERIAL.
        commit: with `serial`, the level at which the mutation is stored, instead of the usual one for
            `serial`.
        read_at: the level of a read. SERIAL shows the result of conditional mutations with an unknown
            outcome.

    Raises:
        Unavailable: the statement was not run.
        OutcomeUnknown: the statement may have been run.
        Refused: the role lacks a right, or a guardrail is in the way.
        ConfigError: Cassandra refused the statement as wrong.
    """
    statement = SimpleStatement(cql)
    if serial is not None:
        statement.serial_consistency_level = ConsistencyLevel.name_to_value[serial.upper()]
        level = commit or CONSISTENCY_OF[serial].upper()
        statement.consistency_level = ConsistencyLevel.name_to_value[level]
    if read_at is not None:
        statement.consistency_level = read_at
    try:
        return list(session.execute(statement, values or None, execution_profile=SCHEMA))
    except DRIVER_ERRORS as exc:
        raise _translated(exc, cql) from exc


def await_agreement(connection: Connection) -> None:
    """Wait until all nodes that are up have the same schema, 60 s at most.

    The driver does not wait after a statement that changed nothing, although the change that made it
    superfluous may still be under way.

    Raises:
        Unavailable: the nodes do not agree.
    """
    try:
        agreed = connection.cluster.control_connection.wait_for_schema_agreement(wait_time=AGREEMENT_LIMIT_S)
    except DRIVER_ERRORS as exc:
        raise Unavailable(f"The connection was lost while nodes took over the schema: {exc}.") from exc
    if not agreed:
        raise Unavailable(
            f"The nodes did not agree on a schema within {AGREEMENT_LIMIT_S:.0f} s. See `nodetool "
            "describecluster`; when they agree again, repeat the command."
        )


def _translated(exc: Exception, cql: str) -> CqueueError:
    is_theirs = isinstance(exc, Unauthorized) or outcome.is_guardrail(exc)
    if is_theirs and (refused := outcome.refusal(exc)) is not None:
        return refused
    what, said = " ".join(cql.split()[:6]), outcome.server_text(exc)
    if isinstance(exc, _REFUSED):
        return ConfigError(f"Cassandra refused `{what} …`: {said}")
    if isinstance(exc, _NOT_RUN):
        return Unavailable(f"`{what} …` was not run: {said}")
    if what.startswith("SELECT"):
        return Unavailable(f"`{what} …` was not answered: {said}")
    return OutcomeUnknown(f"`{what} …` may or may not have been run: {said}. It is safe to run it again.")
