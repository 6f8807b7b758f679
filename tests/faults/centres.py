"""Two data centres of one node each, with a link between them that can be cut; and their repair."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from cqueue.schema import Options, apply
from cqueue.settings import load
from cqueue.store.connection import open_session
from tests.faults.clusters import running_cluster
from tests.faults.networks import inside_network
from tests.nodetool import nodetool

JMX_PORT = 7199
COUNTS = [
    SimpleStatement(f"SELECT count(*) FROM {table}", consistency_level=ConsistencyLevel.LOCAL_ONE)  # noqa: S608
    for table in ("messages", "bodies", "shards")
]


class Centres:
    """Data centre dc1 is node 1, dc2 is node 2; every row has one copy in each."""

    def __init__(self, cluster, network):
        self.cluster = cluster
        self.network = network
        self.keyspace = "faults"

    def url(self, number, **settings):
        """Of a client that works in one of them, and reaches no other."""
        pairs = "".join(f"&{name}={value}" for name, value in settings.items())
        address = self.network.addresses[number - 1]
        return f"cassandra://{address}:9042/{self.keyspace}?local_dc=dc{number}{pairs}"

    def bootstrap(self, keyspace, number=1):
        """Make a keyspace's schema, from one of them."""
        self.keyspace = keyspace
        settings = load(self.url(number))
        with open_session(settings, use_keyspace=False) as connection:
            apply(connection, settings, Options(replication={"dc1": 1, "dc2": 1}))

    def kill(self, number):
        """Kill a node, with what the kernel would go on to send for it."""
        self.cluster.kill(number)
        subprocess.run(
            [*self.network.prefix(number), "ss", "-K", "-a", "-t"], check=True, capture_output=True
        )

    def repair(self):
        """`nodetool repair --full` of both nodes, once each finds the other alive."""
        self.cluster.start()
        for number in (1, 2):
            prefix = self.network.prefix(number)
            nodetool(self.cluster.directory, JMX_PORT, "repair", "--full", self.keyspace, prefix=prefix)

    def stored(self, number):
        """How many rows one of them has, by table."""
        with open_session(load(self.url(number))) as connection:
            return [connection.session.execute(count).one()[0] for count in COUNTS]


@contextmanager
def running_centres(directory):
    """Both data centres, with the test at the crossing of their networks."""
    with inside_network(2) as network:
        prefixes = []
        for number in (1, 2):
            racks = directory / f"dc{number}.properties"
            racks.write_text(f"dc=dc{number}\nrack=rack1\n")
            option = f"JAVA_TOOL_OPTIONS=-Dcassandra-rackdc.properties={racks.as_uri()}"
            prefixes.append((*network.prefix(number), "env", option))
        with running_cluster(
            directory / "nodes",
            nodes=2,
            addresses=network.addresses,
            prefixes=prefixes,
            yaml={"endpoint_snitch": "GossipingPropertyFileSnitch"},
            jvm_options=[f"-Dcassandra.jmx.local.port={JMX_PORT}"],
        ) as cluster:
            yield Centres(cluster, network)
