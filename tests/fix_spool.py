"""Spools in tests: forwarders that look again soon."""

import pytest

from cqueue.spool import forwarder


@pytest.fixture
def brisk_forwarding(monkeypatch):
    """Forwarders look again, and end, after 10 ms."""
    monkeypatch.setattr(forwarder, "WAIT_S", 0.01)
    monkeypatch.setattr(forwarder, "FIRST_PAUSE_S", 0.01)
