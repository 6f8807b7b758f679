"""Schedules under a real dispatcher: threads, real time, and on Cassandra as well."""

import threading
from datetime import timedelta

import pytest

import cqueue
from cqueue import Cron, Repeating, RunOnce
from cqueue.dispatcher.execution.dispatcher import Dispatcher

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
