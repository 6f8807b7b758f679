"""`make test-all` runs all of these tests; `make test` runs one a feature, those marked as `feature`."""

from __future__ import annotations

import pytest

import cqueue

HERE = "tests/acceptance/"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the others, before `-m` looks at the markers."""
    for item in items:
        if item.nodeid.startswith(HERE) and item.get_closest_marker("feature") is None:
            item.add_marker(pytest.mark.acceptance)


@pytest.fixture
def client(keyspace):
    """A client of the module's keyspace."""
    with cqueue.connect(keyspace.url) as client:
        yield client
