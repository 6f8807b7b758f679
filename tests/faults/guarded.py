"""A node of a test's own that asks for passwords, checks grants, and has guardrails."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode

from cqueue.dev import DevCluster, own_network
from cqueue.schema import Options, apply
from cqueue.settings import load
from cqueue.store.connection import SCHEMA, open_session

OPERATOR = "cassandra:cassandra"  # guardrails hold for all others
VALIDITY_S = 0.1
YAML = {
    "roles_validity": "100ms",
    "permissions_validity": "100ms",
    "credentials_validity": "100ms",
}


class Guarded:
    """The node, and what an operator does on it."""

    def __init__(self, directory, **options):
        """options: of `DevCluster`."""
        self.directory = directory
        self._options = options
        self.address = self._query = ""

    def start(self, **guardrails):
        """Start it, or start it again, with these settings of cassandra.yaml."""
        DevCluster(self.directory).stop()
        self.join(**guardrails)

    def join(self, **guardrails):
        """Start it, unless another process of the tests has."""
        first_address = own_network(self.directory)
        cluster = DevCluster(
            self.directory,
            first_address=first_address,
            auth=True,
            yaml={**YAML, **guardrails},
            **self._options,
        )
        url = cluster.start().url
        self.address, _, self._query = url.partition("@")[2].replace("/cqueue?", "?").partition("?")

    def url(self, role, keyspace, **more):
        """For a role, of a new keyspace's or another one's. more: options; None leaves one out."""
        options = {**dict(parse_qsl(self._query)), **more}
        query = urlencode({key: value for key, value in options.items() if value is not None})
        return f"cassandra://{role}@{self.address}/{keyspace}?{query}"

    def keyspace(self):
        """A new keyspace with the schema."""
        name = f"test_{secrets.token_hex(6)}"
        settings = load(self.url(OPERATOR, name))
        with open_session(settings, use_keyspace=False) as connection:
            apply(connection, settings, Options())
        return name

    def run(self, *statements):
        """Run CQL as the operator, and wait until no node goes by what held before."""
        with open_session(load(self.url(OPERATOR, "system")), use_keyspace=False) as connection:
            for statement in statements:
                connection.session.execute(statement, execution_profile=SCHEMA)
        time.sleep(3 * VALIDITY_S)  # the server tells nobody when it has forgotten what a role might do

    def role(self, keyspace, *rights):
        """A new role with these rights on the keyspace: its name and password, as in a URL."""
        name = f"role_{secrets.token_hex(4)}"
        self.run(
            f"CREATE ROLE {name} WITH PASSWORD = 'secret' AND LOGIN = true",
            *(f"GRANT {right} ON KEYSPACE {keyspace} TO {name}" for right in rights),
        )
        return name

    def wipe(self):
        DevCluster(self.directory).wipe()


@contextmanager
def guarded_node(directory):
    node = Guarded(directory)
    try:
        node.start()
        yield node
    finally:
        node.wipe()
