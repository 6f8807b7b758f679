"""The parent replaces what dies, obeys signals, and blames no child for what is not its fault."""

import errno
import os
import queue
import signal
import socket
import subprocess
import textwrap
import threading
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cqueue.dispatcher.service import run_recorder, supervisor
from cqueue.dispatcher.service.supervisor import (
    ChildProcess,
    Ended,
    Reported,
    Signalled,
    Supervisor,
    pause_s,
)

READY = {"ready": True, "alive": True}


class FakeChild:
    def __init__(self, pid, fleet):
        self.pid, self.fleet = pid, fleet
        self.orders = []

    def tell(self, order):
        self.orders.append(order)

    def kill(self):
        self.fleet.end(self, -signal.SIGKILL)


class ParentProcess:
    """A clock, an inbox that lets time pass while nothing comes, and a supervisor of fake children."""

    def __init__(self, count=2, grace_s=30, **options):
        self.now_s = 0.0
        self.news = queue.SimpleQueue()
        self.started = []
        self.supervisor = Supervisor(self._start, count, grace_s=grace_s, clock=lambda: self.now_s, **options)

    def _start(self, index):
        self.started.append(FakeChild(100 + len(self.started), self))
        return self.started[-1]

    def say(self, child, report=READY):
        self.news.put(Reported(child.pid, report))

    def end(self, child, code):
        self.news.put(Ended(child.pid, code))

    def signal(self, number):
        self.news.put(Signalled(number))

    def step(self, seconds=0.0):
        """Take all news, and let some seconds pass while the living children report."""
        until = self.now_s + seconds
        self._take_all()
        while self.now_s < until:
            for child in self.alive:
                self.say(child)
            self._take_all()
            self.wait()
            self._take_all()

    def _take_all(self):
        self.supervisor.due()
        while not self.news.empty():
            self.supervisor.take(self.news.get_nowait())
            self.supervisor.due()

    def wait(self):
        """Nothing comes until something is due."""
        self.now_s += self.supervisor.patience_s()
        self.supervisor.due()

    def run(self):
        """Until all have ended; the exit code."""
        while not self.supervisor.is_over():
            self._take_all()
            if not self.supervisor.is_over():
                self.wait()
        return self.supervisor.code

    @property
    def alive(self):
        return [slot.child.process for slot in self.supervisor.slots if slot.child is not None]

    def up(self):
        """All children are started and at work."""
        self.step()
        for child in self.alive:
            self.say(child)
        self.step()
        return list(self.alive)


def test_as_many_children_as_asked_for_are_started():
    assert len(ParentProcess(3).up()) == 3


def test_a_child_that_is_killed_at_work_is_replaced_within_a_second():
    fleet = ParentProcess()
    first, second = fleet.up()
    fleet.end(first, -9)
    fleet.step(1)
    assert len(fleet.alive) == 2
    assert second in fleet.alive


def test_a_child_that_the_system_refuses_to_start_is_started_later():
    """No process or memory is free for a while: the parent and its other children go on."""
    fleet = ParentProcess()
    first, second = fleet.up()
    start, refusals = fleet.supervisor._start, iter(range(2))

    def refused(index):
        if next(refusals, None) is not None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(index)

    fleet.supervisor._start = refused
    fleet.end(first, -9)
    fleet.step(5)
    assert len(fleet.alive) == 2
    assert second in fleet.alive


def test_repeated_deaths_at_work_still_wait_no_longer_than_a_second():
    """A message that kills its process costs the neighbours' throughput, not their lives."""
    fleet = ParentProcess()
    for _ in range(10):
        fleet.end(fleet.up()[0], -9)
        fleet.step(1.1)
        assert len(fleet.alive) == 2


@pytest.mark.parametrize(
    ("deaths", "came_up", "pause"), [(1, True, 0.1), (9, True, 1.0), (4, False, 0.8), (99, False, 30.0)]
)
def test_the_pause_grows_to_its_limit(deaths, came_up, pause):
    assert pause_s(deaths, came_up=came_up) == pause


def test_a_child_that_never_came_up_is_started_ever_more_rarely():
    fleet = ParentProcess(1)
    times = []
    for _ in range(13):
        fleet.step()
        times.append(fleet.now_s)
        fleet.end(fleet.alive[0], 70)
        fleet.step()
        while not fleet.alive:
            fleet.wait()
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses[:9] == sorted(pauses[:9])
    assert pauses[-3:] == pytest.approx([30, 30, 30])


