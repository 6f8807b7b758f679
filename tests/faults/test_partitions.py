"""A node and its clients cut off from the majority: row 8. Each node has a network namespace."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from cqueue.testing.events import NEVER, calls, read
from tests.faults.clusters import S, running_cluster, sends_of, url_of
from tests.faults.lengths import full

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(900)]

CYCLES, CUT_S, RECOVERY_S = full(5, 1), 30, 15
REQUEST_TIMEOUT_S = 10
BUSY_S = 2.0  # a receive waits for 0.3 s by itself, and this machine is busy
MINORITY = 3


@pytest.mark.storage
@pytest.mark.row(8, "minority partition for 30 s, five times")
def test_a_minority_partition_loses_nothing(network, start_run, row, tmp_path_factory):
    """The majority goes on, clients of the minority get typed errors in time, all recover in 15 s."""
    places = {"addresses": network.addresses, "prefixes": [network.prefix(n) for n in (1, 2, 3)]}
    with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=3, **places) as own:
        url = url_of(own, request_timeout=REQUEST_TIMEOUT_S)
        run = start_run(url, visibility=timedelta(seconds=8), lease=timedelta(seconds=2))
        there = network.prefix(MINORITY)
        run.start("consume", batch=70)
        minor_consumer = run.start("consume", batch=70, prefix=there)
        major = run.start("produce", rate=200)
        minor = run.start("produce", rate=200, prefix=there)
        cuts = [_cut(network, major, minor) for _ in range(CYCLES)]
        report = run.finish()
    assert report.clean, str(report)
    slowest = max(_slowest_s(child.history, cuts) for child in (minor, minor_consumer))
    assert slowest <= REQUEST_TIMEOUT_S + BUSY_S, f"a call took {slowest:.1f} s"
    recovery = max(_recovery_s(child.history, cuts) for child in (major, minor))
    assert recovery <= RECOVERY_S, f"sends failed for {recovery:.1f} s after the end of a cut"
    refused = sum(not ok for began, _, ok in sends_of([minor.history]) if _within(began, cuts))
    went_on = sum(ok for began, _, ok in sends_of([major.history]) if _within(began, cuts))
    assert refused
    assert went_on
    row(
        cuts=f"{CYCLES} of {CUT_S} s",
        messages=report.sends,
        unknown_sends=report.unknown_sends,
        duplicates=len(report.duplicated),
        refused_to_the_minority=refused,
        granted_to_the_majority=went_on,
        slowest_call=f"{slowest:.1f} s of {REQUEST_TIMEOUT_S} s",
        recovery=f"{recovery:.1f} s",
    )


def _cut(network, major, minor):
    """(Beginning, end) of a cut; returns when both sides have been sending again for a while."""
    time.sleep(5)
    began = time.monotonic()
    network.unplug(MINORITY)
    time.sleep(CUT_S)
    network.plug(MINORITY)
    ended = time.monotonic()
    for child in (major, minor):
        while not any(ok and at > ended for at, _, ok in sends_of([child.history])):
            assert time.monotonic() < ended + 2 * RECOVERY_S, "sends did not come back"
            time.sleep(0.5)
    time.sleep(8)
    return began, ended


def _within(moment, cuts):
    return any(began <= moment <= ended for began, ended in cuts)


def _slowest_s(history, cuts):
    """The longest that a call took that began in a cut."""
    took = [
        (call.ended_ns - call.began_ns) / S
        for call in calls(read([history]))
        if call.ended_ns != NEVER and _within(call.began_ns / S, cuts)
    ]
    return max(took, default=0.0)


def _recovery_s(history, cuts):
    """From the end of a cut to the first send that is granted, and beyond the last that is refused."""
    sends = sends_of([history])
    ends = [began for began, _ in cuts[1:]] + [float("inf")]
    worst = 0.0
    for (_, ended), until in zip(cuts, ends, strict=True):
        # One that is under way when the next cut begins says nothing of this one.
        after = [(at + took - ended, ok) for at, took, ok in sends if ended < at + took < until]
        granted = min(end_s for end_s, ok in after if ok)
        worst = max(worst, granted, *(end_s for end_s, ok in after if not ok))
    return worst
