"""examples/till.py: sales go on while Cassandra is away, and each arrives once. On Cassandra."""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

import cqueue

pytestmark = pytest.mark.cassandra

EXAMPLE = Path(__file__).parents[2] / "examples" / "till.py"
NOBODY = "cassandra://127.0.0.1:1/{}?local_dc=datacenter1"


def test_a_till_sells_while_cassandra_is_away(keyspace, tmp_path):
    """Sold with Cassandra, without it, and with it again: nothing is lost, and nothing comes twice."""

    def run(url, sales):
        return subprocess.run(
            [sys.executable, str(EXAMPLE), str(sales)],
            env={**os.environ, "CQUEUE_URL": url},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout

    assert "all of them are in Cassandra" in run(keyspace.url, 2)
    away = run(NOBODY.format("nowhere"), 3)
    assert "selling without Cassandra: Unavailable" in away
    assert "3 wait on this disk" in away
    assert "all of them are in Cassandra" in run(keyspace.url, 1)
    with cqueue.connect(keyspace.url) as client, client.queue("sales").consumer() as consumer:
        found = []
        while messages := consumer.receive(10, wait=timedelta(seconds=1)):
            consumer.ack(messages)
            found += messages
    assert Counter(json.loads(one.body)["sale"] for one in found) == {0: 3, 1: 2, 2: 1}
