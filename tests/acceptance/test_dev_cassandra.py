"""The embedded Cassandra against the promise that everything else rests on: what it took, it keeps."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from datetime import timedelta

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy

from cqueue.dev import ClusterState, DevCluster, NodeState, own_network

pytestmark = pytest.mark.cassandra


@contextmanager
def session(node):
    """A session of the ordinary driver with this one node."""
    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=30)
    driver = Cluster(
        [node.address],
        port=node.port,
        protocol_version=5,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        yield driver.connect()
    finally:
        driver.shutdown()


def write(session, count):
    session.execute(
        "CREATE KEYSPACE kept WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"
    )
    session.execute("CREATE TABLE kept.rows (id int PRIMARY KEY, body text)")
    for number in range(count):
        session.execute("INSERT INTO kept.rows (id, body) VALUES (%s, %s)", (number, "x" * 100))


def test_acknowledged_writes_survive_a_kill(tmp_path):
    """Kill -9 right after the last acknowledgement loses nothing, and a new start finds it all.

    On the way: `start` is idempotent, a killed node is seen as down, and the cluster is on the network
    under the name of its datacenter.
    """
    cluster = DevCluster(tmp_path / "dev", first_address=own_network(tmp_path))
    seen: list[str] = []
    try:
        status = cluster.start(seen.append)
        assert status.state is ClusterState.RUNNING
        assert status.url == f"cassandra://{status.nodes[0].address}:9042/cqueue?local_dc=datacenter1"
        assert seen[-1].endswith("1 of 1 nodes answer")
        assert cluster.start() == status, "a running cluster is reported, not started again"

        with session(status.nodes[0]) as cql:
            row = cql.execute("SELECT data_center, release_version FROM system.local").one()
            assert row.data_center == "datacenter1"
            assert row.release_version.startswith("5.0.")
            write(cql, 500)
        assert any("kept.rows" in line for line in cluster.logs(1, 1000)), "the log ends with the start"
        cluster.kill(1, signal.SIGKILL)
        (down,) = cluster.status().nodes
        assert (down.state, down.pid) == (NodeState.DOWN, None)

        cluster.start_node(1)
        again = cluster.status()
        assert again.state is ClusterState.RUNNING
        assert again.nodes[0].pid != status.nodes[0].pid
        with session(again.nodes[0]) as cql:
            assert len(list(cql.execute("SELECT id FROM kept.rows"))) == 500
        cluster.stop()
        assert cluster.status().state is ClusterState.STOPPED
    finally:
        cluster.wipe()


def test_clusters_do_not_meet(tmp_path):
    """A second cluster goes to another address, and the first one's node is never taken for its own."""
    first_address = own_network(tmp_path)
    one = DevCluster(tmp_path / "one", first_address=first_address)
    other = DevCluster(tmp_path / "other", first_address=first_address, heap="400m")
    try:
        first = one.start()
        second = other.start()
        assert first.nodes[0].address != second.nodes[0].address
        other.stop(timedelta(seconds=30))
        assert one.status() == first
    finally:
        one.wipe()
        other.wipe()
