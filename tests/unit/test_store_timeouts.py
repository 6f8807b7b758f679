"""Timeouts that share a timer, on an event loop that does what the test says."""

import gc
import math
import time
import weakref

import pytest
from cassandra.connection import TimerManager

from cqueue.store.driver import timeouts
from cqueue.store.driver.timeouts import Timeout, Timeouts


class Loop:
    """The driver's own keeper of timers, without a thread."""

    def __init__(self):
        self.added = []
        self.manager = TimerManager()

    def add_timer(self, timer):
        self.added.append(timer)
        self.manager.add_timer(timer)


class Request:
    """What waits for an answer: it holds its timeout, which calls it."""

    def __init__(self, of):
        self.timeout = of.add(10, self.ended)

    def ended(self):
        """Too late."""


@pytest.fixture
def clock(monkeypatch):
    """The time of the driver's timers and ours, set by the test."""
    now = [1_000_000.1]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_each_is_called_once_and_not_before_it_ends(clock):
    loop, called = Loop(), []
    of = Timeouts(loop)
    for number in range(40):
        of.add(number / 10, lambda number=number: called.append((number, clock[0])))

    while clock[0] < 1_000_006:
        clock[0] += 0.05
        loop.manager.service_timeouts()

    assert sorted(number for number, _ in called) == list(range(40))
    for number, at_s in called:
        late_s = at_s - (1_000_000.1 + number / 10)
        assert -0.001 <= late_s <= timeouts.TICK_S + 0.051


def test_one_that_is_cancelled_is_not_called(clock):
    loop, called = Loop(), []
    of = Timeouts(loop)
    of.add(1, lambda: called.append("stays"))
    of.add(1, lambda: called.append("cancelled")).cancel()

    clock[0] += 2
    loop.manager.service_timeouts()

    assert called == ["stays"]


def test_a_request_that_was_answered_is_gone_at_once():
    """Not only when its time has come, nor by the collector of garbage."""
    gc.disable()
    try:
        request = Request(Timeouts(Loop()))
        gone = weakref.ref(request)
        request.timeout.cancel()
        del request
        assert gone() is None
    finally:
        gc.enable()


def test_an_hour_of_requests_leaves_nothing_behind(clock):
    loop = Loop()
    of = Timeouts(loop)
    for _ in range(3600):
        of.add(10, lambda: None).cancel()
        clock[0] += 1
        loop.manager.service_timeouts()

    assert len(of._shared) <= 2 + 11 / timeouts.TICK_S
    assert len(loop.manager._queue) <= 2 + 11 / timeouts.TICK_S


def test_one_that_raises_keeps_the_others_from_nothing(clock):
    loop, called = Loop(), []
    of = Timeouts(loop)
    of.add(1, lambda: called.append("before"))
    of.add(1, lambda: 1 / 0)
    of.add(1, lambda: called.append("after"))

    clock[0] += 2
    loop.manager.service_timeouts()

    assert sorted(called) == ["after", "before"]
    assert loop.manager.next_timeout is None


def test_one_that_is_added_as_the_shared_timer_ends_is_called_later(clock, monkeypatch):
    """The loop calls all that share it just before this one joins them."""
    loop, called = Loop(), []
    of = Timeouts(loop)

    class Slow(Timeout):
        def __init__(self, shared, callback):
            super().__init__(shared, callback)
            if len(loop.added) == 1:
                shared.finish(math.inf)

    monkeypatch.setattr(timeouts, "Timeout", Slow)
    of.add(0.1, lambda: called.append(clock[0]))
    assert len(loop.added) == 2
    assert called == []

    clock[0] += 2
    loop.manager.service_timeouts()

    assert len(called) == 1


def test_a_wall_clock_that_steps_back_delays_what_is_new_and_breaks_nothing(clock):
    """Some of the ends that come round again are over."""
    loop, called = Loop(), []
    of = Timeouts(loop)
    of.add(0.1, lambda: called.append("old"))
    clock[0] += 2
    loop.manager.service_timeouts()
    clock[0] -= 2

    of.add(0.1, lambda: called.append("new"))
    clock[0] += 2
    loop.manager.service_timeouts()

    assert called == ["old", "new"]
