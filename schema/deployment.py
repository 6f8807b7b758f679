"""The row that every client of a keyspace must agree with; read at connect."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.query import SimpleStatement

from cqueue.errors import SchemaMismatch
from cqueue.runtime.home import check_home
from cqueue.schema.migrations import load_migrations
from cqueue.schema.statements import SELECT_DEPLOYMENT, SELECT_MIGRATIONS, SELECT_TIME_MS
from cqueue.settings import SerialConsistency, Settings
from cqueue.store import decode, outcome
from cqueue.store.connection import DRIVER_ERRORS, SERIAL_READ
from cqueue.store.operations import FORMAT
from cqueue.store.statements import Kind

# Formats of table `messages` that this code works with; `cqueue schema apply` upgrades older ones.
FORMATS: Final = range(1, FORMAT + 1)
NEWER: Final = "newer version than this code; upgrade cqueue"
DISPENSABLE: Final = frozenset({"listeners", "workers"})
"""`pre` migrations that this code can do without. Without `listeners`, it polls; without `workers`, a list of
workers crosses more tombstones."""
OPENS_AFTER_S: Final = 15.0
"""Seconds between a switch of the home and the first work of clients in the new home.

Clients of the old home learn of the switch within 2 s, and end a call that is under way within 10 s. The time
counts from before the switch, which so has 3 s. One that takes longer needs what is asked for anyway: that
the clients of the old home were stopped.
"""
ELSEWHERE_S: Final = 3.0
"""Seconds that a connect waits for other data centres to say where the home is."""
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
        settle_ms: W, the longest time in ms until an acknowledged send is readable.
        skew_ms: ε, the largest disagreement of two corrected clocks in ms.
        gc_grace_s: seconds for which deletions are kept.
        changes: a counter; when it moves, clients read configurations again.
        home_dc: the data centre that clients work in; None if all agree on conditional mutations.
        centre_epoch: grows with every switch of the home.
        retiring: whether wide rows may be dropped.
        opens_at_ms: when clients may begin to work, in ms since 1970; until then those of the old home stop.
    """

    format: int
    serial_consistency: SerialConsistency
    settle_ms: int
    skew_ms: int
    gc_grace_s: int
    changes: int
    home_dc: str | None = None
    centre_epoch: int = 0
    retiring: bool = True
    opens_at_ms: int = 0


def check_deployment(session: Session, settings: Settings) -> Deployment:
    """Read the deployment row, and check that this client may work with it.

    Args:
        session: from `open_session`; its keyspace does not matter.
        settings: whose keyspace and serial consistency are checked.

    Raises:
        SchemaMismatch: keyspace, table or row are missing; the schema is newer than this code, or lacks what
            this code needs; or the serial consistency differs.
        WrongDataCentre: clients work in another data centre than `settings.local_dc`.
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
    if deployment.home_dc is not None:
        deployment = _newest(session, settings.keyspace, deployment)
        check_home(deployment.home_dc, settings.local_dc)
        _await_opening(session, deployment)
    return deployment


def _newest(session: Session, keyspace: str, here: Deployment) -> Deployment:
    """Return the row as a majority in each data centre has it: one that was away may not know of a switch.

    If not all data centres answer, return `here`: what this data centre knows.
    """
    centres = {host.datacenter for host in session.cluster.metadata.all_hosts()}
    if len(centres) == 1:
        return here
    query = SimpleStatement(
        SELECT_DEPLOYMENT.format(keyspace=keyspace), consistency_level=ConsistencyLevel.EACH_QUORUM
    )
    with suppress(*DRIVER_ERRORS):
        rows = list(session.execute(query, timeout=ELSEWHERE_S, execution_profile=SERIAL_READ))
        return max(here, *map(deployment_of, rows), key=lambda one: one.centre_epoch)
    return here


def _await_opening(session: Session, deployment: Deployment) -> None:
    """After a switch, wait until the clients of the old home have had the time to stop."""
    left_s = (deployment.opens_at_ms - now_ms(session)) / 1000 if deployment.opens_at_ms else 0.0
    if left_s > 0:
        time.sleep(min(left_s, OPENS_AFTER_S))


def now_ms(session: Session) -> int:
    """Return the coordinator's clock, in ms since 1970."""
    (row,) = _read(session, SELECT_TIME_MS)
    return int(row.ms)


def read_deployment(session: Session, keyspace: str) -> Deployment | None:
    """Return the deployment row; None if the keyspace, its table or the row does not exist."""
    rows = _read(session, SELECT_DEPLOYMENT.format(keyspace=keyspace))
    if not rows:
        return None
    _check_row(keyspace, rows[0])
    return deployment_of(rows[0])


def deployment_of(row: Any) -> Deployment:
    """Return the deployment of a stored row."""
    return Deployment(
        format=row.format,
        serial_consistency=cast("SerialConsistency", row.serial_consistency),
        settle_ms=row.settle_ms,
        skew_ms=row.skew_ms,
        gc_grace_s=row.gc_grace,
        changes=row.changes,
        home_dc=getattr(row, "home_dc", None),  # a keyspace of an older version has none of these
        centre_epoch=getattr(row, "centre_epoch", None) or 0,
        retiring=getattr(row, "retiring", None) is not False,
        opens_at_ms=getattr(row, "opens_at", None) or 0,
    )


def _check_row(keyspace: str, row: Any) -> None:
    """Check the row's values: no client may guess what all must agree on."""
    values = (getattr(row, name, None) for name in decode.DEPLOYMENT)
    reason = decode.fault(tuple(values), decode.DEPLOYMENT)
    if reason:
        raise SchemaMismatch(
            f"Keyspace {keyspace}: the row of table deployment cannot be read: {reason}. "
            "Set it to what it was at bootstrap."
        )


def _check_migrations(session: Session, keyspace: str) -> None:
    """Check that all `pre` migrations are applied; `post` ones may wait while old code still runs."""
    applied = {row.number for row in _read(session, SELECT_MIGRATIONS.format(keyspace=keyspace))}
    missing = [
        m.name
        for m in load_migrations()
        if m.phase == "pre" and m.number not in applied and m.what not in DISPENSABLE
    ]
    if missing:
        raise SchemaMismatch(f"Keyspace {keyspace} lacks the migration {', '.join(missing)}. {_APPLY_PRE}")


def _read(session: Session, query: str) -> list[Any]:
    try:
        return list(session.execute(query, execution_profile=SERIAL_READ))
    except DRIVER_ERRORS as exc:
        if outcome.is_absent(exc):
            return []
        raise outcome.error(exc, Kind.READ) from exc
