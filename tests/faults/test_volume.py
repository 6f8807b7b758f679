"""Many messages, and a long time: rows 14 and 20."""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from pathlib import Path

import pytest

from cqueue.store.connection import open_session
from cqueue.testing.events import calls, read
from tests.faults.clusters import S, p99
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(3600)]

MESSAGES = int(os.environ.get("CQUEUE_FAULTS_MESSAGES", "1000000"))
SOAK_S = 60 * float(os.environ.get("CQUEUE_FAULTS_SOAK_MINUTES", "20"))
IDLE_LINES = 8  # two a receive
TAIL_BYTES = 8 * 1024  # lines of receives that gave something are much longer
TOMBSTONES = (
    "SELECT max, p99th FROM system_views.tombstones_per_read WHERE keyspace_name = %s AND table_name = %s"
)


@pytest.mark.row(14, "many messages through one queue")
def test_a_queue_stays_as_quick_as_it_was(start_run, new_keyspace, row):
    """Receives at the end take at most twice as long as at the start; no read crosses 1,000 tombstones."""
    keyspace = new_keyspace()
    run = start_run(keyspace.url)
    consumers = run.start_all(2, "consume", batch=500)
    producers = run.start_all(2, "produce", count=MESSAGES // 2)
    for child in producers:
        child.join(3000)
    # Not by counting exactly: that reads across everything, and would stand in the metric.
    until(lambda: all(_is_idle(child) for child in consumers), 600, "not drained")
    with open_session(keyspace.settings) as connection:
        crossed = connection.session.execute(TOMBSTONES, (keyspace.name, "messages")).one()
    report = run.finish(drain_s=300)
    assert report.clean, str(report)
    receives = sorted(
        (call.began_ns, (call.ended_ns - call.began_ns) / S)
        for call in calls(read([child.history for child in consumers]))
        if call.operation == "receive" and call.answered
    )
    # Thirds: a tenth of 2,000 receives would have its second worst for its p99. The first tenth warms up.
    tenth, third = max(1, len(receives) // 10), max(1, len(receives) * 3 // 10)
    at_start, at_end = (
        p99([took for _, took in part]) for part in (receives[tenth : tenth + third], receives[-third:])
    )
    assert at_end <= 2 * at_start, f"{at_start:.3f} s, then {at_end:.3f} s"
    assert crossed.max < 1000
    row(
        messages=report.sends,
        receive_p99_start=f"{at_start * 1000:.0f} ms",
        receive_p99_end=f"{at_end * 1000:.0f} ms",
        tombstones_a_read=f"p99 {crossed.p99th:.0f}, most {crossed.max:.0f}",
        duplicates=len(report.duplicated),
    )


def _is_idle(child):
    """Whether a consumer's last calls, over more than a second, were receives that gave nothing."""
    with child.history.open("rb") as file:
        file.seek(max(0, child.history.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()[-IDLE_LINES:]
    return len(lines) == IDLE_LINES and all(
        line.startswith(b'{"operation":"receive"') and b'"messages"' not in line for line in lines
    )


@pytest.mark.row(20, "soak, random mix")
def test_a_long_run_of_everything_keeps_every_promise(start_run, row):
    """Nacks, snoozes, deaths, extensions, timeouts and kills; memory, threads and connections stay flat."""
    rng = random.Random(20)
    run = start_run(visibility=timedelta(seconds=6), lease=timedelta(seconds=2))
    steady = run.start("consume", batch=20, mix=0.1, threads=2)
    victims = [run.start("consume", batch=20, mix=0.1, flaky=0.02) for _ in range(2)]
    run.start("produce", rate=40, repeat_unknown=True)
    run.start("produce", rate=40, delay_s=3, flaky=0.02, repeat_unknown=True)
    end = time.monotonic() + SOAK_S
    time.sleep(min(30, SOAK_S / 4))  # caches and pools are full by then
    before = _size(steady)
    kills = 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(2, 8))
        place = rng.randrange(len(victims))
        victims[place].kill()
        victims[place] = run.start("consume", batch=20, mix=0.1, flaky=0.02)
        kills += 1
    after = _size(steady)
    report = run.finish()
    assert report.clean, str(report)
    assert after["threads"] <= before["threads"] + 2, (before, after)
    assert after["files"] <= before["files"] + 2, (before, after)
    assert after["mb"] <= before["mb"] * 1.2 + 20, (before, after)
    row(
        minutes=f"{SOAK_S / 60:g}",
        messages=report.sends,
        kills=kills,
        duplicates=len(report.duplicated),
        memory=f"{before['mb']} → {after['mb']} MB",
        threads=f"{before['threads']} → {after['threads']}",
        files=f"{before['files']} → {after['files']}",
    )


def _size(child):
    """Memory, threads, and open files with sockets of a process."""
    proc = Path(f"/proc/{child.process.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return {
        "mb": int(status["VmRSS"].split()[0]) // 1024,
        "threads": int(status["Threads"]),
        "files": len(list((proc / "fd").iterdir())),
    }
