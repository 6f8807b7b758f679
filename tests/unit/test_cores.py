"""Keeping a process to one core."""

import os
import queue
import threading

import pytest

from cqueue.cli import bench
from cqueue.dispatcher.service import parent
from cqueue.dispatcher.service.daemon import Daemon, DaemonSettings
from cqueue.errors import ConfigError
from cqueue.runtime import process

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")


def in_a_thread(call):
    """Its result; only that thread, and those that it starts, are kept to a core."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


@pytest.fixture
def asked(monkeypatch):
    """What was asked of the system, which does nothing of it."""
    found = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, wanted: found.append(wanted))
    return found


def test_a_thread_and_those_that_it_starts_run_on_one_core():
    before = os.sched_getaffinity(0)

    def call():
        core = process.keep_to_one_core(0)
        return core, process.usable_cores(), in_a_thread(lambda: os.sched_getaffinity(0))

    core, usable, of_another = in_a_thread(call)
    assert core in before
    assert (usable, of_another) == (1, {core})
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("number", "core"), [(0, 2), (1, 5), (2, 7), (3, 2), (-1, 7), (1000, 5)])
def test_numbers_go_round_the_cores_that_may_be_used(asked, number, core):
    assert process.keep_to_one_core(number) == core
    assert asked == [{core}]


def test_a_system_that_cannot_says_so(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ConfigError, match="Linux only"):
        process.keep_to_one_core(0)
    with pytest.raises(ConfigError, match="Linux only"):
        process.any_core()


def test_a_process_that_may_not_says_so(monkeypatch):
    def refuse(_pid, _cores):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(ConfigError, match="not permitted"):
        process.keep_to_one_core(0)


def test_each_child_of_a_daemon_gets_another_core(monkeypatch):
    given = []
    monkeypatch.setattr(
        parent, "ChildProcess", lambda _module, options, _inbox: given.append(options["core"])
    )
    for core in (40, None):
        fleet = parent.ParentProcess(DaemonSettings(target="shop:app", core=core), 3, queue.SimpleQueue())
        for index in range(3):
            fleet._child(index)
    assert given == [40, 41, 42, None, None, None]


def test_a_daemon_is_kept_to_its_core_before_it_starts_anything(asked, monkeypatch):
    monkeypatch.setattr(Daemon, "_launch", lambda _: asked.append("launched"))
    Daemon(DaemonSettings(target="shop:app", core=1), queue.SimpleQueue()).run()
    Daemon(DaemonSettings(target="shop:app"), queue.SimpleQueue()).run()
    assert asked == [{5}, "launched", "launched"]


def test_the_daemon_of_a_command_line_is_kept_to_a_core(asked, cli):
    cli("dispatch", "no_such_shop:app", "--one-core")
    assert len(asked) == 1


def test_a_benchmark_is_kept_to_the_last_core(asked):
    bench.bench(one_core=False)
    bench.bench(one_core=True)
    assert asked == [{7}]
