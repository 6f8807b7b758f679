"""Differences between a keyspace and what it should be, and what an operator can do about each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cqueue.schema.migrations import Migration, map_literal
from cqueue.schema.model import Column, Table, tables_of
from cqueue.schema.options import Options
from cqueue.schema.state import State
from cqueue.schema.statements import (
    ALTER_COMPACTION,
    ALTER_GC_GRACE,
    ALTER_REPLICATION,
    UPDATE_DEPLOYMENT,
    in_cqlsh,
)

_RUN_APPLY = "Run `cqueue schema apply`."


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference.

    Attributes:
        where: the keyspace, table, column or migration.
        problem: what is wrong.
        remedy: what to do, or "".
        cql: statements that would mend it, in order; nothing runs them automatically.
    """

    where: str
    problem: str
    remedy: str = ""
    cql: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}" + (f" {self.remedy}" if self.remedy else "")


def recorded_options(state: State) -> Options:
    """Return the options that the keyspace was given. An option that is not recorded is not compared."""
    options = state.recorded or Options()
    if state.deployment is not None:
        options = replace(options, gc_grace_s=state.deployment.gc_grace_s)
    return options


def all_drift(state: State, migrations: Sequence[Migration]) -> list[Drift]:
    """Return all differences from these migrations and from the keyspace's own recorded options."""
    if state.replication is None:
        return [Drift(f"keyspace {state.keyspace}", "does not exist.", _RUN_APPLY)]
    return [
        *_migration_drift(state, migrations),
        *_table_drift(state, migrations),
        *option_drift(state, recorded_options(state), migrations),
    ]


def option_drift(state: State, wanted: Options, migrations: Sequence[Migration]) -> list[Drift]:
    """Return the differences from those options that are not None."""
    return [
        *_replication_drift(state, wanted),
        *_table_option_drift(state, wanted, migrations),
        *_deployment_drift(state, wanted),
    ]


def checksum_drift(state: State, migrations: Sequence[Migration]) -> Iterator[Drift]:
    """Yield applied migrations whose file has changed since."""
    for migration in migrations:
        row = state.applied.get(migration.number)
        if row is not None and (row.checksum, row.name) != (migration.checksum, migration.name):
            yield Drift(
                f"migration {migration.name}",
                f"was applied with another content, as {row.name}.",
                "Applied files never change; take the one that was applied, or write a new migration.",
            )


def expected_tables(
    migrations: Sequence[Migration], wanted: Options, there: Mapping[str, Table] | None = None
) -> dict[str, Table]:
    """Return the tables that the migrations make of those that are there: by default of none.

    Options that are not wanted are None.
    """
    # The parser needs a value for every option; these stand for "not wanted", because they are impossible.
    compaction = map_literal(wanted.compaction or {})
    gc_grace = str(wanted.gc_grace_s or 0)
    values = {"replication": "{}", "compaction": compaction, "gc_grace": gc_grace}
    statements = (statement for migration in migrations for statement in migration.render(values))
    tables = tables_of(statements, there)
    return {
        name: replace(table, compaction=table.compaction or None, gc_grace_s=table.gc_grace_s or None)
        for name, table in tables.items()
    }


def _migration_drift(state: State, migrations: Sequence[Migration]) -> Iterator[Drift]:
    if "schema_migrations" not in state.tables:
        yield Drift("table schema_migrations", "does not exist.", _RUN_APPLY)
        return
    for migration in migrations:
        if migration.number not in state.applied:
            yield Drift(f"migration {migration.name}", "has not been applied.", _RUN_APPLY)
    yield from checksum_drift(state, migrations)
    if state.deployment is None:
        yield Drift("table deployment", "has no row: the bootstrap is not complete.", _RUN_APPLY)


def _table_drift(state: State, migrations: Sequence[Migration]) -> Iterator[Drift]:
    """Yield differences in structure. Extra tables and columns are no difference."""
    applied = [migration for migration in migrations if migration.number in state.applied]
    for name, table in expected_tables(applied, Options()).items():
        actual = state.tables.get(name)
        if actual is None:
            yield Drift(f"table {name}", "does not exist, although its migration was applied.")
            continue
        yield from _column_drift(state.keyspace, name, table.columns, actual.columns)


def _column_drift(
    keyspace: str, table: str, expected: Mapping[str, Column], actual: Mapping[str, Column]
) -> Iterator[Drift]:
    for name, column in expected.items():
        found = actual.get(name)
        if found is None:
            add = f"ALTER TABLE {keyspace}.{table} ADD {name} {column.type}"
            cql = (add,) if column.position < 0 else ()
            yield Drift(f"column {table}.{name}", "does not exist.", cql=cql)
        elif found != column:
            yield Drift(f"column {table}.{name}", f"is {_described(found)}, not {_described(column)}.")


def _described(column: Column) -> str:
    place = "" if column.position < 0 else f" {column.position}"
    order = "" if column.order == "none" else f" {column.order}"
    return f"{column.type} ({column.kind}{place}{order})"


def _replication_drift(state: State, wanted: Options) -> Iterator[Drift]:
    if wanted.replication is None:
        return
    if state.strategy == "NetworkTopologyStrategy" and state.replication == wanted.replication:
        return
    copies = _next_copies(state, wanted.replication)
    replication = map_literal({"class": "NetworkTopologyStrategy", **copies})
    cql = ALTER_REPLICATION.format(keyspace=state.keyspace, replication=replication)
    yield Drift(
        f"keyspace {state.keyspace}",
        f"has replication {state.strategy} {_listed(state.replication or {})}, "
        f"not NetworkTopologyStrategy {_listed(wanted.replication)}.",
        f"{_order(state, copies)} {_keep(state.replication or {})}",
        (cql,),
    )


