"""Schedules under a real dispatcher: threads, real time, and on Cassandra as well."""

import threading
from datetime import timedelta

import pytest

import cqueue
from cqueue import Cron, Repeating, RunOnce
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from tests.fix_dispatcher import until

SECOND = timedelta(seconds=1)


class Ticks:
    """A handler that takes notes of firings, and tells when there are enough."""

    def __init__(self, enough):
        self.firings, self._enough, self.done = [], enough, threading.Event()

    def __call__(self, message, context):
        self.firings.append(context.firing)
        if len(self.firings) >= self._enough:
            self.done.set()


@pytest.fixture(params=["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def queue(request):
    url = "memory://" if request.param == "memory" else request.getfixturevalue("keyspace").url
    with cqueue.connect(url) as client:
        yield client.create_queue("ticks")
        client.delete_queue("ticks")


@pytest.mark.slow
def test_every_second_ticks_every_second(queue):
    """Ten seconds are ten firings, in order, each once, and none late enough to be noticed."""
    ticks = Ticks(10)
    with Dispatcher(queue, ticks, threads=2):
        queue.schedules.add("tick", Cron("* * * * * *", misfire="all"))
        assert ticks.done.wait(30)
    times = [firing.fired_at for firing in ticks.firings]
    assert [time - times[0] for time in times] == [n * SECOND for n in range(len(times))]
    assert [firing.execution_count for firing in ticks.firings[:10]] == list(range(1, 11))


@pytest.mark.slow
def test_two_dispatchers_share_the_ticks(queue):
    """Each tick goes to one of them."""
    ticks = Ticks(8)
    with Dispatcher(queue, ticks, threads=2), Dispatcher(queue, ticks, threads=2):
        queue.schedules.add("tick", Repeating(SECOND / 4, count=8))
        assert ticks.done.wait(30)
    assert sorted(firing.execution_count for firing in ticks.firings) == list(range(1, 9))
    assert queue.schedules.get("tick").state == "done"


def test_a_coroutine_of_a_schedule_runs_once_where_no_thread_can_be_started(monkeypatch):
    """What needs Cassandra is done on its loop then; it uses no attempt, and nothing is done twice."""
    start, attempts = threading.Thread.start, []

    def refuse(thread):
        if thread.name.startswith(("asyncio", "cqueue-firing")):
            raise RuntimeError("can't start new thread")
        start(thread)

    async def note(_message, context):
        attempts.append(context.attempt)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with cqueue.connect("memory://") as client:
        queue = client.create_queue("ticks")
        with Dispatcher(queue, note) as dispatcher:
            queue.schedules.add("once", RunOnce(SECOND / 10))
            until(lambda: dispatcher.stats().total.succeeded)
            stats = dispatcher.stats().total
        assert (attempts, stats.started, stats.succeeded, stats.retried) == ([1], 1, 1, 0)
        assert queue.schedules.get("once").state == "done"


def test_a_schedule_is_made_changed_and_removed_without_a_restart(queue):
    """The dispatcher that runs finds what another process adds."""
    once, manual = Ticks(1), Ticks(2)
    with Dispatcher(
        queue, lambda message, context: (once if message.body == b"1" else manual)(message, context)
    ):
        queue.schedules.add("once", RunOnce(SECOND / 10), b"1")
        queue.schedules.add("never", Repeating(timedelta(days=1)), b"2")
        assert once.done.wait(30)
        queue.schedules.run_now("never")
        queue.schedules.run_now("never")
        assert manual.done.wait(30)
        queue.schedules.remove("never")
    assert [firing.manual for firing in once.firings + manual.firings] == [False, True, True]
