"""A disk that is full: row 16, with the data of each node on a small file system in memory."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from datetime import timedelta

import pytest

from cqueue.dev import ClusterState, NodeState
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


class Disks:
    """A small file system in memory for each node's directory, and ballast to fill it with."""

    def __init__(self, directory, nodes):
        self._homes = [directory / f"node{number}" for number in range(1, nodes + 1)]
        self._mounted = []

    def mount(self):
        for home in self._homes:
            home.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(home)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
            self._mounted.append(home)

    def unmount(self):
        while self._mounted:
            subprocess.run(["umount", "-l", str(self._mounted.pop())], check=True)

    def fill(self, *numbers):
        for number in numbers:
            _fill(self._ballast(number))

    def free(self, *numbers):
        for number in numbers:
            self._ballast(number).unlink()

    def _ballast(self, number):
        return self._homes[number - 1] / "ballast"


@pytest.fixture
def disks(tmp_path_factory):
    """A function that mounts disks for some nodes: (directory, disks). All are gone after the test."""
    made = []

    def make(nodes):
        directory = tmp_path_factory.mktemp("disks")
        made.append(Disks(directory, nodes))
        made[-1].mount()
        return directory, made[-1]

    yield make
    for one in made:
        one.unmount()


@pytest.mark.row(16, "disk full on the only node")
def test_a_full_disk_stops_sends_and_loses_nothing(start_run, disks, row):
    """Typed errors while it is full, 0 lost; when there is room and the node runs, clients go on alone.

    Cassandra's commit log is mapped into memory: a node that meets the full disk there may die of it.
    """
    directory, small = disks(1)
    with running_cluster(directory, yaml=YAML) as own:
        run = start_run(url_of(own, request_timeout=2), visibility=timedelta(seconds=8))
        consumer, producer = _load(run)
        small.fill(1)
        full = time.monotonic()
        refused_s = _await_trouble(producer, full, lambda: small.fill(1))
        time.sleep(10)
        small.free(1)
        died = _restart_the_dead(own)
        back_s = _await_sends(producer)
        assert consumer.process.poll() is None
        report = run.finish()
        assert report.clean, str(report)
        row(
            node="had to be restarted" if died else "went on",
            messages=report.sends,
            unknown_sends=report.unknown_sends,
            first_error_after=f"{refused_s:.1f} s",
            back_after=f"{back_s:.1f} s",
            duplicates=len(report.duplicated),
        )


@pytest.mark.row(16, "disk full on one of three nodes, then on all")
def test_sends_survive_one_full_disk_and_come_back_after_three(start_run, disks, row):
    """A quorum goes on without the one; without any, errors are typed; with room again all is as it was."""
    directory, small = disks(3)
    with running_cluster(directory, nodes=3, yaml=YAML) as own:
        run = start_run(url_of(own, request_timeout=3), visibility=timedelta(seconds=8))
        consumer, producer = _load(run)
        small.fill(3)
        one_full = time.monotonic()
        time.sleep(15)
        small.fill(1, 2)
        full = time.monotonic()
        went_on = sum(ok for began, _, ok in sends_of([producer.history]) if one_full < began < full)
        refused_s = _await_trouble(producer, full, lambda: small.fill(1, 2, 3))
        time.sleep(10)
        small.free(1, 2, 3)
        died = _restart_the_dead(own)
        back_s = _await_sends(producer)
        assert consumer.process.poll() is None
        report = run.finish()
        assert report.clean, str(report)
        assert went_on, "no send succeeded while one disk was full"
        row(
            nodes_restarted=died,
            messages=report.sends,
            unknown_sends=report.unknown_sends,
            sends_granted_with_one_full=went_on,
            first_error_after_all_full=f"{refused_s:.1f} s",
            back_after=f"{back_s:.1f} s",
            duplicates=len(report.duplicated),
        )


def _load(run):
    """A consumer and a producer that have been at it for a while."""
    consumer = run.start("consume", batch=50)
    producer = run.start("produce", size=2000, rate=500)
    time.sleep(4)
    return consumer, producer


def _restart_the_dead(own):
    """How many nodes did not serve again by themselves; whatever supervises them would restart them."""
    deadline = time.monotonic() + 10
    while own.status().state is not ClusterState.RUNNING:
        if time.monotonic() >= deadline:
            dead = [node.number for node in own.status().nodes if node.state is not NodeState.UP]
            for number in dead:
                with suppress(DevError):
                    own.kill(number)
            own.start()
            return len(dead)
        time.sleep(1)
    return 0


def _await_sends(producer):
    """Seconds until a send succeeds; then some more go on."""
    free = time.monotonic()
    while not any(ok and began > free for began, _, ok in sends_of([producer.history])):
        assert time.monotonic() < free + 60, "sends did not come back"
        time.sleep(0.3)
    back_s = time.monotonic() - free
    time.sleep(4)
    return back_s


def _fill(path):
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            os.write(file.fileno(), bytes(512))


def _await_trouble(producer, since, fill):
    """Seconds until a send fails: the segments that were there already have to be full first."""
    while True:
        failed = [began for began, _, ok in sends_of([producer.history]) if began > since and not ok]
        if failed:
            return failed[0] - since
        assert time.monotonic() < since + 60, "a full disk troubled nobody"
        fill()
        time.sleep(0.5)
