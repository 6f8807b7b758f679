"""A store whose clock the test moves, a client on it, and a log."""

from __future__ import annotations

import pytest

from tests.subscriptions.subscribing import Clocked, client_on, made_log


@pytest.fixture
def store():
    return Clocked()


@pytest.fixture
def client(store):
    with client_on(store) as client:
        yield client


@pytest.fixture
def log(client):
    return made_log(client)