def test_why_a_child_never_came_up_is_said_unless_the_parent_ends_for_it_and_raises_it():
    with capture_logs() as lines:
        fleet = ParentProcess(1)
        for code in (70, 2):
            while not fleet.alive:
                fleet.wait()
            fleet.step()
            fleet.say(fleet.alive[0], {"failed": f"error {code}"})
            fleet.end(fleet.alive[0], code)
            fleet.step()
    assert [line["error"] for line in lines if line["event"] == "child_failed"] == ["error 70"]
    assert (fleet.supervisor.failure, fleet.supervisor.code) == ("error 2", 2)


def test_a_child_that_its_first_message_kills_is_replaced_as_quickly():
    """The child had come up; its message is to blame that it was never ready."""
    fleet = ParentProcess(1)
    for _ in range(10):
        fleet.step()
        (child,) = fleet.alive
        fleet.say(child, {"ready": False, "alive": True, "launched": True})
        fleet.end(child, -9)
        fleet.step(1.1)
        assert len(fleet.alive) == 1


def test_a_death_is_told_with_what_was_being_handled():
    """At most twenty messages are named; their number is always logged."""
    runs = [{"task": "send", "message_id": str(n), "attempt": 1, "queue": "mail"} for n in range(25)]
    fleet = ParentProcess(1)
    fleet.step()
    (child,) = fleet.started
    with capture_logs() as lines:
        fleet.news.put(Ended(child.pid, -9, runs))
        fleet.step()
    (line,) = [line for line in lines if line["event"] == "child_ended"]
    assert (line["running"], line["handlers"], line["log_level"]) == (runs[:20], 25, "error")


def test_a_child_that_ended_well_by_itself_is_replaced():
    """Somebody may have sent it a SIGTERM of its own."""
    fleet = ParentProcess()
    fleet.end(fleet.up()[0], 0)
    fleet.step(1)
    assert len(fleet.alive) == 2


def test_a_child_that_ends_well_at_once_is_started_ever_more_rarely():
    """Such as one whose application ends the process while it is imported."""
    fleet = ParentProcess(1)
    fleet.step()
    while fleet.now_s < 300:
        for child in fleet.alive:
            fleet.end(child, 0)
        fleet._take_all()
        fleet.wait()
    assert len(fleet.started) < 25


def test_drain_ends_when_all_have_ended_and_replaces_the_killed():
    fleet = ParentProcess(drain=True)
    first, second = fleet.up()
    fleet.end(first, 0)
    fleet.end(second, -9)
    fleet.step(1)
    (third,) = fleet.alive
    fleet.end(third, 0)
    assert fleet.run() == 0


def test_a_signal_tells_all_to_stop_and_the_code_is_0_when_they_have():
    fleet = ParentProcess()
    children = fleet.up()
    fleet.signal(signal.SIGTERM)
    with capture_logs() as lines:
        fleet.step()
    assert [(line["event"], line["why"]) for line in lines] == [("daemon_stopping", "SIGTERM")]
    assert [child.orders for child in children] == [["stop"], ["stop"]]
    for child in children:
        fleet.end(child, 0)
    assert fleet.run() == 0
    assert len(fleet.started) == 2


def test_the_code_is_1_if_one_had_to_leave_handlers_running():
    fleet = ParentProcess()
    children = fleet.up()
    fleet.signal(signal.SIGTERM)
    fleet.end(children[0], 0)
    fleet.end(children[1], 1)
    assert fleet.run() == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_kills_all_at_once(number, code):
    fleet = ParentProcess()
    fleet.up()
    fleet.signal(signal.SIGTERM)
    fleet.signal(number)
    assert fleet.run() == code
    assert fleet.now_s <= 2


def test_a_child_that_ends_slowly_in_an_outage_is_not_killed():
    """It runs nothing any more, and waits for answers to settle and to close: the grace was enough."""
    fleet = ParentProcess(1, grace_s=4)
    (child,) = fleet.up()
    fleet.signal(signal.SIGTERM)
    fleet.step(4 + 13)
    fleet.end(child, 0)
    assert fleet.run() == 0


def test_a_child_that_outlives_its_grace_is_killed():
    fleet = ParentProcess(1, grace_s=30)
    fleet.up()
    fleet.signal(signal.SIGTERM)
    fleet.step(33)
    assert fleet.alive
    fleet.step(4)
    assert fleet.run() == 1


