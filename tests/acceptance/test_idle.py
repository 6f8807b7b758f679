"""What waiting costs, on a real Cassandra."""

import pytest

from cqueue.bench.idle import idle, idle_queues
from cqueue.bench.options import Options
from cqueue.bench.setup import open_bench
from cqueue.settings import load

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(180)]

LOOK = {1: 4, 0: 2}
"""Statements of a look by wide rows: what all clients agree on, the registry; a head and ids of each."""
EVERY_S = {"on": 2, "off": 1}
HEARTBEATS = 2
"""Of the doorbell, in ten seconds."""


@pytest.fixture
def bench(keyspace):
    with open_bench(load(keyspace.url)) as bench:
        yield bench


def test_who_waits_looks_every_two_seconds_or_every_second_without_the_doorbell(bench):
    """And asks nothing else, while the wide row of the last message is there as well as where there is none.

    Of a dispatcher's two consumers one looks for both; the other one does so itself twice a minute.
    """
    result = idle(bench, Options(), seconds=10)
    assert len(result["rows"]) == 8
    assert not {"messages", "size", "batch", "receive"} & result.keys(), "it has chosen its own"
    for row in result["rows"]:
        look = LOOK[row["wide_rows"]]
        looks = 10 / EVERY_S[row["notify"]] + 1 + (row["who"] == "dispatcher")
        assert row["statements_per_s"] * 10 <= looks * look + HEARTBEATS, row
        assert row["statements_per_s"] * 10 >= looks / 2 * look, row  # a busy machine may take as long again


def test_a_dispatcher_looks_at_many_idle_queues_rarely(bench):
    """At a hundred and fifty of them every three seconds, by one small read each."""
    result = idle_queues(bench, Options(), queues=150, seconds=9)
    assert result["statements_per_s"] <= 150 / 3 * 1.5 + 2
