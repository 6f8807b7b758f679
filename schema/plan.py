"""The statements that `apply` would run. Pure: the same options and state give the same plan."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cqueue.errors import ConfigError, SchemaMismatch
from cqueue.schema.drift import Drift, checksum_drift, option_drift
from cqueue.schema.migrations import Migration, map_literal, text_literal
from cqueue.schema.options import (
    DEFAULT_COMPACTION,
    DEFAULT_GC_GRACE_S,
    DEFAULT_SETTLE_MS,
    DEFAULT_SKEW_MS,
    Options,
)
from cqueue.schema.state import State, options_to_json
from cqueue.schema.statements import (
    CREATE_KEYSPACE,
    CREATE_LOCK,
    CREATE_MIGRATIONS,
    INSERT_DEPLOYMENT,
    RECORD_HOME,
    RECORD_MIGRATION,
    RECORD_OPTIONS,
    USE_KEYSPACE,
    Statement,
)
from cqueue.settings import SerialConsistency, Settings
from cqueue.store.operations import FORMAT

# Namespace of the ids of `schema_lock`, one a keyspace. Never change it.
_LOCK_IDS: Final = uuid.UUID("8c2f4f0e-6f0b-4f0e-9f5e-6d1f0c0a5b11")
_MAX_DEFAULT_COPIES: Final = 3
"""Copies of a new keyspace in a data centre with enough nodes: the usual number, which survives one node."""


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a plan.

    Attributes:
        cql: statement without a closing semicolon.
        comment: why it is there.
        before_lock: it makes the lock possible; several processes may run it at once.
        serial: serial consistency of a conditional mutation.
    """

    cql: str
    comment: str
    before_lock: bool = False
    serial: SerialConsistency | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps to take, differences left to the operator, and notes about chosen defaults."""

    steps: tuple[Step, ...]
    drift: tuple[Drift, ...] = ()
    notes: tuple[str, ...] = ()


def make_plan(
    options: Options,
    state: State,
    migrations: Sequence[Migration],
    settings: Settings,
    *,
    only_pre: bool = False,
) -> Plan:
    """Return the steps from `state` to the schema of `migrations` with `options`.

    Args:
        options: what the operator asked for.
        state: the keyspace as it is.
        migrations: all migrations, in order.
        settings: whose data centre and serial consistency are the defaults of a new keyspace.
        only_pre: stop before the first outstanding `post` migration of a complete schema.

    Raises:
        SchemaMismatch: the keyspace is newer than this code, or was bootstrapped with another serial
            consistency.
        ConfigError: the replication names a data centre that does not exist, or lacks the local one.
    """
    state.check_not_newer(tuple(migrations))
    _check_serial(options, state)
    _check_replication(options, state, settings)
    full, notes = _complete(options, state, settings)
    home = settings.local_dc if full.serial_consistency == "local_serial" else None
    steps = tuple(_steps(full, state, _outstanding(state, migrations, only_pre=only_pre), home))
    if len(state.nodes) > 1 and home is not None and any(_records_home(step) for step in steps):
        notes = (*notes, f"Clients of this keyspace work in {home}, its home; `cqueue dc switch` moves it.")
    drift: list[Drift] = []
    asked = replace(
        full,
        replication=options.replication or full.replication,
        compaction=options.compaction or full.compaction,
    )
    if state.replication is not None:
        # Tables of a bootstrap that was cut short may have been made with other options.
        wanted = asked if state.deployment is None else options
        drift = [*checksum_drift(state, migrations), *option_drift(state, wanted, migrations)]
    if not drift and not steps and asked != full:
        # The operator has altered them by hand; only the record is out of date.
        values = _values(asked, state.keyspace)
        steps = (_step(USE_KEYSPACE, values, before_lock=True), _step(RECORD_OPTIONS, values))
    return Plan(steps, tuple(drift), notes)


def _steps(
    options: Options, state: State, outstanding: Sequence[Migration], home: str | None
) -> Iterator[Step]:
    """Yield the statements; `options` has no None. A complete schema needs no statement."""
    values = _values(options, state.keyspace)
    values["home_dc"] = "null" if home is None else text_literal(home)
    complete = state.recorded is not None and state.deployment is not None and "schema_lock" in state.tables
    lacks_home = home is not None and _lacks_home(state, outstanding)
    if complete and not (outstanding or lacks_home):
        return
    if state.replication is None:
        yield _step(CREATE_KEYSPACE, values, before_lock=True)
    yield _step(USE_KEYSPACE, values, before_lock=True)
    if "schema_lock" not in state.tables or state.deployment is None:
        # While another bootstrap may be under way, this statement too waits until the table can be used.
        yield _step(CREATE_LOCK, values, before_lock=True)
    if "schema_migrations" not in state.tables:
        yield _step(CREATE_MIGRATIONS, values)
    for migration in outstanding:
        for step in _migration_steps(migration, values):
            is_conditional = step.cql.startswith("UPDATE") and " IF " in step.cql
            yield replace(step, serial=options.serial_consistency) if is_conditional else step
    if state.recorded is None:
        # After the tables, so that options that Cassandra refuses are not recorded.
        yield _step(RECORD_OPTIONS, values)
    if state.deployment is None:
        yield replace(_step(INSERT_DEPLOYMENT, values), serial=options.serial_consistency)
    elif lacks_home:
        yield replace(_step(RECORD_HOME, values), serial=options.serial_consistency)


def _lacks_home(state: State, outstanding: Sequence[Migration]) -> bool:
    """Return whether the deployment row has no home, but has a column for it once the migrations have run."""
    if state.deployment is None or state.deployment.home_dc is not None:
        return False
    to_come = (statement for migration in outstanding for statement in migration.statements)
    return "home_dc" in state.tables["deployment"].columns or any("home_dc" in one for one in to_come)


def _records_home(step: Step) -> bool:
    return step.comment in {INSERT_DEPLOYMENT.comment, RECORD_HOME.comment}


def _migration_steps(migration: Migration, values: Mapping[str, str]) -> Iterator[Step]:
    for statement in migration.render(values):
        yield Step(statement, f"Migration {migration.name}.")
    own = {
        "number": str(migration.number),
        "phase": text_literal(migration.phase),
        "what": text_literal(migration.what),
        "checksum": text_literal(migration.checksum),
    }
    yield _step(RECORD_MIGRATION, own)


def _outstanding(state: State, migrations: Sequence[Migration], *, only_pre: bool) -> list[Migration]:
    missing = [migration for migration in migrations if migration.number not in state.applied]
    if not only_pre or state.deployment is None:
        return missing
    first_post = next((m.number for m in missing if m.phase == "post"), len(migrations) + 1)
    return [migration for migration in missing if migration.number < first_post]


def _step(statement: Statement, values: Mapping[str, str], *, before_lock: bool = False) -> Step:
    cql = statement.cql.format(**values)
    return Step(cql, statement.comment, before_lock=before_lock)


def _values(options: Options, keyspace: str) -> dict[str, str]:
    replication = {"class": "NetworkTopologyStrategy", **(options.replication or {})}
    return {
        "keyspace": keyspace,
        "replication": map_literal(replication),
        "compaction": map_literal(options.compaction or {}),
        "gc_grace": str(options.gc_grace_s),
        "serial_consistency": text_literal(str(options.serial_consistency)),
        "settle_ms": str(options.settle_ms),
        "skew_ms": str(options.skew_ms),
        "format": str(FORMAT),
        "lock_id": str(uuid.uuid5(_LOCK_IDS, keyspace)),
        "options": text_literal(options_to_json(options)),
    }


def _complete(options: Options, state: State, settings: Settings) -> tuple[Options, tuple[str, ...]]:
    """Return options without None, from the record and the defaults; and notes about the defaults."""
    known, row = state.recorded or Options(), state.deployment
    replication = known.replication or state.replication or options.replication
    notes: tuple[str, ...] = ()
    if replication is None:
        replication, notes = _default_replication(state, settings)
    complete = Options(
        replication=replication,
        compaction=known.compaction or options.compaction or DEFAULT_COMPACTION,
        gc_grace_s=(row and row.gc_grace_s) or options.gc_grace_s or DEFAULT_GC_GRACE_S,
        serial_consistency=(row and row.serial_consistency)
        or options.serial_consistency
        or settings.serial_consistency,
        settle_ms=options.settle_ms or DEFAULT_SETTLE_MS,
        skew_ms=options.skew_ms or DEFAULT_SKEW_MS,
    )
    return complete, notes


def _default_replication(state: State, settings: Settings) -> tuple[dict[str, int], tuple[str, ...]]:
    if settings.local_dc is None:
        raise ConfigError("Give --replication, or local_dc in the URL: there is no data centre to take.")
    if not state.nodes:
        copies, why = _MAX_DEFAULT_COPIES, "assumed, since the cluster was not asked"
    else:
        copies = max(1, min(_MAX_DEFAULT_COPIES, state.nodes.get(settings.local_dc, 0)))
        why = f"one on each node, {_MAX_DEFAULT_COPIES} at most"
    text = f"replication {settings.local_dc}={copies}: {why}. --replication sets it."
    return {settings.local_dc: copies}, (text,)


def _check_serial(options: Options, state: State) -> None:
    row = state.deployment
    if row is None or options.serial_consistency in {None, row.serial_consistency}:
        return
    raise SchemaMismatch(
        f"Keyspace {state.keyspace} was bootstrapped with serial consistency {row.serial_consistency}, which "
        "is fixed: conditional mutations of both kinds do not see each other. For another one, make another "
        "keyspace and move the messages."
    )


def _check_replication(options: Options, state: State, settings: Settings) -> None:
    if options.replication is None:
        return
    unknown = sorted(set(options.replication) - set(state.nodes)) if state.nodes else []
    if unknown:
        names = ", ".join(sorted(state.nodes))
        raise ConfigError(f"replication: there is no data centre {', '.join(unknown)}. There are: {names}.")
    for name, copies in options.replication.items():
        if state.nodes and state.nodes[name] < copies // 2 + 1:
            raise ConfigError(
                f"replication {name}={copies} needs {copies // 2 + 1} nodes for a quorum; {name} has "
                f"{state.nodes[name]}."
            )
    home = state.deployment.home_dc if state.deployment is not None else None
    if home is not None and home not in options.replication:
        raise ConfigError(
            f"replication has no copies in {home}, the home of this keyspace, whose copies hold everything. "
            "`cqueue dc switch` moves the home first."
        )
    if settings.local_dc is not None and settings.local_dc not in options.replication:
        raise ConfigError(
            f"replication has no copies in {settings.local_dc}, the local_dc of these settings: nothing "
            "could be read or written there."
        )