def test_a_stop_starts_nobody_that_was_waiting_to_be_replaced():
    fleet = ParentProcess(1)
    fleet.end(fleet.up()[0], -9)
    fleet.signal(signal.SIGTERM)
    assert fleet.run() == 0
    assert len(fleet.started) == 1


def test_a_silent_child_is_killed_and_replaced():
    fleet = ParentProcess(1)
    (child,) = fleet.up()
    for _ in range(40):
        fleet.wait()
    fleet.step()
    assert child not in fleet.alive


def test_a_child_that_waits_for_cassandra_at_its_start_is_not_silent():
    """An attempt to connect to nodes that hang takes longer than a child at work may be silent."""
    fleet = ParentProcess(1)
    fleet.step()
    (child,) = fleet.alive
    for _ in range(3):
        fleet.say(child, {"ready": False, "alive": True, "reason": "starting"})
        for _ in range(60):
            fleet.wait()
            fleet.step()
    assert fleet.alive == [child]
    for _ in range(70):
        fleet.wait()
        fleet.step()
    assert child not in fleet.alive


def test_a_child_that_says_it_has_stalled_is_replaced():
    fleet = ParentProcess(1)
    (child,) = fleet.up()
    fleet.say(child, {"ready": False, "alive": False, "reason": "no thread has moved for 61 s"})
    fleet.step(1)
    assert child not in fleet.alive


def test_a_parent_that_was_held_up_blames_no_child():
    fleet = ParentProcess()
    children = fleet.up()
    fleet.now_s += 3600  # the machine slept
    fleet.step(1)
    assert fleet.alive == children


def test_a_reload_replaces_one_after_the_other():
    """The queue is never without workers."""
    fleet = ParentProcess()
    first, second = fleet.up()
    fleet.signal(signal.SIGHUP)
    fleet.step()
    assert (first.orders, second.orders) == (["stop"], [])
    fleet.end(first, 0)
    fleet.step(1)
    assert second.orders == ["stop"]
    fleet.end(second, 0)
    fleet.step(1)
    assert len(fleet.alive) == 2
    assert not {first, second} & set(fleet.alive)
    assert fleet.supervisor.deaths == 0


def reloading():
    """A reload of two children, of which one is at work with the old code, and a new one has just started."""
    fleet = ParentProcess()
    first, second = fleet.up()
    fleet.signal(signal.SIGHUP)
    fleet.step()
    fleet.end(first, 0)
    fleet.step()
    (new,) = [child for child in fleet.alive if child is not second]
    return fleet, second, new


def test_a_replacement_that_has_not_come_up_holds_up_the_next():
    fleet, second, new = reloading()
    for _ in range(60):  # it imports a large application on a busy machine
        fleet.say(second)
        fleet.step()
        fleet.wait()
    assert second.orders == []
    fleet.say(new)
    fleet.step()
    assert second.orders == ["stop"]


def test_a_replacement_that_has_come_up_is_enough_though_a_queue_cannot_be_received_from():
    """Trap: one damaged queue of many kept half of the children at the old code for ever."""
    fleet, second, new = reloading()
    fleet.say(new, READY | {"launched": True, "ready": False})
    fleet.step()
    assert second.orders == ["stop"]


def test_a_second_reload_does_not_stop_the_only_child_at_work():
    """Trap: a child that was starting counted as at work, as it was outdated as well."""
    fleet, second, new = reloading()
    fleet.signal(signal.SIGHUP)
    fleet.step()
    assert (second.orders, new.orders) == ([], ["stop"])


def test_a_reload_under_drain_replaces_the_rest_when_one_has_ended():
    """Nobody takes the place of a child that found nothing more to do: the others do not wait for that."""
    fleet = ParentProcess(3, drain=True)
    first, second, third = fleet.up()
    fleet.end(first, 0)
    fleet.step()
    fleet.signal(signal.SIGHUP)
    fleet.step()
    assert (second.orders, third.orders) == (["stop"], [])
    fleet.end(second, 0)
    fleet.up()
    assert third.orders == ["stop"]


def test_changed_code_replaces_a_single_child():
    fleet = ParentProcess(1)
    (child,) = fleet.up()
    fleet.supervisor.reload(files=["app.py"])
    fleet.step()
    assert child.orders == ["stop"]


def test_an_application_that_cannot_be_loaded_ends_the_daemon():
    fleet = ParentProcess()
    fleet.step()
    fleet.end(fleet.alive[0], 2)
    assert fleet.run() == 2


