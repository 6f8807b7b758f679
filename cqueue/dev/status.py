"""The state of a cluster and its nodes, as `cqueue dev status` shows it.

    node:    down → starting → up          cluster: stopped, starting, running, degraded

A node is `starting` while its process exists but does not answer CQL; one that was stopped by SIGSTOP
looks the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from cqueue.dev.paths import AUTHORITY, CLIENT, TLS, default_directory, node_home
from cqueue.dev.record import Record, load
from cqueue.dev.settings import DATACENTER, KEYSPACE, LOGIN
from cqueue.errors import DevError


class NodeState(StrEnum):
    """The state of one node."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"


class ClusterState(StrEnum):
    """The state of all nodes together."""

    STOPPED = "stopped"  # no process
    STARTING = "starting"  # no node answers yet
    RUNNING = "running"  # all answer
    DEGRADED = "degraded"  # some answer


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node as it was a moment ago."""

    number: int  # from 1
    address: str
    port: int  # of CQL
    pid: int | None
    state: NodeState


@dataclass(frozen=True, slots=True)
class Status:
    """One cluster as it was a moment ago. Without a cluster: stopped, no nodes, no URL."""

    state: ClusterState
    nodes: tuple[NodeStatus, ...]
    url: str | None  # for cqueue.connect


def summarize(nodes: Sequence[NodeStatus]) -> ClusterState:
    """Return the state of a cluster whose nodes have these states."""
    states = {node.state for node in nodes}
    if states <= {NodeState.DOWN}:
        return ClusterState.STOPPED
    if states == {NodeState.UP}:
        return ClusterState.RUNNING
    return ClusterState.DEGRADED if NodeState.UP in states else ClusterState.STARTING


def cluster_url(directory: Path, record: Record) -> str:
    """The URL under which a client finds the cluster of this directory, with login and certificates."""
    settings, files = record.settings, directory / TLS
    hosts = ",".join(f"{address}:{settings.cql_port}" for address in record.addresses)
    login = ":".join(LOGIN) + "@" if settings.auth else ""
    url = f"cassandra://{login}{hosts}/{KEYSPACE}?local_dc={DATACENTER}"
    if settings.tls:
        url += f"&tls_ca={quote(str(files / AUTHORITY))}"
    if settings.client_certificates:
        url += f"&tls_cert={quote(str(files / CLIENT))}"
    return url


def known_server(directory: Path | None = None) -> tuple[str, bool] | None:
    """The URL of the cluster, and whether a process of it runs that belongs to this user; None without one.

    The command line looks for it where nothing says which cluster is meant, so it has to be quick: no node is
    asked. A record that cannot be read counts as no cluster: `cqueue dev status` says what is wrong with it.

    directory: by default the one that `cqueue dev` uses.
    """
    directory = (directory or default_directory()).resolve()
    try:
        known = load(directory)
    except DevError:
        return None
    if known is None:
        return None
    from cqueue.dev import processes  # noqa: PLC0415 - only where there is a cluster

    homes = [node_home(directory, number + 1) for number in range(len(known.addresses))]
    return cluster_url(directory, known), any(map(processes.is_ours, homes))
