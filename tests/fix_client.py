"""Clients of each back end; a test module may define `memory_client` and `cassandra_client` of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cqueue
from cqueue.client import Client

STORES = ["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)]
"""Parameters of a fixture that opens a client of each back end."""


@pytest.fixture
def memory_client() -> Iterator[Client]:
    """A client in memory, one a test."""
    with cqueue.connect("memory://") as client:
        yield client


@pytest.fixture(scope="module")
def cassandra_client(keyspace: Any) -> Iterator[Client]:
    """A client on Cassandra, one a test module."""
    with cqueue.connect(keyspace.url) as client:
        yield client


@pytest.fixture(params=STORES)
def client(request: pytest.FixtureRequest) -> Client:
    """A client of each back end in turn."""
    return request.getfixturevalue(f"{request.param}_client")
