"""A Cassandra that wants TLS, a client's certificate and a password, and checks grants: one for a run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.fix_cassandra import BRIEF, _remove_node

# Set by the controller for its workers: where the node lives.
DIRECTORY_VARIABLE = "CQUEUE_TEST_GUARDED_DIR"


def pytest_configure(config):
    """In the controller: the directory, and its end."""
    if hasattr(config, "workerinput"):
        return
    directory = Path(tempfile.mkdtemp(prefix="cqueue-guarded-"))
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    config.add_cleanup(lambda: os.environ.pop(DIRECTORY_VARIABLE))
    config.add_cleanup(lambda: _remove_node(directory))


@pytest.fixture(scope="session")
def guarded():
    """The node; the first test that needs it starts it."""
    from tests.faults.guarded import Guarded

    directory = Path(os.environ[DIRECTORY_VARIABLE])
    node = Guarded(directory, tls=True, client_certificates=True, jvm_options=BRIEF)
    node.join()
    return node
