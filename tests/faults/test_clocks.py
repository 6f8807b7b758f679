"""Clocks that are wrong, or are set while somebody looks at them: rows 10 and 11."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.faults.clocks import WallClock
from tests.faults.clusters import running_cluster, url_of

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(600)]

SKEW_S = 0.5  # ε
LATE_S = SKEW_S + 2.5  # a taker acts at due + ε, polls once a second, and this machine is busy
WAIT_S = 5
BUSY_S = 2.0  # what three nodes on this machine may add


@pytest.mark.parametrize("offset_s", [0.005, -0.005, 5, -5, 600, -600])
@pytest.mark.row(10, "client clock wrong")
def test_a_client_with_a_wrong_clock_is_punctual(start_run, clock_library, row, tmp_path, offset_s):
    """One producer and one consumer are off, in opposite directions: nothing early or late beyond ε."""
    ahead, behind = (WallClock(clock_library, tmp_path / name) for name in ("ahead", "behind"))
    ahead.set(offset_s)
    behind.set(-offset_s)
    run = start_run()
    run.start("consume", batch=50, environ=ahead.environ)
    run.start("consume", batch=50)
    run.start("produce", rate=300, delay_s=2, count=1800, environ=behind.environ).join()
    run.await_empty(limit_s=40)
    _judge(run, row, f"± {abs(offset_s)} s, {'first' if offset_s > 0 else 'second'} sign")


@pytest.mark.row(10, "client wall clock stepped")
def test_a_stepped_wall_clock_changes_nothing(start_run, clock_library, row, tmp_path):
    """It jumps by ten minutes there and back under all clients, every second."""
    clock = WallClock(clock_library, tmp_path / "clock")
    run = start_run()
    run.start("consume", batch=50, environ=clock.environ)
    producer = run.start("produce", rate=300, delay_s=2, environ=clock.environ)
    for offset_s in (600, 0, -600, 5, 0, -5, 0.005, 0):
        time.sleep(1)
        clock.set(offset_s)
    producer.end()
    run.await_empty(limit_s=40)
    _judge(run, row, "8 steps of up to 10 min")


def _judge(run, row, what, waits_s=0.0):
    """waits_s: how long a client may have waited for a node that never answers."""
    report = run.finish()
    assert report.clean, str(report)
    assert waits_s > BUSY_S or not report.duplicated, str(report)
    assert report.early_s <= SKEW_S, f"{report.early_s:.3f} s early"
    assert report.late_s <= LATE_S + waits_s, f"{report.late_s:.3f} s late"
    early, late = f"{report.early_s * 1000:.0f} ms", f"{report.late_s:.2f} s"
    row(clocks=what, messages=report.sends, most_early=early, most_late=late)


# Nodes tell each other when a request was made. By default one whose clock is off refuses all requests of
# others as expired, or sees all of its own refused: it takes no part, and a client waits for its answers.
TAKES_PART = {"internode_timeout": False}


@pytest.mark.parametrize(
    ("offset_s", "yaml"),
    [
        pytest.param(30, TAKES_PART, id="ahead"),
        pytest.param(-30, TAKES_PART, id="behind"),
        pytest.param(30, {}, id="refused"),
    ],
)
@pytest.mark.row(11, "one node's clock off by 30 s")
def test_one_node_with_a_wrong_clock_breaks_nothing(  # noqa: PLR0917 - fixtures
    start_run, clock_library, row, tmp_path_factory, tmp_path, offset_s, yaml
):
    """The median of three nodes' clocks is right: nothing early or late beyond ε, nothing lost or stuck.

    It is set while everything runs.
    """
    clock = WallClock(clock_library, tmp_path / "clock")
    prefixes = [(), (), ("env", *(f"{name}={value}" for name, value in clock.environ.items()))]
    directory = tmp_path_factory.mktemp("cluster")
    with running_cluster(directory, nodes=3, prefixes=prefixes, yaml=yaml) as own:
        run = start_run(url_of(own, request_timeout=WAIT_S), visibility=timedelta(seconds=8))
        run.start_all(2, "consume", batch=100)  # a backlog would be late for reasons of its own
        producer = run.start("produce", rate=100, delay_s=2, repeat_unknown=True)
        time.sleep(8)
        clock.set(offset_s)
        time.sleep(20)
        producer.end()
        clock.set(0)  # to count and drain through any coordinator
        run.await_empty(limit_s=60)
        what = f"{offset_s:+} s, the node {'takes part' if yaml else 'is refused by the others'}"
        _judge(run, row, what, waits_s=BUSY_S if yaml else 2 * WAIT_S)
