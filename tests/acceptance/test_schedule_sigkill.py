"""Three dispatchers, one of them killed: a schedule of every second fires each second, and goes on once."""

import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import cqueue
from tests.acceptance.journals import whole_lines

pytestmark = [pytest.mark.cassandra, pytest.mark.fault, pytest.mark.timeout(480)]

CHILD = Path(__file__).with_name("ticking_child.py")
VISIBILITY = timedelta(seconds=10)  # a starved process goes on holding what it handles
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("auto_commit", [False, True])
def test_a_killed_dispatcher_loses_no_tick(keyspace, tmp_path, auto_commit):
    """Each tick is fired, and none twice but what the killed process had in hand."""
    journal = tmp_path / "journal"
    with cqueue.connect(keyspace.url) as client, ExitStack() as stack:
        name = f"ticks-{auto_commit}"
        queue = client.create_queue(name, cqueue.QueueConfig(visibility=VISIBILITY))
        children = [stack.enter_context(_child(keyspace.url, name, journal)) for _ in range(3)]
        _wait(journal, lambda lines: [time for _, time in lines].count("ready") == 3)
        queue.schedules.add("tick", cqueue.Cron("* * * * * *", misfire="all", auto_commit=auto_commit))
        lines = _wait(journal, lambda lines: len(lines) >= 3 + 5)
        killed = next(child for child in children if child.pid == lines[-1][0])
        killed.send_signal(signal.SIGKILL)  # right behind its handler: it holds the firing, or sends the next
        _wait(journal, lambda lines: len(set(_ticks(lines))) >= 18)
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            _end(child)
        ticks = _ticks(_read(journal))  # when nobody fires any more, so that both counts are of one moment
        schedule = queue.schedules.get("tick")
    distinct = sorted(set(ticks))
    assert [tick - distinct[0] for tick in distinct] == [n * SECOND for n in range(len(distinct))], "lost"
    assert len(ticks) - len(distinct) <= 1, "doubled"
    assert schedule.fired - len(distinct) in {-1, 0, 1}


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
    """(pid, time) of each line, once there are enough."""
    deadline = time.monotonic() + 150
    while not enough(lines := _read(journal)):
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
    return lines


def _read(journal):
    pairs = [line.split(" ") for line in whole_lines(journal)]
    return [(int(pid), time) for pid, time in pairs]


def _ticks(lines):
    return [datetime.fromisoformat(time) for _, time in lines if time != "ready"]
