"""The row that every client of a keyspace must agree with, read at connect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast

from cassandra.cluster import Session

from cqueue.errors import SchemaMismatch
from cqueue.schema.migrations import load_migrations
from cqueue.schema.statements import SELECT_DEPLOYMENT, SELECT_MIGRATIONS
from cqueue.settings import SerialConsistency, Settings
from cqueue.store import decode, outcome
from cqueue.store.connection import DRIVER_ERRORS, SERIAL_READ
from cqueue.store.operations import FORMAT
from cqueue.store.statements import Kind

# Of `messages`, that this code works with; `cqueue schema apply` leads from the older to the newer.
FORMATS: Final = range(1, FORMAT + 1)
NEWER: Final = "newer version than this code; upgrade cqueue"
_APPLY: Final = "Run `cqueue schema apply`."
_APPLY_PRE: Final = (
    "Run `cqueue schema apply --only-pre`, and without --only-pre once no process with the old version runs."
)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What was decided for a keyspace at bootstrap.

    Attributes:
        format: version of the stored rows.
        serial_consistency: of every conditional mutation, in every client.
        settle_ms: W, bound on how long an acknowledged send takes to become readable.
        skew_ms: ε, bound on the disagreement of two corrected clocks.
        gc_grace_s: seconds that deletions are kept.
        changes: counter; when it moves, configurations are read again.
    """

    format: int
    serial_consistency: SerialConsistency
    settle_ms: int
    skew_ms: int
    gc_grace_s: int
    changes: int


def check_deployment(session: Session, settings: Settings) -> Deployment:
    """Read the deployment row and make sure that this client may work with it.

    Args:
        session: from `open_session`; its keyspace does not matter.
        settings: whose keyspace and serial consistency are checked.

    Raises:
        SchemaMismatch: keyspace, table or row are missing; the schema is newer than this code, or lacks
            something that this code needs; or the serial consistency differs.
        Unavailable: the cluster did not answer.
        Refused: the role may not read, or a guardrail forbids it.
    """
    deployment = read_deployment(session, settings.keyspace)
    if deployment is None:
        raise SchemaMismatch(f"Keyspace {settings.keyspace} has no complete schema of cqueue. {_APPLY}")
    if deployment.format not in FORMATS:
        problem = NEWER if deployment.format > FORMAT else f"older version than this code. {_APPLY}"
        raise SchemaMismatch(f"Keyspace {settings.keyspace} has format {deployment.format}: {problem}")
    if deployment.serial_consistency != settings.serial_consistency:
        raise SchemaMismatch(
            f"Keyspace {settings.keyspace} was bootstrapped with serial_consistency="
            f"{deployment.serial_consistency}, these settings say {settings.serial_consistency}. Conditional "
            f"mutations of both kinds do not see each other: set serial_consistency="
            f"{deployment.serial_consistency}."
        )
    _check_migrations(session, settings.keyspace)
    return deployment


def read_deployment(session: Session, keyspace: str) -> Deployment | None:
    """The deployment row, or None when the keyspace, its table or the row do not exist."""
    rows = _read(session, SELECT_DEPLOYMENT.format(keyspace=keyspace))
    if not rows:
        return None
    row = rows[0]
    _check_row(keyspace, row)
    return Deployment(
        format=row.format,
        serial_consistency=cast("SerialConsistency", row.serial_consistency),
        settle_ms=row.settle_ms,
        skew_ms=row.skew_ms,
        gc_grace_s=row.gc_grace,
        changes=row.changes,
    )


def _check_row(keyspace: str, row: Any) -> None:
    """No client may guess what all agree on."""
    values = (getattr(row, name) for name in decode.DEPLOYMENT)
    reason = decode.wrong(tuple(values), decode.DEPLOYMENT)
    if reason:
        raise SchemaMismatch(
            f"Keyspace {keyspace}: the row of table deployment cannot be read: {reason}. "
            "Set it to what it was at bootstrap."
        )


def _check_migrations(session: Session, keyspace: str) -> None:
    """`post` migrations may be outstanding while old and new code work together; `pre` ones may not."""
    applied = {row.number for row in _read(session, SELECT_MIGRATIONS.format(keyspace=keyspace))}
    missing = [m.name for m in load_migrations() if m.phase == "pre" and m.number not in applied]
    if missing:
        raise SchemaMismatch(f"Keyspace {keyspace} lacks the migration {', '.join(missing)}. {_APPLY_PRE}")


def _read(session: Session, query: str) -> list[Any]:
    try:
        return list(session.execute(query, execution_profile=SERIAL_READ))
    except DRIVER_ERRORS as exc:
        if outcome.is_absent(exc):
            return []
        raise outcome.error(exc, Kind.READ) from exc
