"""What draining costs a real Cassandra, as `cqueue bench cost` counts it."""

import json

import pytest

from cqueue.cli.main import main

pytestmark = pytest.mark.cassandra

WARNED = 1000
"""Tombstones of a read that Cassandra warns of, by default."""
BUCKET = 1.2
"""Cassandra's histogram rounds up to the end of a bucket; each ends at 1.2 times the one before."""


@pytest.mark.parametrize("batch", [1, 100])
def test_drains_are_cheap(new_keyspace, monkeypatch, capsys, batch):
    """A handful of conditional mutations for 1,000 messages, and no read that crosses 1,000 tombstones.

    Of one wide row, which has more than twice as many. The most that a read has met is Cassandra's own count,
    of a keyspace in which nothing was read before.
    """
    monkeypatch.setenv("CQUEUE_URL", new_keyspace().url)
    load = ["--messages", "2400", "--shards", "1", "--batch", str(batch)]
    assert main(["bench", "cost", "--json", *load]) == 0
    found = json.loads(capsys.readouterr().out)
    for way in ("one_at_a_time", "ahead", "dispatcher"):
        assert 0 < found[way]["conditional_per_1000"] <= 10  # the first ones of each wide row count as well
        assert found[way]["conditional_per_1000"] < found[way]["statements_per_1000"] <= 100
        assert found[way]["reads_over_1000_tombstones"] == 0
    tombstones = found["tombstones_per_read"]
    assert tombstones["before"] == 0
    assert 0 < tombstones["max"] <= WARNED * BUCKET, "acked messages leave tombstones, and some are crossed"
