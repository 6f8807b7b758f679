"""A real Cassandra on this machine, without Docker: for development, demos and tests.

The server is the released one, resolved by Maven and run as one JVM a node on loopback addresses.
It is not a test double: what it does to a queue when it is killed, production does too.
"""

from __future__ import annotations

from cqueue.dev.addresses import own_network
from cqueue.dev.cluster import DevCluster
from cqueue.dev.jars import ensure_jars
from cqueue.dev.paths import default_directory
from cqueue.dev.status import ClusterState, NodeState, NodeStatus, Status

__all__ = [
    "ClusterState",
    "DevCluster",
    "NodeState",
    "NodeStatus",
    "Status",
    "default_directory",
    "ensure_jars",
    "own_network",
]
