"""Nodes that are stopped and killed: rows 5, 6, 7 and 15. Each test has a cluster of its own."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest

from cqueue.testing.report import NACKED, REMADE
from tests.faults.clusters import (
    await_sends,
    longest_silence_s,
    p99,
    recovery_s,
    running_cluster,
    sends_of,
    url_of,
)
from tests.faults.lengths import full

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(900)]

VISIBILITY = timedelta(seconds=8)
REST_S = full(120, 90)
"""How long what was not acked rests: until the nodes have changed places."""


@pytest.fixture
def cluster(tmp_path_factory):
    """A function that starts a cluster; it is wiped after the test."""
    contexts = []

    def start(**options):
        contexts.append(running_cluster(tmp_path_factory.mktemp("cluster"), **options))
        return contexts[-1].__enter__()

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.quick), 3])
@pytest.mark.row(7, "SIGSTOP of a coordinator for 6 s")
def test_a_stopped_coordinator_leaves_no_outcome_misjudged(start_run, cluster, row, nodes):
    """Requests time out meanwhile: what is called not done never happened, what is acknowledged is there."""
    own = cluster(nodes=nodes)
    run = start_run(url_of(own, request_timeout=2), visibility=VISIBILITY, lease=timedelta(seconds=2))
    run.start_all(2, "consume", batch=70)
    producers = run.start_all(2, "produce", rate=300)
    time.sleep(full(4, 2))
    own.kill(1, signal.SIGSTOP)
    stopped = time.monotonic()
    time.sleep(6)
    own.kill(1, signal.SIGCONT)
    time.sleep(full(8, 4))
    await_sends(producers, stopped + 6)
    report = run.finish()
    sends = sends_of([child.history for child in producers])
    hurt = sum(not ok for _, _, ok in sends)
    assert report.clean, str(report)
    row(
        nodes=nodes,
        messages=report.sends,
        unknown_sends=report.unknown_sends,
        calls_not_ok=hurt,
        duplicates=len(report.duplicated),
        longest_silence=f"{longest_silence_s(sends, stopped):.1f} s",
    )


@pytest.mark.storage
@pytest.mark.row(5, "kill -9 of one of three nodes, restart")
def test_sends_go_on_while_one_node_is_killed_and_comes_back(start_run, cluster, row):
    """p99 of sends is back to twice its baseline within 20 s of the kill, and of the restart's end."""
    own = cluster(nodes=3)
    run = start_run(url_of(own, request_timeout=3), visibility=VISIBILITY)
    run.start("consume", batch=70)
    producer = run.start("produce", rate=500, repeat_unknown=True)
    time.sleep(full(20, 12))
    killed = time.monotonic()
    own.kill(3)
    time.sleep(25)
    own.start_node(3)
    back = time.monotonic()
    time.sleep(25)
    report = run.finish()
    sends = sends_of([producer.history])
    baseline = p99([took for began, took, ok in sends if killed - 10 < began < killed and ok])
    after_kill = recovery_s([send for send in sends if send[0] < killed + 25], killed, baseline)
    after_back = recovery_s(sends, back, baseline)
    assert report.clean, str(report)
    silence = longest_silence_s(sends, killed)
    assert silence < 10
    assert after_kill <= 20
    assert after_back <= 20
    row(
        messages=report.sends,
        unknown_sends=report.unknown_sends,
        baseline_p99=f"{baseline * 1000:.0f} ms",
        p99_back_after_kill=f"{after_kill:.0f} s",
        p99_back_after_restart=f"{after_back:.0f} s",
        longest_silence=f"{silence:.1f} s",
    )


