"""A real Cassandra on this machine, without Docker: for development, demos and tests.

The server is the released one, resolved by Maven and run as one JVM a node on loopback addresses.
It is not a test double: what it does to a queue when it is killed, production does too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cqueue.dev.paths import default_directory
from cqueue.dev.status import ClusterState, NodeState, NodeStatus, Status

if TYPE_CHECKING:
    from cqueue.dev.addresses import own_network
    from cqueue.dev.cluster import DevCluster
    from cqueue.dev.jars import ensure_jars

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

_HOME_OF = {"DevCluster": "cluster", "ensure_jars": "jars", "own_network": "addresses"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name when it is asked for: the command line looks here for a server that runs."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"cqueue.dev.{_HOME_OF[name]}"), name)
