"""Back up a development cluster by `nodetool snapshot`, and make another one of it: docs/how-to/backup.md."""

from __future__ import annotations

import shutil

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.policies import RoundRobinPolicy

from cqueue.dev import DevCluster, own_network
from tests.nodetool import free_ports, nodetool, prefixes

TAG = "drill"
NO_DATA = ("manifest.json", "schema.cql")


class Site:
    """A cluster that nodetool can reach, in a directory of its own.

    Args:
        directory: everything of it is below.
        nodes: 1 to 9, with as many copies of each row, up to 3.
    """

    def __init__(self, directory, nodes):
        self.directory, self.nodes = directory, nodes
        self.copies = min(nodes, 3)
        self._ports = free_ports(nodes)
        self.cluster = DevCluster(
            directory,
            nodes=nodes,
            heap="512m",
            first_address=own_network(directory),
            prefixes=prefixes(self._ports),
            jvm_options=["-XX:TieredStopAtLevel=1"],
        )

    @property
    def url(self):
        """The URL of the keyspace `cqueue`, which need not exist."""
        return self.cluster.status().url

    def nodetool(self, *arguments):
        """Run nodetool on each node, one after the other: snapshots are of different moments."""
        for port in self._ports:
            nodetool(self.directory, port, *arguments)

    def data(self, number):
        """Where node `number` keeps the tables of the keyspace."""
        return self.directory / f"node{number}" / "data" / "cqueue"

    def copy_snapshots(self, backup):
        """Copy the snapshots of all nodes to `backup/<node>/<table>-<id>/`."""
        for number in range(1, self.nodes + 1):
            for snapshot in self.data(number).glob(f"*/snapshots/{TAG}"):
                shutil.copytree(snapshot, backup / str(number) / snapshot.parents[1].name)

    def restore(self, backup):
        """Make the keyspace anew from a backup of a cluster of as many nodes. The nodes run and are empty."""
        replication = {"class": "NetworkTopologyStrategy", "datacenter1": self.copies}
        status = self.cluster.status()
        profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=60)
        driver = Cluster(
            [status.nodes[0].address],
            port=status.nodes[0].port,
            protocol_version=5,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        )
        try:
            cql = driver.connect()
            cql.execute(f"CREATE KEYSPACE cqueue WITH replication = {replication}")
            for table in sorted((backup / "1").glob("*/schema.cql")):
                cql.execute(table.read_text(encoding="utf-8"))
        finally:
            driver.shutdown()
        self.cluster.stop()
        for number in range(1, self.nodes + 1):
            for table in (backup / str(number)).iterdir():
                shutil.copytree(
                    table,
                    self.data(number) / table.name,
                    ignore=shutil.ignore_patterns(*NO_DATA),
                    dirs_exist_ok=True,
                )
        self.cluster.start()
        if self.nodes > 1:
            self.nodetool("repair", "-full", "cqueue")
