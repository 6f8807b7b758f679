"""Three dispatchers, one of them killed: a schedule of every second fires each second, and goes on once."""

import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

import cqueue
from tests.acceptance.journals import whole_lines

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(480)]

CHILD = Path(__file__).with_name("ticking_child.py")
VISIBILITY = timedelta(seconds=10)  # a starved process goes on holding what it handles
SECOND = timedelta(seconds=1)


class Line(NamedTuple):
    """What a process did: "ready", "acked" a message, or the time that it fired because a message came."""

    pid: int
    what: str
    message_id: str


@pytest.mark.parametrize("auto_commit", [False, True])
def test_a_killed_dispatcher_loses_no_tick(keyspace, tmp_path, auto_commit):
    """Each tick is fired, and none twice but what the killed process had not acked."""
    journal = tmp_path / "journal"
    with cqueue.connect(keyspace.url) as client, ExitStack() as stack:
        name = f"ticks-{auto_commit}"
        queue = client.create_queue(name, cqueue.QueueConfig(visibility=VISIBILITY))
        children = [stack.enter_context(_child(keyspace.url, name, journal)) for _ in range(3)]
        _wait(journal, lambda lines: [line.what for line in lines].count("ready") == 3)
        queue.schedules.add("tick", cqueue.Cron("* * * * * *", misfire="all", auto_commit=auto_commit))
        firings = _firings(_wait(journal, lambda lines: len(_firings(lines)) >= 5))
        killed = next(child for child in children if child.pid == firings[-1].pid)
        killed.send_signal(signal.SIGKILL)  # right behind its handler: it holds the firing, or sends the next
        _wait(journal, lambda lines: len({line.what for line in _firings(lines)}) >= 18)
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            _end(child)
        lines = _read(journal)  # when nobody fires any more, so that all counts are of one moment
        schedule = queue.schedules.get("tick")
    times = sorted({datetime.fromisoformat(line.what) for line in _firings(lines)})
    assert [time - times[0] for time in times] == [n * SECOND for n in range(len(times))], "lost"
    assert schedule.fired - len(times) in {-1, 0, 1}
    _check_repeats(lines, killed.pid)


def _check_repeats(lines, killed):
    """Only what the killed process did not ack came again, once, as the same message; the rest was acked."""
    acked = {line.message_id for line in lines if line.what == "acked" and line.pid == killed}
    by_time = defaultdict(list)
    for line in _firings(lines):
        by_time[line.what].append(line)
    for firings in by_time.values():
        first, *repeats = firings
        assert len({line.message_id for line in firings}) == 1, firings
        assert not repeats or (first.pid == killed and first.message_id not in acked), firings
        assert len(repeats) <= 1, firings
    settled = {(line.pid, line.message_id) for line in lines if line.what == "acked"}
    assert settled >= {(line.pid, line.message_id) for line in _firings(lines) if line.pid != killed}


@contextmanager
def _child(url, name, journal):
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", str(CHILD), url, name, str(journal)]
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def _end(child):
    """Wait until a process has heard SIGTERM. One that goes on says where its threads are."""
    try:
        child.wait(60)
    except subprocess.TimeoutExpired:
        status = Path(
            f"/proc/{child.pid}/status"
        ).read_text()  # which signals are pending, blocked and caught
        child.send_signal(signal.SIGABRT)
        child.wait()
        pytest.fail(f"SIGTERM did not end it:\n{status}")


def _wait(journal, enough):
    """Return the lines of the journal, once there are enough."""
    deadline = time.monotonic() + 150
    while not enough(lines := _read(journal)):
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
    return lines


def _read(journal):
    split = [line.split(" ") for line in whole_lines(journal)]
    return [Line(int(pid), what, message_id) for pid, what, message_id in split]


def _firings(lines):
    return [line for line in lines if line.what not in {"ready", "acked"}]
