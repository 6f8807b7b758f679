"""Processes with schedules on one store in memory and a clock that stands still; any operation may kill one.

A `Process` is a client of its own with a mini-dispatcher: it receives, begins and commits firings around a
handler that only takes notes, and acks.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.dispatcher.execution.actions import Snooze
from cqueue.dispatcher.execution.delivery import SUCCEEDED
from cqueue.dispatcher.execution.firing import AGAIN, StartedFiring, begin, finish
from cqueue.dispatcher.schedules.monitor import restart_stalled
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.store.memory import MemoryStore
from tests.faulty_store import FaultyStore

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Died(BaseException):
    """The process is gone: nothing of it runs any more, not even an `except Exception`."""


class World:
    """A store, a clock, and what was fired."""

    def __init__(self):
        self.now_us = (NOON - _EPOCH) // timedelta(microseconds=1)
        self.store = MemoryStore(lambda: self.now_us)
        self.fired = []

    @property
    def now(self):
        return _EPOCH + timedelta(microseconds=self.now_us)

    def advance(self, seconds):
        self.now_us += round(seconds * 1e6)

    @property
    def seconds(self):
        """The times fired, in seconds after noon, in order of their handlers."""
        return [(firing.fired_at - NOON).total_seconds() for firing in self.fired]

    def process(self, fault=None):
        return Process(self, fault)


class _Clock:
    def __init__(self, world):
        self._world = world

    def now_us(self, *, checked=False):
        return self._world.now_us


class Process:
    """One client and its mini-dispatcher.

    fault(operation, do): what becomes of an operation of this process; do() performs it.
    """

    def __init__(self, world, fault=None):
        self.world = world
        self.client = Client(FaultyStore(world.store, around=fault or (lambda _, do: do())))
        self.client._driver.clock = _Clock(world)
        self.client._driver._pause = world.advance
        self.queue = self.client.create_queue("q", exist_ok=True) if not self._is_there() else self._open()
        self.consumer = self.queue.consumer()
        self.schedules = self.queue.schedules
        self.handler = lambda _: None
        self.dropped = []

    def _is_there(self):
        return "q" in self.client.queues()

    def _open(self):
        return self.client.queue("q")

    def work(self, rounds=1):
        """Handle what is due; how many messages that were."""
        count = 0
        for _ in range(rounds):
            for message in self.consumer.receive(10):
                count += 1
                self.handle(message)
        return count

    def handle(self, message):
        begun = begin(self.schedules.store, message)
        if isinstance(begun, Snooze):
            message.snooze(begun.delay)
        elif not isinstance(begun, StartedFiring):
            self.dropped.append(begun)
            message.ack()
        else:
            self.world.fired.append(begun)
            self.handler(begun)
            self._finish(message, begun)

    def _finish(self, message, begun):
        settlement = finish(self.schedules.store, message, begun, SUCCEEDED)
        try:
            if settlement is SUCCEEDED:
                message.ack()
            else:
                message.snooze(settlement.delay)
        except (NotDone, OutcomeUnknown):
            message.snooze(AGAIN)

    def watch(self):
        return restart_stalled(self.schedules.store)

    def live(self):
        """How many messages the queue holds."""
        return self.queue.stats(exact=True).live

    def run(self, seconds, step=1.0):
        """Work through some time."""
        for _ in range(round(seconds / step)):
            self.work()
            self.world.advance(step)
        self.work()


@pytest.fixture
def world():
    return World()


@pytest.fixture
def process(world):
    return world.process()


@pytest.fixture
def connected():
    """A client of a private store in memory, on the real clock."""
    with cqueue.connect("memory://") as client:
        yield client
