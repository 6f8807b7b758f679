"""Reconnecting to nodes for as long as it takes, also to nodes that have come back under other addresses."""

from __future__ import annotations

import inspect
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from cassandra import ConsistencyLevel
from cassandra.cluster import Cluster
from cassandra.policies import ExponentialReconnectionPolicy

from cqueue.settings import Settings
from cqueue.store.driver.probe import Part, find

ENDPOINT: Final = "cassandra.connection:DefaultEndPoint"
ADD_HOST: Final = "cassandra.cluster:Cluster.add_host"
QUERY: Final = "cassandra.protocol:QueryMessage"
MOVED_NODES: Final = Part(
    "moved nodes",
    (
        ENDPOINT,
        ADD_HOST,
        QUERY,
        "cassandra.cluster:Cluster.connection_factory",
        "cassandra.connection:Connection.wait_for_response",
    ),
    lambda: {"datacenter", "rack", "refresh_nodes"} <= set(inspect.signature(find(ADD_HOST)).parameters),
    "once all nodes have other addresses, this process does not find them",
)
_PLACE: Final = "SELECT data_center, rack FROM system.local"


class Reconnection(ExponentialReconnectionPolicy):  # type: ignore[misc]
    """Pauses between attempts to reconnect to a node, without an end.

    By default the driver gives up after 64 attempts, which took five minutes, and then needs another node to
    tell it that the first one is back.

    While no node of the data centre is up, host names are looked up again before each pause: the driver does
    that once. If all nodes have other addresses since, as pods of Kubernetes may have, it would try the old
    ones for good.
    """

    def __init__(self, settings: Settings, shortest_s: float, longest_s: float) -> None:
        """Take hosts and data centre of a client; shortest and longest pause in seconds."""
        super().__init__(shortest_s, longest_s, max_attempts=None)
        self._settings = settings
        self._cluster: Any = lambda: None
        self._looking_up = threading.Lock()

    def look_up_for(self, cluster: Cluster) -> None:
        """Add nodes to this cluster as their names get other addresses."""
        self._cluster = weakref.ref(cluster)

    def new_schedule(self) -> Iterator[float]:
        """Return pauses in seconds. The driver takes the next one, on a thread of its own, as it needs it."""
        for pause_s in super().new_schedule():
            self._look_up()
            yield pause_s

    def _look_up(self) -> None:
        """Look names up on a thread that nobody waits for: it may take longer than a client has to close."""
        cluster = self._cluster()
        if cluster is None or self._is_any_up(cluster) or not self._looking_up.acquire(blocking=False):
            return
        thread = threading.Thread(target=self._add_all, args=(cluster,), name="cqueue-names", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many threads, or Python is shutting down
            self._looking_up.release()

    def _add_all(self, cluster: Cluster) -> None:
        try:
            for host, port in self._settings.hosts:
                for endpoint in _endpoints(host, port):
                    if cluster.is_shutdown:
                        return
                    with suppress(Exception):  # nobody answers there, or not as Cassandra does
                        _add(cluster, endpoint)
        finally:
            self._looking_up.release()

    def _is_any_up(self, cluster: Cluster) -> bool:
        used = {None, self._settings.local_dc}  # None: not known yet
        return any(host.is_up and host.datacenter in used for host in cluster.metadata.all_hosts())


def _endpoints(host: str, port: int) -> list[Any]:
    """Return the addresses that a name has now; none if that cannot be told."""
    with suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [find(ENDPOINT)(*address[:2]) for *_, address in found]
    return []


def _add(cluster: Cluster, endpoint: Any) -> None:
    """Add a node, unless it is known."""
    if cluster.metadata.get_host(endpoint) is None:
        # The driver would take a node without a data centre for one of the client's own.
        cluster.add_host(endpoint, *_place(cluster, endpoint), refresh_nodes=False)


def _place(cluster: Cluster, endpoint: Any) -> tuple[str, str]:
    """Return the data centre and the rack of a node."""
    connection = cluster.connection_factory(endpoint)
    try:
        query = find(QUERY)(query=_PLACE, consistency_level=ConsistencyLevel.ONE)
        answer = connection.wait_for_response(query, timeout=cluster.connect_timeout)
        ((data_centre, rack),) = answer.parsed_rows
        return data_centre, rack
    finally:
        connection.close()