def test_under_watch_it_waits_for_the_next_change():
    fleet = ParentProcess(1, patient=True)
    fleet.step()
    fleet.end(fleet.alive[0], 2)
    fleet.step()
    fleet.supervisor.reload(files=["app.py"])
    fleet.step()
    assert len(fleet.alive) == 1


def test_after_a_reload_broken_code_is_tried_again_and_the_others_go_on():
    fleet, second, new = reloading()
    fleet.end(new, 2)
    fleet.step(1)
    assert second in fleet.alive
    assert len(fleet.alive) == 2


# ── Real processes ──


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A child of a few lines, found on the path."""
    (tmp_path / "tiny_child.py").write_text(
        textwrap.dedent("""
        import sys
        from multiprocessing.connection import Connection
        with Connection(int(sys.argv[1])) as parent:
            parent.send({"ready": True, "options": parent.recv()})
            try:
                sys.exit(int(parent.recv()))
            except EOFError:
                sys.exit(9)
    """)
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "tiny_child"


def test_a_real_child_gets_its_options_reports_obeys_and_is_reaped(module):
    inbox = queue.SimpleQueue()
    child = ChildProcess(module, {"app": "shop:app"}, inbox)
    assert inbox.get(timeout=30) == Reported(child.pid, {"ready": True, "options": {"app": "shop:app"}})
    child.tell("7")
    assert inbox.get(timeout=30) == Ended(child.pid, 7, [])
    child.tell("too late")
    child.kill()


def test_a_real_child_can_be_killed(module):
    inbox = queue.SimpleQueue()
    child = ChildProcess(module, {}, inbox)
    inbox.get(timeout=30)
    child.kill()
    assert inbox.get(timeout=30) == Ended(child.pid, -9, [])


def refuse_processes(patch):
    """No process is free."""

    def refused(*_args, **_options):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    patch.setattr(subprocess, "Popen", refused)


def refuse_threads(patch):
    """A process is free, and no thread that waits for its end."""
    start = threading.Thread.start

    def refused(thread):
        if thread.name.endswith("-end"):
            raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", refused)


@pytest.mark.parametrize("refuse", [refuse_processes, refuse_threads])
def test_a_child_that_is_refused_leaves_nothing_open(module, monkeypatch, refuse):
    """Else some thousand refusals would use up the parent's files. Threads of other tests may open some."""
    made = []

    def noted(make):
        def call():
            result = make()
            made.extend(map(identity, result if isinstance(result, tuple) else [result]))
            return result

        return call

    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "Pipe", noted(supervisor.Pipe))
        patch.setattr(run_recorder, "shared_file", noted(run_recorder.shared_file))
        refuse(patch)
        with pytest.raises((OSError, RuntimeError)):
            ChildProcess(module, {}, queue.SimpleQueue())
    assert len(made) == 3
    open_now = set()
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread has closed it meanwhile
            open_now.add(identity(int(one.name)))
    assert not open_now & set(made)


def identity(file):
    """A file's inode with its device: inodes of two devices may have the same number."""
    found = os.fstat(file if isinstance(file, int) else file.fileno())
    return found.st_dev, found.st_ino


def test_a_child_sees_that_its_parent_has_gone(module):
    inbox = queue.SimpleQueue()
    child = ChildProcess(module, {}, inbox)
    inbox.get(timeout=30)
    with socket.socket(fileno=os.dup(child.connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)
    assert inbox.get(timeout=30) == Ended(child.pid, 9, [])


def test_a_child_that_ends_is_heard_to_its_last_word(tmp_path, monkeypatch):
    """However slowly it is listened to: a parent that gives up on it has to know why."""
    (tmp_path / "brief_child.py").write_text(
        "import sys\n"
        "from multiprocessing.connection import Connection\n"
        "with Connection(int(sys.argv[1])) as parent:\n"
        """    parent.send({"failed": "no such module"})\n"""
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    ended = threading.Event()
    wait, receive = subprocess.Popen.wait, Connection.recv

    def tell(self, timeout=None):
        code = wait(self, timeout)
        ended.set()
        return code

    def slowly(self):
        assert ended.wait(30)
        return receive(self)

    monkeypatch.setattr(subprocess.Popen, "wait", tell)
    monkeypatch.setattr(Connection, "recv", slowly)
    inbox = queue.SimpleQueue()
    child = ChildProcess("brief_child", {}, inbox)
    assert inbox.get(timeout=30) == Reported(child.pid, {"failed": "no such module"})
    assert inbox.get(timeout=30) == Ended(child.pid, 0, [])
