"""The settings of a development cluster, and the cassandra.yaml of its nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cqueue.dev.paths import AUTHORITY, NODE, TLS, node_home
from cqueue.errors import ConfigError

MAX_NODES = 9
SYNC_MODES = ("batch", "periodic")
DATACENTER = "datacenter1"  # what SimpleSnitch calls its only datacenter
KEYSPACE = "cqueue"

CQL_PORT = 9042
STORAGE_PORT = 7000

# The operator that Cassandra itself makes. `cqueue dev` logs in as this role.
LOGIN = ("cassandra", "cassandra")

# One node lives alone and is idle most of the time. Three serve every write three times and keep
# internode buffers as well.
HEAP_OF_ONE = "512m"
HEAP_OF_SEVERAL = "640m"

_HEAP = re.compile(r"[1-9]\d*[mMgG]")

# Names only those of the documented cassandra.yaml. Timeouts, failure detection and the tombstone
# thresholds keep the server's defaults: what holds here should hold in production.
_SMALL_AND_SAFE: Mapping[str, Any] = {
    # With memtables in the heap, idle threads keep those that were flushed (BTree.Updater in their pools).
    "memtable_allocation_type": "offheap_objects",
    "auto_bootstrap": False,
    "paxos_variant": "v2",
    "hinted_handoff_enabled": True,
    "tombstone_warn_threshold": 1000,
    "endpoint_snitch": "SimpleSnitch",
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    # A dropped or truncated table would otherwise stay on disk for good.
    "auto_snapshot": False,
    # Small, because several nodes share a laptop with everything else.
    "key_cache_size": "8MiB",
    "counter_cache_size": "0MiB",
    "key_cache_save_period": "0s",
    "counter_cache_save_period": "0s",
    "file_cache_size": "64MiB",
    "networking_cache_size": "32MiB",
    "commitlog_total_space": "512MiB",
    "commitlog_disk_access_mode": "auto",
    "concurrent_compactors": 1,
    # The loopback interface is quicker than any compression.
    "internode_compression": "none",
}
_GUARDED: Mapping[str, Any] = {
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    "role_manager": "CassandraRoleManager",
}
_DIRECTORIES = ("commitlog", "hints", "saved_caches", "cdc_raw")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about a cluster that its maker may choose. Kept in its directory.

    Raises:
        ConfigError: a value is out of its range.
    """

    nodes: int = 1  # 1 to 9
    commitlog_sync: str = "batch"  # "periodic" loses acknowledged writes when a node is killed
    heap: str = HEAP_OF_ONE  # of each node, as for -Xmx
    cql_port: int = CQL_PORT
    storage_port: int = STORAGE_PORT
    auth: bool = False  # ask for a password, and check what a role may do
    tls: bool = False  # encrypt connections of clients; others are refused
    client_certificates: bool = False  # refuse clients without a certificate
    yaml: Mapping[str, Any] = field(default_factory=dict)  # over ours, in the names of cassandra.yaml
    jvm_options: Sequence[str] = ()  # after ours, so that they win
    addresses: Sequence[str] = ()  # of node 1, 2, …; empty: free ones on the loopback interface
    prefixes: Sequence[Sequence[str]] = ()  # what stands before the command of node 1, 2, …

    def __post_init__(self) -> None:
        """Refuse the whole before anything starts."""
        # Read back from JSON they are lists, and must compare equal.
        object.__setattr__(self, "jvm_options", tuple(self.jvm_options))
        object.__setattr__(self, "addresses", tuple(self.addresses))
        object.__setattr__(self, "prefixes", tuple(tuple(prefix) for prefix in self.prefixes))
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"nodes is {self.nodes}; a development cluster has 1 to {MAX_NODES}.")
        if self.commitlog_sync not in SYNC_MODES:
            raise ConfigError(f"commitlog_sync is {self.commitlog_sync!r}; it is one of {SYNC_MODES}.")
        if not _HEAP.fullmatch(self.heap):
            raise ConfigError(f"heap is {self.heap!r}; write it like 512m or 2g.")
        for name, port in (("cql_port", self.cql_port), ("storage_port", self.storage_port)):
            if not 1 <= port <= 65535:
                raise ConfigError(f"{name} is {port}; a port lies between 1 and 65535.")
        if self.client_certificates and not self.tls:
            raise ConfigError("client_certificates needs tls.")
        if self.cql_port == self.storage_port:
            raise ConfigError(f"cql_port and storage_port are both {self.cql_port}; they must differ.")
        for name, values in (("addresses", self.addresses), ("prefixes", self.prefixes)):
            if values and len(values) != self.nodes:
                raise ConfigError(f"{name} has {len(values)} entries; it takes one a node, {self.nodes}.")


def default_heap(nodes: int) -> str:
    """Return the heap of each node of a cluster of this many."""
    return HEAP_OF_ONE if nodes == 1 else HEAP_OF_SEVERAL


def initial_token(index: int, nodes: int) -> int:
    """The token of node `index` (from 0), so that all nodes own equal parts of the ring.

    One fixed token each lets all nodes start at once: nobody has to wait for the tokens of another.
    """
    part = 2**64 // nodes
    return index * part + part // 2 - 2**63


def cassandra_yaml(
    settings: Settings, *, cluster_name: str, addresses: Sequence[str], directory: Path, index: int
) -> str:
    """The text of the configuration of node `index` (from 0) of the cluster in `directory`."""
    home, address = node_home(directory, index + 1), addresses[index]
    encrypted = {
        "enabled": True,
        "optional": False,
        "keystore": str(home / NODE),
        "truststore": str(directory / TLS / AUTHORITY),
        "require_client_auth": settings.client_certificates,
        "ssl_context_factory": {"class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"},
    }
    values: dict[str, Any] = {
        "cluster_name": cluster_name,
        "num_tokens": 1,
        "initial_token": str(initial_token(index, len(addresses))),
        "listen_address": address,
        "rpc_address": address,
        "storage_port": settings.storage_port,
        "native_transport_port": settings.cql_port,
        # All are seeds: then each can restart while any other runs, and none waits for the first.
        "seed_provider": [
            {
                "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                "parameters": [{"seeds": ",".join(addresses)}],
            }
        ],
        # Synced before every answer, or every ten seconds.
        "commitlog_sync": settings.commitlog_sync,
        **({"commitlog_sync_period": "10000ms"} if settings.commitlog_sync == "periodic" else {}),
        **_SMALL_AND_SAFE,
        **(_GUARDED if settings.auth else {}),
        **({"client_encryption_options": encrypted} if settings.tls else {}),
        **settings.yaml,
        # Not to be overridden: what is elsewhere no `wipe` would delete.
        "data_file_directories": [str(home / "data")],
        **{f"{name}_directory": str(home / name) for name in _DIRECTORIES},
    }
    # JSON is YAML, so no YAML library is needed for the values.
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())
