"""The CQL of the doctor, all of it reads.

The tables of `system_views` are virtual: each node answers for itself. They are read whole, without
restrictions, because guardrails may forbid ALLOW FILTERING and long IN lists.
"""

from __future__ import annotations

from typing import Final

# Replication and durability of a keyspace.
SELECT_KEYSPACE: Final = (
    "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s"
)
# Of each node.
SELECT_SETTINGS: Final = "SELECT name, value FROM system_views.settings"
SELECT_VERSIONS: Final = "SELECT release_version, schema_version FROM system.local"
SELECT_HINTS: Final = "SELECT address, files, oldest FROM system_views.pending_hints"
SELECT_PARTITION_SIZES: Final = (
    "SELECT keyspace_name, table_name, mebibytes AS figure FROM system_views.max_partition_size"
)
# Histograms of recent reads on this node.
SELECT_TOMBSTONES: Final = (
    "SELECT keyspace_name, table_name, p99th AS figure, max AS other FROM system_views.tombstones_per_read"
)
SELECT_READ_LATENCY: Final = (
    "SELECT keyspace_name, table_name, p99th_ms AS figure, count AS other "
    "FROM system_views.local_read_latency"
)
# When the keyspace was made.
SELECT_MADE_AT: Final = (
    "SELECT applied_at FROM {keyspace}.schema_migrations WHERE name = 'cqueue' AND number = 1"
)
# One row for each repair that any node has coordinated in the last 30 days.
SELECT_REPAIRS: Final = (
    "SELECT keyspace_name, columnfamily_names, successful_ranges, finished_at, exception_message "
    "FROM system_distributed.parent_repair_history"
)
