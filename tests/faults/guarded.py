"""A node of a test's own that asks for passwords, checks grants, and has guardrails.

The development node answers everybody, and `cqueue.dev` asks without a password whether a node answers. So
that question is put here in its place.
"""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster

from cqueue.dev import DevCluster, own_network, probe
from cqueue.schema import Options, apply
from cqueue.settings import load
from cqueue.store.connection import DRIVER_ERRORS, SCHEMA, open_session

OPERATOR = "cassandra:cassandra"  # guardrails hold for all others
VALIDITY_S = 0.1
YAML = {
    "authenticator": "PasswordAuthenticator",
    "authorizer": "CassandraAuthorizer",
    "role_manager": "CassandraRoleManager",
    "roles_validity": "100ms",
    "permissions_validity": "100ms",
    "credentials_validity": "100ms",
}


class Guarded:
    """The node, and what an operator does on it."""

    def __init__(self, directory):
        self.directory = directory
        self._address = ""

    def start(self, **guardrails):
        """Start it, or start it again, with these settings of cassandra.yaml."""
        cluster = DevCluster(
            self.directory,
            first_address=own_network(self.directory),
            yaml={**YAML, **guardrails},
            jvm_options=["-Dcassandra.superuser_setup_delay_ms=0"],
        )
        cluster.stop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(probe, "answers", _lets_in)
            patch.setattr(probe, "sees_ring", lambda *_: True)  # one node sees itself
            self._address = cluster.start().url.partition("://")[2].partition("/")[0]

    def url(self, role, keyspace):
        """For a role, of a new keyspace's or another one's."""
        return f"cassandra://{role}@{self._address}/{keyspace}?local_dc=datacenter1"

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


def _lets_in(address, port, _cluster_name):
    """Whether the node lets the operator in; his role is made some time after it answers."""
    user, _, password = OPERATOR.partition(":")
    provider = PlainTextAuthProvider(user, password)
    cluster = Cluster([address], port=port, auth_provider=provider, protocol_version=5, connect_timeout=2)
    try:
        cluster.connect()
    except DRIVER_ERRORS:
        return False
    else:
        return True
    finally:
        cluster.shutdown()
