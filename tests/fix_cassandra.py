"""A real Cassandra for the tests that need one, and keyspaces in it.

Where it is: `CQUEUE_TEST_URL` if set; with --cassandra=docker a container; otherwise a development node that
the first test to need it starts. All workers of pytest-xdist share it. It is stopped, and its data deleted,
at the end of the run.
"""

from __future__ import annotations

import os
import platform
import secrets
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

URL_VARIABLE = "CQUEUE_TEST_URL"
JVM_VARIABLE = "JAVA_TOOL_OPTIONS"
# Set by the controller for its workers: where the development node lives.
DIRECTORY_VARIABLE = "CQUEUE_TEST_DEV_DIR"
IMAGE = "cassandra:5.0"
QUICK_JVM = "-XX:TieredStopAtLevel=1"
"""Options of each Java process that tests start: without the second compiler a server that lives for minutes
takes half of the processor time. Fault runs go without: their limits are of a usual server."""
BRIEF = ("-Dcassandra.unsafesystem=true",)
"""Of nodes that nobody starts again: what is created is in the commit log, and not flushed to disk as well.
A keyspace costs a third of the processor time."""
PATIENT = "connect_timeout=60"
"""Of the URL of all tests: a node of a starved machine is there, although it does not answer for 5 s."""
ENTRY_POINT = Path(__file__).parents[1] / "docker" / "cassandra.sh"

_cleanup = pytest.StashKey[ExitStack]()


def pytest_addoption(parser):
    parser.addoption(
        "--cassandra",
        choices=("dev", "docker"),
        default="dev",
        help=f"what to start for tests that need Cassandra, unless {URL_VARIABLE} is set",
    )


def pytest_configure(config):
    """In the controller: decide where Cassandra is, and how it ends. Workers inherit the environment."""
    config.stash[_cleanup] = stack = ExitStack()
    if hasattr(config, "workerinput"):
        return
    if "CQUEUE_FAULTS" not in os.environ:
        _set(stack, JVM_VARIABLE, " ".join(filter(None, (os.environ.get(JVM_VARIABLE), QUICK_JVM))))
    if os.environ.get(URL_VARIABLE):
        return
    if config.getoption("--cassandra") == "docker":
        _set(stack, URL_VARIABLE, _start_container(stack))
        return
    directory = Path(tempfile.mkdtemp(prefix="cqueue-test-", suffix=f"-{os.getpid()}"))
    stack.callback(_remove_node, directory)
    _set(stack, DIRECTORY_VARIABLE, str(directory))


def pytest_unconfigure(config):
    config.stash[_cleanup].close()


def pytest_report_header():
    """The versions in play: the first thing one asks about a failure elsewhere."""
    import cassandra

    return [
        f"python {platform.python_version()}, cassandra-driver {cassandra.__version__}",
        f"cassandra: {_described()}",
    ]


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace with cqueue's schema."""

    name: str
    url: str
    settings: object


@pytest.fixture(scope="session")
def cassandra_url():
    """The URL of a running cluster. Its keyspace need not exist."""
    url = os.environ.get(URL_VARIABLE) or _started()
    return f"{url}{'&' if '?' in url else '?'}{PATIENT}"


def _started():
    """The URL of a development node. Every worker calls this; the first starts it, the others wait for it."""
    from cqueue.dev import DevCluster, guard, own_network

    directory = Path(os.environ[DIRECTORY_VARIABLE])
    guard.start(directory)  # a run that is killed removes no node
    return DevCluster(directory, first_address=own_network(directory), jvm_options=BRIEF).start().url


@pytest.fixture(scope="session")
def connection(cassandra_url):
    """A driver session without a keyspace."""
    from cqueue.settings import load
    from cqueue.store.connection import open_session

    with open_session(load(cassandra_url), use_keyspace=False) as opened:
        yield opened


@pytest.fixture(scope="module")
def new_keyspace(cassandra_url, connection):
    """A function that makes a keyspace of its own, by default with the schema.

    It takes the arguments of `cqueue.schema.Options`, or `schema=False` for only a name.
    """
    with keyspaces(cassandra_url, connection) as make:
        yield make


@pytest.fixture(scope="session")
def lasting_keyspace(cassandra_url, connection):
    """The keyspace of `keyspace`, and its tables that hold what users store."""
    with keyspaces(cassandra_url, connection) as make:
        made = make()
        names = connection.session.execute(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (made.name,)
        )
        yield made, {name for (name,) in names} - {"deployment", "schema_migrations", "schema_lock"}


@pytest.fixture(scope="module")
def keyspace(lasting_keyspace, connection):
    """A keyspace with the schema, empty at the end of each test module. Its schema is not to be changed.

    To empty it takes the server a sixth of what it takes to drop it and make another one.
    """
    made, tables = lasting_keyspace
    yield made
    for table in tables:
        connection.session.execute(f"TRUNCATE {made.name}.{table}", timeout=60)


@contextmanager
def keyspaces(url, connection):
    """A function that makes keyspaces. They are dropped at the end, unless the server is deleted as well: a
    drop stalls the writes of others.
    """
    from cqueue.schema import Options, apply
    from cqueue.settings import load

    made = []

    def make(*, schema=True, **options):
        name = f"test_{secrets.token_hex(6)}"
        made.append(name)
        own = url_with_keyspace(url, name)
        settings = load(own)
        if schema:
            apply(connection, settings, Options(**options))
        return Keyspace(name, own, settings)

    yield make
    if os.environ.get(URL_VARIABLE):
        for name in made:
            connection.session.execute(f"DROP KEYSPACE IF EXISTS {name}", timeout=60)


def url_with_keyspace(url, name):
    """The same cluster, another keyspace."""
    base, _, query = url.partition("?")
    scheme, _, rest = base.partition("://")
    hosts = rest.partition("/")[0]
    return f"{scheme}://{hosts}/{quote(name)}" + (f"?{query}" if query else "")


def _set(stack, name, value):
    patch = pytest.MonkeyPatch()
    patch.setenv(name, value)
    stack.callback(patch.undo)


def _remove_node(directory):
    from cqueue.dev import guard

    guard.remove(directory)


def _start_container(stack):
    container = stack.enter_context(new_container())
    hosts = ",".join(f"{host}:{port}" for host, port in container.get_contact_points())
    return f"cassandra://{hosts}/cqueue?local_dc={container.get_local_datacenter()}"


def new_container():
    """A container of the image as docker-compose.yml makes it: `commitlog_sync: batch`, `paxos_variant: v2`.

    The script goes in as an argument and not as a file, so that an engine on another machine has it, too.
    """
    from testcontainers.community.cassandra import CassandraContainer

    script = ENTRY_POINT.read_text(encoding="utf-8")
    return CassandraContainer(IMAGE).with_kwargs(entrypoint=["bash", "-c", script])


def _described():
    url = os.environ.get(URL_VARIABLE)
    if url:
        return _ask(url)
    from cqueue.dev.jars import cassandra_version

    return f"{cassandra_version()} (development node, started when needed), commit log batch"


def _ask(url):
    """Version and commit log mode of a running cluster."""
    from cqueue.errors import CqueueError
    from cqueue.settings import load
    from cqueue.store.connection import open_session

    try:
        settings = load(url)
        with open_session(settings, use_keyspace=False) as opened:
            version = opened.session.execute("SELECT release_version FROM system.local").one()[0]
            query = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'"
            mode = opened.session.execute(query).one()[0]
    except CqueueError as exc:
        return f"unreachable: {exc}"
    return f"{version} at {settings.address}, commit log {mode}"