def _order(state: State, copies: Mapping[str, int]) -> str:
    """Return what to run around the statement: how the new copies get what there is.

    A data centre that does not vote gets all its copies at once, so that it is rebuilt. A repair of its nodes
    compares all that clients have stored; a change where clients vote takes one of all nodes.
    """
    present, home = state.replication or {}, state.deployment.home_dc if state.deployment else None
    changed = [dc for dc in sorted({*present, *copies}) if present.get(dc, 0) != copies.get(dc, 0)]
    new = [dc for dc in changed if home not in {None, dc} and not present.get(dc)]
    there = f"on each node of {', '.join(new)}"
    repair = (
        f"`nodetool repair -full {state.keyspace}` {there if new and changed == new else 'on every node'}"
    )
    if new and home is not None:
        repair = f"`nodetool rebuild -ks {state.keyspace} -- {shlex.quote(home)}` {there}, then {repair}"
    return f"Run the statement, then {repair}, then this command again."


def _keep(present: Mapping[str, int]) -> str:
    """Return what records the copies that are there, as somebody may have altered them on purpose."""
    copies = shlex.quote(",".join(f"{dc}={count}" for dc, count in sorted(present.items())))
    return f"Or keep what is there: `cqueue schema apply --replication {copies}`."


def _next_copies(state: State, wanted: Mapping[str, int]) -> Mapping[str, int]:
    """Return what to alter the copies to next: by one at most where clients ask for a quorum.

    Quorums of n and of n + 1 copies share a replica. A quorum of three where one was may be the two new ones,
    which are empty: clients would drop partitions whose messages the first one holds.
    """
    if state.deployment is None:
        return wanted
    present, home = state.replication or {}, state.deployment.home_dc
    if state.strategy != "NetworkTopologyStrategy":
        dc = home or min(wanted)
        return {dc: present.get("replication_factor", wanted.get(dc, 1))}
    changed = [
        dc
        for dc in sorted({*present, *wanted}, key=lambda dc: (present.get(dc, 0) > wanted.get(dc, 0), dc))
        if home in {None, dc} and present.get(dc, 0) != wanted.get(dc, 0)
    ]  # those to raise come first: none is thinned before others have the copies
    copies = {**wanted, **{dc: present.get(dc, 0) for dc in changed}}
    for dc in changed[:1]:
        copies[dc] += 1 if wanted.get(dc, 0) > copies[dc] else -1
    return {dc: count for dc, count in sorted(copies.items()) if count}


def _table_option_drift(state: State, wanted: Options, migrations: Sequence[Migration]) -> Iterator[Drift]:
    """Yield differences in options, without those that an outstanding migration ends."""
    outstanding = [migration for migration in migrations if migration.number not in state.applied]
    tables = expected_tables(outstanding, wanted, state.tables)
    for name, table in expected_tables(migrations, wanted).items():
        actual = tables.get(name)
        if actual is None:
            continue
        qualified = f"{state.keyspace}.{name}"
        if table.compaction is not None and not _same_compaction(table.compaction, actual.compaction or {}):
            cql = ALTER_COMPACTION.cql.format(table=qualified, compaction=map_literal(table.compaction))
            problem = f"has compaction {_listed(actual.compaction or {})}, not {_listed(table.compaction)}."
            yield Drift(f"table {name}", problem, ALTER_COMPACTION.comment, (cql,))
        if table.gc_grace_s is not None and table.gc_grace_s != actual.gc_grace_s:
            cql = ALTER_GC_GRACE.format(table=qualified, gc_grace=table.gc_grace_s)
            problem = f"has gc_grace_seconds {actual.gc_grace_s}, not {table.gc_grace_s}."
            yield Drift(f"table {name}", problem, cql=(cql,))


def _same_compaction(wanted: Mapping[str, str], actual: Mapping[str, str]) -> bool:
    """Compare without the defaults and the package name that Cassandra adds."""
    short = {**actual, "class": actual.get("class", "").rpartition(".")[2]}
    asked = {**wanted, "class": wanted.get("class", "").rpartition(".")[2]}
    return asked.items() <= short.items()


def _deployment_drift(state: State, wanted: Options) -> Iterator[Drift]:
    row = state.deployment
    if row is None:
        return
    for column, given, stored, order in (
        ("gc_grace", wanted.gc_grace_s, row.gc_grace_s, _GC_GRACE_ORDER),
        ("settle_ms", wanted.settle_ms, row.settle_ms, _STOP_FIRST),
        ("skew_ms", wanted.skew_ms, row.skew_ms, _STOP_FIRST),
    ):
        if given is not None and given != stored:
            cql = UPDATE_DEPLOYMENT.format(
                keyspace=state.keyspace,
                assignments=f"{column} = {given}",
                changes=row.changes,
                next_changes=row.changes + 1,
            )
            remedy = f"{order} {in_cqlsh(row.serial_consistency)}"
            yield Drift("table deployment", f"has {column} {stored}, not {given}.", remedy, (cql,))


_GC_GRACE_ORDER = (
    "To raise it, alter the tables first and this row last; to lower it, this row first and the tables a "
    "minute later."
)
_STOP_FIRST = "All clients must use one value: stop every one of them first."


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
