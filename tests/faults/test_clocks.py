"""Clocks that are wrong, or are set while somebody looks at them: rows 10 and 11."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest

from tests.faults.clocks import WallClock
from tests.faults.clusters import running_cluster, url_of

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(600)]

SKEW_S = 0.5  # ε
LATE_S = SKEW_S + 2.5  # a taker acts at due + ε, polls once a second, and this machine is busy


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
    run.start("produce", batch=10, rate=100, delay_s=2, count=600, environ=behind.environ).join()
    run.await_empty(limit_s=40)
    _judge(run, row, f"± {abs(offset_s)} s, {'first' if offset_s > 0 else 'second'} sign")


@pytest.mark.row(10, "client wall clock stepped")
def test_a_stepped_wall_clock_changes_nothing(start_run, clock_library, row, tmp_path):
    """It jumps by ten minutes there and back under all clients, every second."""
    clock = WallClock(clock_library, tmp_path / "clock")
    run = start_run()
    run.start("consume", batch=50, environ=clock.environ)
    producer = run.start("produce", batch=10, rate=100, delay_s=2, environ=clock.environ)
    for offset_s in (600, 0, -600, 5, 0, -5, 0.005, 0):
        time.sleep(1)
        clock.set(offset_s)
    producer.end()
    run.await_empty(limit_s=40)
    _judge(run, row, "8 steps of up to 10 min")


def _judge(run, row, what):
    report = run.finish()
    assert report.clean, str(report)
    assert not report.duplicated, str(report)
    assert report.early_s <= SKEW_S, f"{report.early_s:.3f} s early"
    assert report.late_s <= LATE_S, f"{report.late_s:.3f} s late"
    early, late = f"{report.early_s * 1000:.0f} ms", f"{report.late_s:.2f} s"
    row(clocks=what, messages=report.sends, most_early=early, most_late=late)


# It came as far as its last line before it listens, and stayed there; why has not been found out yet.
@pytest.mark.skip(reason="not judged yet: a node started with a shifted clock did not come to answer CQL")
@pytest.mark.parametrize("offset_s", [30, -30])
@pytest.mark.row(11, "one node's clock off by 30 s")
def test_one_node_with_a_wrong_clock_breaks_nothing(  # noqa: PLR0917 - fixtures
    start_run, clock_library, row, tmp_path_factory, monkeypatch, offset_s
):
    """The median of three nodes' clocks is right: nothing early or late beyond ε, nothing lost."""
    clock = WallClock(clock_library, tmp_path_factory.mktemp("clock") / "clock")
    clock.set(offset_s)
    with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=3) as own:
        url = url_of(own, request_timeout=5)
        own.kill(3)
        with monkeypatch.context() as patched:
            for name, value in clock.environ.items():
                patched.setitem(os.environ, name, value)
            own.start_node(3)
        own.start()
        run = start_run(url, visibility=timedelta(seconds=8))
        run.start_all(2, "consume", batch=20)
        run.start("produce", batch=10, rate=100, delay_s=2, count=1500).join()
        run.await_empty(limit_s=60)
        _judge(run, row, f"{offset_s:+} s")
