"""The doctor on nodes of its own: bad settings, guardrails, no grants; a node off in time, hung, killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from tests.faults.clocks import WallClock
from tests.faults.clusters import running_cluster, url_of
from tests.faults.guarded import OPERATOR, guarded_node

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(600)]

BAD = {
    "paxos_variant": "v1",
    "commitlog_sync": "periodic",
    "commitlog_sync_period": "10000ms",
    "memtable_allocation_type": "heap_buffers",
    "max_hint_window": "36h",
    "tombstone_warn_threshold": 5000,
    "tombstone_failure_threshold": 8000,
    "user_timestamps_enabled": False,
    "use_statements_enabled": False,
    "alter_table_enabled": False,
    "zero_ttl_on_twcs_enabled": False,
    "in_select_cartesian_product_fail_threshold": 25,
    "in_select_cartesian_product_warn_threshold": 20,
    "items_per_collection_fail_threshold": 100,
    "items_per_collection_warn_threshold": 50,
    "collection_size_fail_threshold": "10KiB",
    "collection_size_warn_threshold": "5KiB",
    "partition_keys_in_select_fail_threshold": 20,
    "partition_keys_in_select_warn_threshold": 10,
    "page_size_fail_threshold": 500,
    "page_size_warn_threshold": 100,
    "column_value_size_fail_threshold": "512KiB",
    "column_value_size_warn_threshold": "256KiB",
    "maximum_timestamp_fail_threshold": "1d",
    "maximum_timestamp_warn_threshold": "1h",
    "minimum_timestamp_fail_threshold": "12h",
    "minimum_timestamp_warn_threshold": "1h",
    "columns_per_table_fail_threshold": 30,
    "columns_per_table_warn_threshold": 20,
    "data_disk_usage_percentage_fail_threshold": 99,
    "data_disk_usage_percentage_warn_threshold": 98,
    "table_properties_disallowed": ["compaction"],
    "write_consistency_levels_disallowed": ["LOCAL_QUORUM"],
    "read_consistency_levels_disallowed": ["EACH_QUORUM"],
}
"""What an operator may have set for good reasons of other applications."""
ENDS_S = 40.0
"""Seconds in which a check of 6 s ends, with its start and its connections, on a busy machine."""
SETTINGS = {name for name in BAD if name.startswith(("paxos", "commitlog_sync", "memtable", "tombstone"))} - {
    "commitlog_sync_period"
}
HARMLESS = {"max_hint_window", "commitlog_sync_period", "data_disk_usage_percentage_fail_threshold"}


def examined(url, limit="30s"):
    """What `cqueue doctor` finds, in a process of its own: exit code, and findings."""
    done = subprocess.run(
        [sys.executable, "-m", "cqueue", "--url", url, "--json", "doctor", "--timeout", limit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def of(found, subject, *severities):
    return [one for one in found if one["subject"] == subject and one["severity"] in severities]


@pytest.mark.quick
def test_each_bad_setting_and_guardrail_is_found(tmp_path_factory):
    """By the operator, for whom guardrails do not hold; a role without grants is told which it needs."""
    with guarded_node(tmp_path_factory.mktemp("guarded")) as node:
        keyspace = node.keyspace()
        role = node.role(keyspace, "SELECT", "MODIFY")
        code, found = examined(node.url(OPERATOR, keyspace))
        assert not of(found, "guardrails", "error", "warning"), found
        code, found = examined(node.url(f"{role}:secret", keyspace))
        refused = of(found, "settings", "not checked") + of(found, "guardrails", "not checked")
        assert len(refused) == 2
        assert all("GRANT SELECT ON table system_views.settings" in one["found"] for one in refused)
        assert not of(found, "settings", "ok")
        node.start(**BAD)
        code, found = examined(node.url(OPERATOR, keyspace))
        assert code == 1
        told = " ".join(one["found"] for one in of(found, "guardrails", "error", "warning", "info"))
        wanted = {name for name in BAD if not name.endswith("_warn_threshold")} - SETTINGS - HARMLESS
        assert {name for name in wanted if name not in told} == set()
        told = " ".join(one["found"] for one in of(found, "settings", "error", "warning", "info"))
        assert {name for name in SETTINGS if name not in told} == set()
        assert any("hint window of 1d12h" in one["found"] for one in of(found, "tables", "error"))


def test_a_node_that_is_killed_or_off_in_time_is_named(tmp_path_factory, clock_library, tmp_path):
    """With three copies all messages keep their quorum; with two nodes away none does."""
    clock = WallClock(clock_library, tmp_path / "clock")
    prefixes = [(), (), ("env", *(f"{name}={value}" for name, value in clock.environ.items()))]
    yaml = {"internode_timeout": False}  # it takes part, whatever its clock
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, nodes=3, prefixes=prefixes, yaml=yaml) as own:
        url = url_of(own)
        addresses = [node.address for node in own.status().nodes]
        code, found = examined(url)
        assert len(of(found, "nodes", "ok")) == 1, found
        clock.set(2)
        code, found = examined(url)
        (off,) = of(found, "clocks", "error")
        assert code == 1
        assert f": {addresses[2]} +" in off["found"]
        assert 1500 < off["figures"]["spread_ms"] < 2500
        clock.set(0)
        own.kill(3, signal.SIGSTOP)
        began_s = time.monotonic()
        code, found = examined(url, limit="6s")
        assert time.monotonic() - began_s < ENDS_S
        assert of(found, "nodes", "warning")[0]["found"].startswith(f"{addresses[2]} does not answer")
        own.kill(3)
        code, found = examined(url)
        (away,) = of(found, "nodes", "warning")
        assert away["found"].startswith(f"{addresses[2]} does not answer; away in datacenter1: 1 of 3 nodes")
        assert "without them" in of(found, "nodes", "ok")[0]["found"]
        assert of(found, "clocks", "not checked")
        own.kill(2)
        code, found = examined(url)
        (short,) = of(found, "nodes", "error")
        assert "have no quorum" in short["found"]
