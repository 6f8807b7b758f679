"""Moves the home of a keyspace to another data centre, and records when the old one's data is settled.

A switch is one conditional mutation of the deployment row, which holds its record too. So of two operators
one succeeds, and every switch is recorded. A switch stops the retiring of wide rows: the old data centre may
hold acknowledged messages that it has not copied, and the tombstone of a wide row that the new home dropped
would hide them for good when they arrive.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cassandra import ConsistencyLevel

from cqueue.errors import ConfigError, CqueueError, NotDone, OutcomeUnknown, SchemaMismatch, Unavailable
from cqueue.runtime.home import check_home
from cqueue.schema.deployment import OPENS_AFTER_S, Deployment, deployment_of, now_ms
from cqueue.schema.execute import run
from cqueue.schema.statements import RESUME_RETIRING, SELECT_DEPLOYMENT, SELECT_KEYSPACE, SWITCH_HOME
from cqueue.settings import SerialConsistency, Settings
from cqueue.store import outcome
from cqueue.store.connection import Connection

EVERYWHERE: Final = "EACH_QUORUM"
"""A majority in each data centre: the clients of every data centre see the change at once."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the record.

    Attributes:
        at: by the cluster's clock, in UTC.
        did: what an operator did, as JSON values.
    """

    at: datetime
    did: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Centre:
    """Where clients of a keyspace work, and all decisions about that, oldest first."""

    deployment: Deployment
    decisions: tuple[Decision, ...]


def read_centre(connection: Connection, settings: Settings, *, wide: bool = False) -> Centre:
    """Return where clients of the keyspace work.

    Args:
        connection: to the cluster.
        settings: name the keyspace.
        wide: read what a majority of all data centres knows, including mutations under way; otherwise what
            the local data centre knows.

    Raises:
        SchemaMismatch: there is no complete schema.
        Unavailable: too few nodes answer.
    """
    return _read(connection, settings, ConsistencyLevel.SERIAL if wide else ConsistencyLevel.LOCAL_SERIAL)


def newest_centre(connection: Connection, settings: Settings) -> Centre:
    """Return the home as a majority of each data centre knows it, or as the local one if not all answer.

    A client needs this answer at connect: its own data centre may not know of a switch yet.
    """
    here = read_centre(connection, settings)
    with suppress(CqueueError):
        there = _read(connection, settings, ConsistencyLevel.EACH_QUORUM)
        return max(here, there, key=lambda centre: centre.deployment.centre_epoch)
    return here


def _read(connection: Connection, settings: Settings, level: int) -> Centre:
    cql = SELECT_DEPLOYMENT.format(keyspace=settings.keyspace)
    try:
        rows = run(connection.session, cql, read_at=level)
    except ConfigError as exc:
        if exc.__cause__ is None or not outcome.is_absent(exc.__cause__):
            raise
        rows = []
    if not rows:
        raise SchemaMismatch(
            f"Keyspace {settings.keyspace} does not exist, or has no complete schema. Correct the URL, or "
            "run `cqueue schema apply`."
        )
    log = getattr(rows[0], "centre_log", None) or {}
    decisions = [Decision(at.replace(tzinfo=UTC), json.loads(text)) for at, text in sorted(log.items())]
    return Centre(deployment_of(rows[0]), tuple(decisions))


def switch_home(
    connection: Connection,
    settings: Settings,
    new_dc: str,
    *,
    old_centre_lost: bool = False,
    reason: str = "",
) -> Centre:
    """Make `new_dc` the home, from within it. Clients of the old home are refused from then on.

    Args:
        connection: opened with `use_keyspace=False`.
        settings: with `local_dc` = `new_dc`.
        new_dc: a data centre with copies of the keyspace.
        old_centre_lost: agree within `new_dc` alone. Clients that still run in the old home then learn
            nothing.
        reason: text for the record.

    Raises:
        ConfigError: the keyspace has no home, or `new_dc` is the home already, or has no copies.
        Unavailable: too few nodes answer; nothing was changed.
        NotDone: another operator has moved the home at the same moment.
        OutcomeUnknown: the home may have been moved, or may be moved in a moment; `cqueue dc show` tells.
    """
    wide = not old_centre_lost
    now = read_centre(connection, settings, wide=wide).deployment
    _check_switch(connection, settings, now, new_dc)
    epoch, at_ms = now.centre_epoch + 1, now_ms(connection.session)
    opens_at_ms = at_ms + round(OPENS_AFTER_S * 1000)
    did = _signed("switch", reason) | {
        "from": now.home_dc,
        "to": new_dc,
        "epoch": epoch,
        "old_centre_lost": old_centre_lost,
    }
    written = (new_dc, epoch, opens_at_ms, now.changes + 1, _entry(at_ms, did))
    values = (*written, now.home_dc, now.centre_epoch)
    return _make(connection, settings, SWITCH_HOME, values, did, wide=wide)


def resume_retiring(
    connection: Connection, settings: Settings, *, repaired: bool, reason: str = ""
) -> Centre:
    """Let wide rows be retired again: the old home's messages have been copied, or are given up.

    Args:
        connection: opened with `use_keyspace=False`.
        settings: with `local_dc` = the home.
        repaired: every data centre has been repaired; all of them must answer. False gives up what was not
            copied.
        reason: text for the record.

    Raises:
        ConfigError: wide rows are being retired already, or the keyspace has no home.
        WrongDataCentre: `local_dc` is not the home.
        Unavailable: too few nodes answer; nothing was changed.
        NotDone: another operator has changed the row at the same moment.
        OutcomeUnknown: the row may have been changed, or may be changed in a moment; `cqueue dc show` tells.
    """
    now = read_centre(connection, settings).deployment
    check_home(_home(settings, now), settings.local_dc)
    if now.retiring:
        raise ConfigError(f"Wide rows of keyspace {settings.keyspace} are being retired: nothing to resume.")
    if repaired:
        _check_all_answer(connection, settings)
    did = _signed("resume retiring", reason) | {"epoch": now.centre_epoch, "repaired": repaired}
    written = (now.changes + 1, _entry(now_ms(connection.session), did))
    values = (*written, now.home_dc, now.centre_epoch)
    return _make(connection, settings, RESUME_RETIRING, values, did, wide=False)


def _check_switch(connection: Connection, settings: Settings, now: Deployment, new_dc: str) -> None:
    home = _home(settings, now)
    if new_dc == home:
        raise ConfigError(f"Clients of keyspace {settings.keyspace} work in {new_dc} already.")
    if settings.local_dc != new_dc:
        raise ConfigError(
            f"These settings have local_dc={settings.local_dc}. The new home has to answer for itself: run "
            f"it with local_dc={new_dc} in the URL."
        )
    (row,) = run(connection.session, SELECT_KEYSPACE, (settings.keyspace,))
    if new_dc not in row.replication:
        raise ConfigError(f"Keyspace {settings.keyspace} has no copies in {new_dc}: {dict(row.replication)}.")


def _home(settings: Settings, now: Deployment) -> str:
    if now.home_dc is not None:
        return now.home_dc
    if now.serial_consistency == "serial":
        raise ConfigError(
            f"Keyspace {settings.keyspace} has serial_consistency=serial: its clients work in every data "
            "centre, and it has no home."
        )
    raise ConfigError(f"Keyspace {settings.keyspace} has no home yet. Run `cqueue schema apply` where it is.")


def _check_all_answer(connection: Connection, settings: Settings) -> None:
    """Check that all data centres answer: a repair needs all of them."""
    cql = SELECT_DEPLOYMENT.format(keyspace=settings.keyspace)
    try:
        run(connection.session, cql, read_at=ConsistencyLevel.EACH_QUORUM)
    except CqueueError as exc:
        raise Unavailable(
            f"Not all data centres answer, so they cannot have been repaired ({exc}). Repair them first, or "
            "give up what they hold: --given-up."
        ) from exc


def _make(
    connection: Connection,
    settings: Settings,
    change: str,
    values: Sequence[Any],
    did: Mapping[str, Any],
    *,
    wide: bool,
) -> Centre:
    """Make a conditional mutation; without an answer, find out whether it was made.

    did: the decision by which a read recognizes the mutation. wide: all data centres agree on it.
    """
    cql = change.format(keyspace=settings.keyspace)
    level: SerialConsistency = "serial" if wide else "local_serial"
    commit = EVERYWHERE if wide else "LOCAL_QUORUM"
    try:
        applied = run(connection.session, cql, values, serial=level, commit=commit)[0][0]
    except Unavailable as exc:
        raise Unavailable(f"{exc} Nothing was changed.{_IF_LOST if wide else ''}") from exc
    except OutcomeUnknown as exc:
        return _found_out(connection, settings, did, exc, wide=wide)
    try:
        centre = read_centre(connection, settings, wide=wide)
    except CqueueError as exc:  # `Unavailable` would say that nothing was changed
        known = "It is stored" if applied else "It is not known whether it is stored"
        raise OutcomeUnknown(
            f"{known}, and what stands now cannot be read. `cqueue dc show` tells once nodes answer. ({exc})"
        ) from exc
    # "Not applied" is also the answer to the second copy of a request that was sent twice.
    if not applied and not _is_in(centre, did):
        raise NotDone(
            f"Somebody else was quicker: the home of keyspace {settings.keyspace} is "
            f"{centre.deployment.home_dc} (epoch {centre.deployment.centre_epoch}). Nothing was changed."
        )
    return centre


_IF_LOST: Final = (
    " All data centres have to answer. If the old one is lost, stop its clients and add --old-centre-lost."
)


def _is_in(centre: Centre, did: Mapping[str, Any]) -> bool:
    """Return whether the record shows that the mutation of a decision was made."""
    return any(decision.did == did for decision in centre.decisions)


def _found_out(
    connection: Connection, settings: Settings, did: Mapping[str, Any], error: OutcomeUnknown, *, wide: bool
) -> Centre:
    """Return what a serial read shows: the read completes what nodes have accepted.

    A mutation that may have reached one data centre only is read from a majority in each. That stores it
    there: clients of the old home have to learn of it.
    """
    try:
        centre = read_centre(connection, settings, wide=wide)
        if wide:
            centre = _read(connection, settings, ConsistencyLevel.EACH_QUORUM)
    except CqueueError:
        raise OutcomeUnknown(
            f"It is not known whether it is stored. `cqueue dc show` tells once nodes answer. ({error})"
        ) from error
    if _is_in(centre, did):
        return centre
    raise OutcomeUnknown(
        "The answer was lost, and it is not stored as yet; it may still be, in a moment. `cqueue dc show` "
        f"tells, and to repeat it does no harm. ({error})"
    ) from error


def _signed(what: str, reason: str) -> dict[str, Any]:
    """Return a decision's author and reason, with a token that no other decision has."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user, as in some containers
        user = str(os.getuid())
    return {
        "what": what,
        "who": f"{user}@{socket.gethostname()}",
        "reason": reason,
        "token": secrets.token_hex(4),
    }


def _entry(at_ms: int, did: Mapping[str, Any]) -> dict[datetime, str]:
    return {datetime.fromtimestamp(at_ms / 1000, UTC): json.dumps(did)}
