"""Nodes that leave the cluster for good, and join it, while queues are used: row 27."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta

import pytest

from cqueue.dev import own_network
from tests.faults.clusters import await_sends, longest_silence_s, running_cluster, sends_of, url_of
from tests.nodetool import free_ports, nodetool, prefixes

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(1200)]

SEEDS = 3
"""Nodes that make the ring; each other one joins it, as in production."""
JOIN_LIMIT = timedelta(minutes=5)
SENDS = 20
"""Sends, of a hundred messages each, that go on after each change before the next one begins."""


@pytest.mark.row(27, "a fourth node is decommissioned, and an empty one joins in its place")
def test_nothing_is_lost_while_nodes_leave_and_join(start_run, tmp_path, row):
    """Rows and what Paxos knows of them go to other replicas meanwhile; no client is told, or stops."""
    network = own_network(tmp_path).rpartition(".")[0]
    addresses = [f"{network}.{number}" for number in range(1, SEEDS + 2)]
    ports = free_ports(len(addresses))
    seeds = [{"seeds": ",".join(addresses[:SEEDS])}]
    provider = {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider", "parameters": seeds}
    with running_cluster(
        tmp_path / "nodes",
        nodes=len(addresses),
        addresses=addresses,
        prefixes=prefixes(ports),
        jvm_options=["-Dcassandra.ring_delay_ms=10000"],
        yaml={"auto_bootstrap": True, "seed_provider": [provider]},
    ) as own:
        run = start_run(
            url_of(own, request_timeout=3), visibility=timedelta(seconds=8), lease=timedelta(seconds=2)
        )
        run.start_all(2, "consume", batch=70)
        producers = run.start_all(2, "produce", rate=200)
        await_sends(producers, run.began, SENDS)
        began = time.monotonic()
        nodetool(own.directory, ports[-1], "decommission")
        left = time.monotonic()
        own.kill(len(addresses))
        shutil.rmtree(own.directory / f"node{len(addresses)}")
        await_sends(producers, left, SENDS)
        assert addresses[-1] not in nodetool(own.directory, ports[0], "status")
        joins = time.monotonic()
        own.start_node(len(addresses), limit=JOIN_LIMIT)
        joined = time.monotonic()
        await_sends(producers, joined, SENDS)
        status = nodetool(own.directory, ports[0], "status")
        assert status.count("\nUN ") == len(addresses), status
        report = run.finish()
    assert report.clean, str(report)
    sends = sends_of([child.history for child in producers])
    row(
        messages=report.sends,
        unknown_sends=report.unknown_sends,
        duplicates=len(report.duplicated),
        left_after=f"{left - began:.0f} s",
        joined_after=f"{joined - joins:.0f} s",
        longest_silence=f"{longest_silence_s(sends, began):.1f} s",
    )
