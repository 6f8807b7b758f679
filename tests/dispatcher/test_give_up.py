"""Giving a handler up: its message is settled once, by the first of those who may settle it."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

import cqueue
from cqueue.dispatcher.execution.backlog import Backlog, RunQueue
from cqueue.dispatcher.execution.delivery import INTERRUPTED, SUCCEEDED, Delivery, Settlement, Verb
from cqueue.dispatcher.execution.events import Event
from cqueue.dispatcher.execution.retry import DEFAULT_POLICY
from cqueue.dispatcher.execution.runner import Runner
from cqueue.dispatcher.execution.telemetry import Telemetry
from cqueue.dispatcher.execution.worker_threads import STUCK_S, WorkerThreads
from tests.fix_dispatcher import SOON_S

LEFT = Settlement(Verb.NACK, "left", timedelta(seconds=4))


@pytest.fixture
def settled():
    """What was decided, in this order."""
    return []


@pytest.fixture
def runner(settled):
    return Runner(Telemetry(), [], lambda _, settlement: settled.append(settlement))


def make_delivery(call=lambda *_: None):
    message = SimpleNamespace(
        id="m", task="t", attempt=1, trigger=None, is_cancelled=False, suspect=False,
        lease=SimpleNamespace(due_ms=4000),
    )  # fmt: skip
    driver = SimpleNamespace(tracing=None)
    poller = SimpleNamespace(name="q", consumer=SimpleNamespace(driver=driver), now_ms=lambda: 0)
    delivery = Delivery(message, poller)
    delivery.binding = cqueue.Binding("t", call, DEFAULT_POLICY)
    return delivery


def test_a_run_that_has_ended_is_not_given_up(runner, settled):
    """It ends between the look at what runs and the decision to wait for it no longer."""
    delivery = make_delivery()
    runner.begin(delivery)
    runner.end(delivery)
    assert not runner.give_up(delivery, LEFT, Event.STUCK)
    assert not delivery.is_abandoned
    assert not delivery.is_lost
    assert settled == [SUCCEEDED]


def test_a_run_is_given_up_once(runner, settled):
    """Though its time limit and a stop of the dispatcher meet."""
    delivery = make_delivery()
    runner.begin(delivery)
    assert runner.give_up(delivery, LEFT, Event.STUCK)
    assert not runner.give_up(delivery, INTERRUPTED, Event.ABANDONED)
    assert settled == [LEFT]


@pytest.mark.parametrize(
    ("override", "expected"), [(cqueue.Snooze(timedelta()), [LEFT]), (None, [LEFT, SUCCEEDED])]
)
def test_a_run_that_was_given_up_settles_only_what_it_has_done(runner, settled, override, expected):
    """An ack is right however late; nothing else is stored in place of what was decided."""
    delivery = make_delivery()
    runner.begin(delivery)
    runner.give_up(delivery, LEFT, Event.STUCK)
    delivery.override = override
    runner.end(delivery)
    assert settled == expected


def test_a_thread_whose_handler_ends_as_it_is_looked_at_is_not_replaced(runner, settled, monkeypatch):
    """The thread goes on with other messages, so a second one would be one too many."""
    backlog = Backlog(RunQueue(1, 10), RunQueue(1, 10), wake_loop=lambda: None, room_freed=lambda: None)
    workers = WorkerThreads(backlog, runner)
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def handle(*_):
        begun.set()
        assert go_on.wait(SOON_S)

    delivery, after = make_delivery(handle), make_delivery(lambda *_: done.set())
    backlog.put([delivery, after])
    workers.start()
    assert begun.wait(SOON_S)
    delivery.told_s = 0.0
    seen = workers.called()
    assert seen == [delivery]
    go_on.set()
    assert done.wait(SOON_S)  # the thread has ended with the first, and handles the second
    monkeypatch.setattr(workers, "called", lambda: seen)
    monkeypatch.setattr(workers, "_start_thread", lambda: pytest.fail("a thread too many"))
    workers.watch(STUCK_S)
    backlog.close()
    assert settled[0] is SUCCEEDED
    assert LEFT.outcome not in [one.outcome for one in settled]
