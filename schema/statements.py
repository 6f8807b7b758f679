"""The CQL of the bookkeeping: what `cqueue schema` reads and writes besides the numbered migrations.

Rows of `schema_migrations` are written by plain mutations. They are written under the lock only, and Paxos
could finish a conditional mutation years later in a table of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, with the reason why it is there or what to do after it."""

    comment: str
    cql: str


CREATE_KEYSPACE: Final = Statement(
    "The keyspace.",
    "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication} AND durable_writes = true",
)

USE_KEYSPACE: Final = Statement("All that follows is in it.", "USE {keyspace}")

# Two processes may create the table at the same moment through two nodes. With an id each, the cluster would
# be left with two versions of one table; with one id given, both create the same.
CREATE_LOCK: Final = Statement(
    "One bootstrap at a time: `cqueue schema apply` holds the row of this table while it works.",
    "CREATE TABLE IF NOT EXISTS schema_lock "
    "(name text PRIMARY KEY, owner text, holder text, since timestamp) "
    "WITH ID = {lock_id} AND gc_grace_seconds = {gc_grace}",
)

CREATE_MIGRATIONS: Final = Statement(
    "What has been applied. Row 0 holds the options of the bootstrap.",
    "CREATE TABLE IF NOT EXISTS schema_migrations "
    "(name text, number int, phase text, what text, checksum text, "
    "options text, applied_at timestamp, PRIMARY KEY (name, number)) WITH gc_grace_seconds = {gc_grace}",
)

RECORD_OPTIONS: Final = Statement(
    "The options in force, for `cqueue schema verify`.",
    "INSERT INTO schema_migrations (name, number, phase, what, options, applied_at) "
    "VALUES ('cqueue', 0, 'pre', 'bookkeeping', {options}, toTimestamp(now()))",
)

RECORD_MIGRATION: Final = Statement(
    "This migration is complete.",
    "INSERT INTO schema_migrations (name, number, phase, what, checksum, applied_at) "
    "VALUES ('cqueue', {number}, {phase}, {what}, {checksum}, toTimestamp(now()))",
)

INSERT_DEPLOYMENT: Final = Statement(
    "What every client of this keyspace must agree on. Written last: with it, the schema is complete.",
    "INSERT INTO deployment (name, format, serial_consistency, settle_ms, skew_ms, gc_grace, changes, "
    "home_dc, centre_epoch) VALUES ('cqueue', {format}, {serial_consistency}, {settle_ms}, {skew_ms}, "
    "{gc_grace}, 0, {home_dc}, 0) IF NOT EXISTS",
)
RECORD_HOME: Final = Statement(
    "The data centre that clients work in; those in another one are refused. `cqueue dc switch` moves it.",
    "UPDATE deployment SET home_dc = {home_dc}, centre_epoch = 0 WHERE name = 'cqueue' IF home_dc = null",
)

# What `cqueue dc` runs. Qualified, because it connects without a keyspace.
SWITCH_HOME: Final = (
    "UPDATE {keyspace}.deployment SET home_dc = %s, centre_epoch = %s, retiring = false, opens_at = %s, "
    "changes = %s, centre_log = centre_log + %s WHERE name = 'cqueue' IF home_dc = %s AND centre_epoch = %s"
)
RESUME_RETIRING: Final = (
    "UPDATE {keyspace}.deployment SET retiring = true, changes = %s, centre_log = centre_log + %s "
    "WHERE name = 'cqueue' IF home_dc = %s AND centre_epoch = %s AND retiring = false"
)

# What an operator runs; never run by this package.
ALTER_REPLICATION: Final = "ALTER KEYSPACE {keyspace} WITH replication = {replication}"
ALTER_COMPACTION: Final = Statement(
    "Compacts anew on every node.", "ALTER TABLE {table} WITH compaction = {compaction}"
)
ALTER_GC_GRACE: Final = "ALTER TABLE {table} WITH gc_grace_seconds = {gc_grace}"
# The counter tells clients to read the row again.
UPDATE_DEPLOYMENT: Final = (
    "UPDATE {keyspace}.deployment SET {assignments}, changes = {next_changes} WHERE name = 'cqueue' "
    "IF changes = {changes}"
)

# The state.
SELECT_KEYSPACE: Final = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
SELECT_TABLES: Final = (
    "SELECT table_name, compaction, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = %s"
)
SELECT_COLUMNS: Final = (
    "SELECT table_name, column_name, type, kind, position, clustering_order FROM system_schema.columns "
    "WHERE keyspace_name = %s"
)
SELECT_MIGRATIONS: Final = (
    "SELECT number, phase, what, checksum, options FROM {keyspace}.schema_migrations WHERE name = 'cqueue'"
)
# All columns, because a keyspace of an older version lacks the newer ones.
SELECT_DEPLOYMENT: Final = "SELECT * FROM {keyspace}.deployment WHERE name = 'cqueue'"
SELECT_TIME_MS: Final = "SELECT to_unix_timestamp(now()) AS ms FROM system.local"

# The lock; {lease_s} are seconds, counted by the cluster.
ACQUIRE_LOCK: Final = (
    "INSERT INTO {keyspace}.schema_lock (name, owner, holder, since) "
    "VALUES ('cqueue', %s, %s, toTimestamp(now())) IF NOT EXISTS USING TTL {lease_s}"
)
# All columns again: TTLs belong to cells, and a half expired row would show no holder.
RENEW_LOCK: Final = (
    "UPDATE {keyspace}.schema_lock USING TTL {lease_s} SET owner = %s, holder = %s, since = %s "
    "WHERE name = 'cqueue' IF owner = %s"
)
RELEASE_LOCK: Final = "DELETE FROM {keyspace}.schema_lock WHERE name = 'cqueue' IF owner = %s"
READ_LOCK: Final = "SELECT owner, holder, since FROM {keyspace}.schema_lock WHERE name = 'cqueue'"


def in_cqlsh(serial: str) -> str:
    """Return what to say to cqlsh before a conditional statement, which is `SERIAL` there by default."""
    return f"In cqlsh, say SERIAL CONSISTENCY {serial.upper()}; before this one."
