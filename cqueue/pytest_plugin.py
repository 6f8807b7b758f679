"""Fixtures for pytest.

pytest loads this module in every project that has cqueue installed. So the module imports nothing of cqueue
before a test asks for a fixture: projects without such tests do not wait.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from cqueue import App, Client
    from cqueue.testing import Sandbox

OPTION = "cqueue_app"
ON_CASSANDRA = "--cqueue-cassandra"
URL = "CQUEUE_TEST_URL"
"""Environment variable: a cluster that is there already. Its keyspace is not used."""
DIRECTORY = "CQUEUE_TEST_DIRECTORY"
"""Environment variable, set for all processes of this run: where its server lives."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options: the project's application, and where the fixtures' queues live."""
    parser.addini(OPTION, "module:name of the cqueue.App that the fixture cqueue_sandbox puts in memory")
    parser.getgroup("cqueue").addoption(
        ON_CASSANDRA,
        action="store_true",
        help=f"run cqueue_url and cqueue_client on Cassandra, on that of {URL} or an embedded one",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose where a server of this run would live; nothing is made before a test needs it.

    Workers of pytest-xdist, and runs within this run, find that chosen.
    """
    if DIRECTORY not in os.environ:
        name = f"cqueue-pytest-{secrets.token_hex(6)}-{os.getpid()}"
        os.environ[DIRECTORY] = str(Path(tempfile.gettempdir()) / name)
        config.add_cleanup(_end)


def _end() -> None:
    """Stop the server of this run, and delete its data."""
    directory = Path(os.environ.pop(DIRECTORY))
    if directory.exists():
        from cqueue.dev import guard  # noqa: PLC0415 - see above

        guard.remove(directory)


@pytest.fixture(scope="session")
def cqueue_cassandra() -> Iterator[str]:
    """Return the URL of a fresh keyspace, with the schema, on a real Cassandra; one a run, or a worker of it.

    The server is that of `CQUEUE_TEST_URL`, else one that is started once a run; see `cqueue.dev`.
    """
    from cqueue.schema import apply  # noqa: PLC0415 - see above
    from cqueue.settings import load  # noqa: PLC0415
    from cqueue.store.connection import open_session  # noqa: PLC0415

    url = (
        urlsplit(os.environ.get(URL) or _started())._replace(path=f"/cqueue_{secrets.token_hex(6)}").geturl()
    )
    settings = load(url)
    with open_session(settings, use_keyspace=False) as connection:
        apply(connection, settings)
        yield url
        connection.session.execute(f"DROP KEYSPACE IF EXISTS {settings.keyspace}", timeout=60)


def _started() -> str:
    """Start the server of this run, or find it started by another worker. Return its URL."""
    from cqueue.dev import DevCluster, guard, own_network  # noqa: PLC0415 - see above

    directory = Path(os.environ[DIRECTORY])
    guard.start(directory)  # a run that is killed comes to no `_end`
    return DevCluster(directory, first_address=own_network(directory)).start().url or ""


@pytest.fixture
def cqueue_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return a URL, for `connect` or `connect_async`, at which there are no queues and logs yet.

    It is in memory, for all clients of this process; with `--cqueue-cassandra` on `cqueue_cassandra`.
    Afterwards all queues and logs are deleted.
    """
    from cqueue import connect  # noqa: PLC0415 - see above
    from cqueue.client import inside  # noqa: PLC0415 - see above

    in_memory = not request.config.getoption(ON_CASSANDRA)
    url = f"memory://{secrets.token_hex(6)}" if in_memory else request.getfixturevalue("cqueue_cassandra")
    yield url
    with connect(url) as client:
        inside(client).is_alone()
        for queue in client.queues():
            if not queue.endswith(".dead"):
                client.delete_queue(queue)
        for log in client.logs():
            client.delete_log(log)


@pytest.fixture
def cqueue_client(cqueue_url: str) -> Iterator[Client]:
    """Connect to `cqueue_url` for the duration of a test."""
    from cqueue import connect  # noqa: PLC0415 - see above

    with connect(cqueue_url) as client:
        yield client


@pytest.fixture
def cqueue_app(request: pytest.FixtureRequest) -> App:
    """Return the application that the option `cqueue_app` names, such as `shop.tasks:app`.

    A project may define its own fixture of this name instead.
    """
    from cqueue import App  # noqa: PLC0415 - see above
    from cqueue.dispatcher.application.import_string import TargetError, load  # noqa: PLC0415

    target = request.config.getini(OPTION)
    if not target:
        pytest.fail(
            f"which application? Set {OPTION} = module:name in the configuration of pytest, "
            f"or define a fixture {OPTION} that returns the cqueue.App",
            pytrace=False,
        )
    try:
        found = load(target)
    except TargetError as exc:
        pytest.fail(f"{OPTION} = {target}: {exc}", pytrace=False)
    if not isinstance(found, App):
        pytest.fail(f"{OPTION} = {target} names a {type(found).__name__}, not a cqueue.App", pytrace=False)
    return found


@pytest.fixture
def cqueue_sandbox(cqueue_app: App) -> Iterator[Sandbox]:
    """Run the application in memory for the duration of a test; see `cqueue.App.testing`."""
    with cqueue_app.testing() as sandbox:
        yield sandbox
