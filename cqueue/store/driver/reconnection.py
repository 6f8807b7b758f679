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
            with suppress(Exception):  # of any kind it would end the attempts to reconnect
                self._look_up()
            yield pause_s

    def _look_up(self) -> None:
        cluster = self._cluster()
        if cluster is None or self._is_any_up(cluster) or not self._looking_up.acquire(blocking=False):
            return
        try:
            for host, port in self._settings.hosts:
                if not cluster.is_shutdown:  # each look-up may take seconds
                    with suppress(Exception):  # no address at present, or nobody answers there
                        _add(cluster, host, port)
        finally:
            self._looking_up.release()

    def _is_any_up(self, cluster: Cluster) -> bool:
        used = {None, self._settings.local_dc}  # None: not known yet
        return any(host.is_up and host.datacenter in used for host in cluster.metadata.all_hosts())


def _add(cluster: Cluster, host: str, port: int) -> None:
    """Add the nodes that have this name now, as far as they answer."""
    for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        endpoint = find(ENDPOINT)(*address[:2])
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
