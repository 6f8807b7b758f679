"""A disk that is full: row 16, with the data of each node on a small file system in memory."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from cqueue.dev import ClusterState
from cqueue.errors import DevError
from tests.faults.clusters import running_cluster, sends_of, url_of

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(600)]

SIZE = "400m"
# With the default `stop` a node that cannot write its commit log leaves the ring until somebody restarts it.
YAML = {
    "commit_failure_policy": "ignore",
    "disk_failure_policy": "ignore",
    "commitlog_segment_size": "4MiB",
    "commitlog_total_space": "48MiB",
    # Such small segments bound a mutation to half of them, and hints and batches are not needed here.
    "hinted_handoff_enabled": False,
}


@pytest.fixture
def small_disks():
    """A function that mounts a small file system at a path; all are gone after the test."""
    mounted = []

    def mount(path):
        path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.row(16, "disk full")
def test_a_full_disk_stops_sends_and_loses_nothing(start_run, small_disks, tmp_path_factory, row):
    """Typed errors while it is full, 0 lost; when there is room and the node runs, clients go on alone.

    Cassandra's commit log is mapped into memory: a node that meets the full disk there may die of it.
    """
    disk = small_disks(tmp_path_factory.mktemp("disk"))
    with running_cluster(disk, yaml=YAML) as own:
        run = start_run(url_of(own, request_timeout=2), visibility=timedelta(seconds=8))
        consumer = run.start("consume", batch=50)
        producer = run.start("produce", batch=50, size=2000, rate=500)
        time.sleep(4)
        ballast = disk / "ballast"
        _fill(ballast)
        full = time.monotonic()
        refused = _await_trouble(producer, full, ballast)
        time.sleep(10)
        ballast.unlink()
        survived = _survives(own)
        if not survived:  # as whatever supervises it would
            own.start()
        free = time.monotonic()
        while not any(ok and began > free for began, _, ok in sends_of([producer.history])):
            assert time.monotonic() < free + 60, "sends did not come back"
            time.sleep(0.3)
        back_s = time.monotonic() - free
        time.sleep(4)
        assert consumer.process.poll() is None
        report = run.finish()
        assert report.clean, str(report)
        row(
            node="went on" if survived else "had to be restarted",
            messages=report.sends,
            unknown_sends=report.unknown_sends,
            first_error_after=f"{refused:.1f} s",
            back_after=f"{back_s:.1f} s",
            duplicates=len(report.duplicated),
        )


def _survives(own):
    """Whether the node serves again by itself; the end of one that does not is made sure of."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if own.status().state is ClusterState.RUNNING:
            return True
        time.sleep(1)
    with suppress(DevError):
        own.kill(1)
    return False


def _fill(path):
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            os.write(file.fileno(), bytes(512))


def _await_trouble(producer, full, ballast):
    """Seconds until a send fails: the segments that were there already have to be full first."""
    while True:
        failed = [began for began, _, ok in sends_of([producer.history]) if began > full and not ok]
        if failed:
            return failed[0] - full
        assert time.monotonic() < full + 60, "a full disk troubled nobody"
        _fill(ballast)
        time.sleep(0.5)