@pytest.mark.parametrize("sync", [pytest.param("batch", marks=pytest.mark.storage), "periodic"])
@pytest.mark.row(6, "kill -9 of all nodes")
def test_what_was_acknowledged_survives_the_death_of_all_nodes(start_run, cluster, row, sync):
    """With a `batch` commit log nothing is lost; with `periodic` at most what was sent in the last 10 s."""
    nodes = 3 if sync == "batch" else 1
    own = cluster(nodes=nodes, commitlog_sync=sync)
    run = start_run(url_of(own, request_timeout=3), visibility=VISIBILITY)
    # What is acked loses its ack as well as its message within the window; so there none is, to measure it.
    consumer = run.start("consume", batch=70) if sync == "batch" else None
    producer = run.start("produce", rate=300)
    time.sleep(full(14, 7))
    for number in range(1, nodes + 1):
        own.kill(number)
    killed = time.monotonic()
    time.sleep(1)
    own.start()
    up = time.monotonic()
    await_sends([producer], up)
    resumed_s = time.monotonic() - up
    assert consumer is None or consumer.process.poll() is None
    time.sleep(5)
    report = run.finish()
    kept = report.clean
    lost_s = 0.0
    if sync == "periodic" and report.lost:
        lost = {finding.id for finding in report.lost}
        began = [at for at, ids in _acknowledged(producer.history) if lost & set(ids)]
        lost_s = killed - min(began)
        kept = lost_s <= 10.5 and not (report.unexpected or report.overlapping)
    assert kept, str(report)
    row(
        commit_log=sync,
        nodes=nodes,
        messages=report.sends,
        lost=len(report.lost),
        window=f"{lost_s:.1f} s",
        sends_again_after=f"{resumed_s:.1f} s",
    )


def _acknowledged(history):
    from cqueue.testing.events import calls, read

    for call in calls(read([history])):
        if call.operation == "send":
            yield call.began_ns / 1e9, [id_ for one in call.answered for id_ in one.get("ids", ())]


@pytest.mark.row(15, "replica down while messages are acked, compaction, replica back")
def test_a_replica_that_missed_the_acks_revives_nothing(start_run, cluster, row):
    """Its rows are still live, and no hint tells it: quorum reads and repair keep them dead."""
    own = cluster(nodes=3, yaml={"hinted_handoff_enabled": False})
    run = start_run(
        url_of(own, request_timeout=3), visibility=timedelta(seconds=4), lease=timedelta(seconds=2)
    )
    run.start("produce", count=5000).join()
    own.kill(3)
    consumer = run.start("consume", batch=130)
    run.await_empty()
    consumer.end()
    _flush(own, (1, 2))
    own.start_node(3)
    own.start()
    late = run.start("consume", batch=130)
    time.sleep(15)
    late.end()
    report = run.finish()
    assert report.clean, str(report)
    assert len(report.duplicated) == 0, str(report)
    assert run.queue.stats(exact=True).live == 0
    row(messages=report.sends, resurrected=len(report.resurrected), duplicates=len(report.duplicated))


@pytest.mark.storage
@pytest.mark.row(15, "half acked with one replica down, read with another one down")
def test_a_quorum_that_changes_sees_what_another_one_has_acked(start_run, cluster, row):
    """Two replicas know which messages of each row are gone; one of them goes, and the third is asked."""
    own = cluster(nodes=3, yaml={"hinted_handoff_enabled": False})
    run = start_run(
        url_of(own, request_timeout=3),
        visibility=timedelta(seconds=8),
        lease=timedelta(seconds=2),
        max_attempts=0,
        shards=1,
        time_shard=timedelta(hours=1),
    )
    run.start("produce", count=5000).join()
    own.kill(2)
    halves = run.start("halve", batch=70, rest_s=REST_S)  # acked by the replicas 1 and 3
    halves.join(300)
    acked = _acked([halves.history])
    _flush(own, (1, 3))
    own.start_node(2)
    own.kill(1)
    late = run.start_all(2, "consume", batch=70)  # read by 2 and 3
    run.await_empty(limit_s=REST_S + 120)
    for child in late:
        child.end()
    own.start_node(1)
    own.start()
    report = run.finish()
    assert report.clean, str(report)
    assert set(report.reasons) <= {NACKED, REMADE}, str(report)
    assert 0 < len(acked) < report.sends
    assert run.queue.stats(exact=True).live == 0
    row(
        messages=report.sends,
        acked_before=len(acked),
        resurrected=len(report.resurrected),
        duplicates=len(report.duplicated) - (report.sends - len(acked)),
    )


def _acked(histories):
    from cqueue.testing.events import OK, calls, read

    acks = (call for call in calls(read(histories)) if call.operation == "ack" and call.outcome == OK)
    return {one["id"] for call in acks for one in call.asked}


def _flush(own, numbers):
    """End nodes regularly, which writes their tables to disk, where compaction merges them; start them."""
    for number in numbers:
        own.kill(number, signal.SIGTERM)
        _await_down(own, number)
        own.start_node(number)


def _await_down(own, number):
    from cqueue.errors import DevError

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            own.kill(number, signal.SIGTERM)
        except DevError:
            return
        time.sleep(0.5)
    raise AssertionError(f"node {number} does not end")
