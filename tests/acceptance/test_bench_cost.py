"""What draining costs a real Cassandra, as `cqueue bench cost` counts it."""

import json

import pytest

from cqueue.cli.main import main

pytestmark = pytest.mark.cassandra


@pytest.mark.parametrize("batch", [1, 100])
def test_drains_are_cheap(keyspace, monkeypatch, capsys, batch):
    """A handful of conditional mutations for 1,000 messages, and no read that crosses 1,000 tombstones."""
    monkeypatch.setenv("CQUEUE_URL", keyspace.url)
    assert main(["bench", "cost", "--json", "--messages", "6000", "--batch", str(batch)]) == 0
    found = json.loads(capsys.readouterr().out)
    for way in ("one_at_a_time", "ahead", "dispatcher"):
        assert 0 < found[way]["conditional_per_1000"] <= 10  # the first ones of each wide row count as well
        assert found[way]["conditional_per_1000"] < found[way]["statements_per_1000"] <= 100
        assert found[way]["reads_over_1000_tombstones"] == 0
    assert found["tombstones_per_read"]["before"] <= found["tombstones_per_read"]["max"]
