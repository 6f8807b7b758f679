"""The state of a keyspace: tables, applied migrations, deployment row. Read once, compared by pure code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cassandra import InvalidRequest

from cqueue.errors import ConfigError, SchemaMismatch
from cqueue.schema.deployment import NEWER, Deployment, read_deployment
from cqueue.schema.execute import run
from cqueue.schema.migrations import Migration
from cqueue.schema.model import Column, Table
from cqueue.schema.options import Options, parse_compaction
from cqueue.schema.statements import SELECT_COLUMNS, SELECT_KEYSPACE, SELECT_MIGRATIONS, SELECT_TABLES
from cqueue.store.connection import Connection
from cqueue.store.operations import FORMAT


@dataclass(frozen=True, slots=True)
class Applied:
    """A row of `schema_migrations`."""

    name: str
    checksum: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A keyspace as it is.

    Attributes:
        keyspace: name of the keyspace.
        nodes: numbers of nodes by data centre; empty if the cluster was not asked.
        replication: copies by data centre; None if the keyspace does not exist.
        strategy: replication class, without its package.
        tables: tables by name, bookkeeping included.
        applied: applied migrations by number, without row 0.
        recorded: options in force, from row 0; None before the first bootstrap.
        deployment: the deployment row; None before the first bootstrap is complete.
    """

    keyspace: str
    nodes: Mapping[str, int] = field(default_factory=dict)
    replication: Mapping[str, int] | None = None
    strategy: str = "NetworkTopologyStrategy"
    tables: Mapping[str, Table] = field(default_factory=dict)
    applied: Mapping[int, Applied] = field(default_factory=dict)
    recorded: Options | None = None
    deployment: Deployment | None = None

    def check_not_newer(self, migrations: tuple[Migration, ...]) -> None:
        """Refuse to change what newer code has made.

        Raises:
            SchemaMismatch: there is a migration or a format that this code does not know.
        """
        unknown = [row.name for number, row in self.applied.items() if number > len(migrations)]
        if unknown:
            raise SchemaMismatch(f"Keyspace {self.keyspace} has the migration {max(unknown)}: {NEWER}.")
        if self.deployment is not None and self.deployment.format > FORMAT:
            raise SchemaMismatch(f"Keyspace {self.keyspace} has format {self.deployment.format}: {NEWER}.")


def read_state(connection: Connection, keyspace: str) -> State:
    """Read everything that plan, apply and verify decide by.

    Raises:
        SchemaMismatch: the deployment row, or the recorded options, cannot be read.
        Unavailable: the cluster did not answer.
    """
    session = connection.session
    nodes = Counter(host.datacenter for host in connection.cluster.metadata.all_hosts())
    rows = run(session, SELECT_KEYSPACE, (keyspace,))
    if not rows:
        return State(keyspace=keyspace, nodes=nodes)
    replication = dict(rows[0].replication)
    strategy = replication.pop("class").rpartition(".")[2]
    tables = _read_tables(session, keyspace)
    recorded, applied = _read_migrations(session, keyspace) if "schema_migrations" in tables else (None, {})
    return State(
        keyspace=keyspace,
        nodes=nodes,
        replication={name: int(number.partition("/")[0]) for name, number in replication.items()},
        strategy=strategy,
        tables=tables,
        applied=applied,
        recorded=recorded,
        deployment=read_deployment(session, keyspace) if "deployment" in tables else None,
    )


def options_to_json(options: Options) -> str:
    """Return the options that no other table holds, as JSON."""
    return json.dumps({"replication": options.replication, "compaction": options.compaction})


def _options_from_json(text: str | None) -> Options | None:
    if text is None:
        return None
    try:
        values = json.loads(text)
        compaction = values.get("compaction")
        return Options(
            replication=values.get("replication"),
            compaction=None if compaction is None else parse_compaction(json.dumps(compaction)),
        )
    except (ValueError, TypeError, AttributeError, ConfigError) as exc:
        raise SchemaMismatch(
            f"The options in table schema_migrations, row name='cqueue' and number=0, cannot be read: {exc}. "
            "Delete the row; `cqueue schema apply` with the options that the keyspace was made with "
            "records them again."
        ) from exc


def _read_tables(session: Any, keyspace: str) -> dict[str, Table]:
    columns: dict[str, dict[str, Column]] = {}
    for row in run(session, SELECT_COLUMNS, (keyspace,)):
        column = Column(row.type, row.kind, row.position, row.clustering_order)
        columns.setdefault(row.table_name, {})[row.column_name] = column
    return {
        row.table_name: Table(columns.get(row.table_name, {}), dict(row.compaction), row.gc_grace_seconds)
        for row in run(session, SELECT_TABLES, (keyspace,))
    }


def _read_migrations(session: Any, keyspace: str) -> tuple[Options | None, dict[int, Applied]]:
    try:
        found = run(session, SELECT_MIGRATIONS.format(keyspace=keyspace))
    except ConfigError as exc:
        if not isinstance(exc.__cause__, InvalidRequest):
            raise
        # Another process is creating the table: it is listed before it can be read. `apply` reads again
        # under the lock.
        found = []
    rows = {row.number: row for row in found}
    first = rows.pop(0, None)
    applied = {
        number: Applied(f"{number:02}_{row.phase}_{row.what}", row.checksum) for number, row in rows.items()
    }
    return _options_from_json(first.options) if first is not None else None, applied
