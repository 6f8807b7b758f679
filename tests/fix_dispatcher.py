"""Dispatchers in tests: a store that fails on demand, a cluster clock moved by hand, events to wait for."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from functools import partialmethod
from socketserver import BaseServer
from types import SimpleNamespace

import pytest

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.dispatcher.execution import pollers
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.runtime import process
from tests.faulty_store import FaultyStore

SOON = timedelta(seconds=20)
SOON_S = 20.0


class ManualClock:
    """The cluster's time: it stands still until a test moves it."""

    def __init__(self):
        self.us = time.time_ns() // 1000

    def now_us(self, *, checked=False):
        return self.us

    guess_us = now_us

    def sync(self):
        return self.us

    def advance(self, seconds):
        self.us += round(seconds * 1e6)


def until(condition, seconds=120.0, why="waited in vain"):
    """Wait for what others bring about, and return it; fails if they do not.

    Look more rarely the longer it takes: what is waited for needs the processor as well.
    """
    began_s = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - began_s
        assert waited_s < seconds, why() if callable(why) else why
        time.sleep(min(0.002 + waited_s / 20, 0.1))
    return found


def watched(stats, depths=None, *, quarantined=None):
    """A dispatcher as its metrics see it."""
    depths = depths or SimpleNamespace(latest={})
    engine = SimpleNamespace(quarantined=lambda: quarantined or {}, depths=depths)
    return SimpleNamespace(stats=stats, engine=engine, options=SimpleNamespace(threads=8))


class Gate:
    """A handler that says when it has begun, and ends when it is let go."""

    def __init__(self, answer=None):
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.answer = answer
        self._runs = []

    def __call__(self, message, context):
        self._runs.append((message.body, context))
        self.begun.release()
        assert self.open.wait(SOON_S)
        return self.answer

    @property
    def bodies(self):
        return [body for body, _ in self._runs]

    @property
    def contexts(self):
        return [context for _, context in self._runs]

    def wait_begun(self, count=1):
        for _ in range(count):
            assert self.begun.acquire(timeout=SOON_S)


class Compared(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    times = 0

    def __eq__(self, other):
        Compared.times += 1
        return str.__eq__(self, other)

    @classmethod
    @contextmanager
    def few(cls, count):
        """Give a function that makes `count` names; fails if the block compares each with each."""
        cls.times = 0
        yield lambda: tuple(cls(f"q{number}") for number in range(count))
        assert cls.times < 10 * count


@pytest.fixture(autouse=True)
def brief_drains(request, monkeypatch):
    """`drain` believes empty polls sooner: a lock in memory is not kept for long between two claims."""
    if request.node.get_closest_marker("cassandra") is None:
        monkeypatch.setattr(pollers, "QUIET_S", 0.06)


@pytest.fixture(autouse=True, scope="session")
def own_collector():
    """Daemons in this process leave the garbage collector alone: they would look at what all tests left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "settle_garbage", lambda: None)
        yield


@pytest.fixture
def brisk_server(monkeypatch):
    """HTTP servers see within 10 ms that they are to end."""
    monkeypatch.setattr(
        BaseServer, "serve_forever", partialmethod(BaseServer.serve_forever, poll_interval=0.01)
    )


@pytest.fixture
def troubled():
    """The store."""
    return FaultyStore()


@pytest.fixture
def shop(troubled, brief_pauses):  # noqa: ARG001 - of the client
    """A client on it, whose retries do not pause long."""
    with Client(troubled) as client:
        yield client


@pytest.fixture
def clock(shop):
    """The client's clock, moved by hand."""
    shop._driver.clock = ManualClock()
    return shop._driver.clock


@pytest.fixture
def work(shop):
    """A queue with a timeout of 4 s and three attempts."""
    return shop.create_queue("work", QueueConfig(visibility=timedelta(seconds=4), max_attempts=3))


@pytest.fixture
def dispatch():
    """Starts dispatchers, and stops them at the end of the test."""
    started = []

    def start(queues, handler, **options):
        options.setdefault("threads", 4)
        options.setdefault("ack_interval", timedelta(milliseconds=5))
        dispatcher = Dispatcher(queues, handler, **options)
        dispatcher.start()
        started.append(dispatcher)
        return dispatcher

    yield start
    for dispatcher in started:
        dispatcher.stop(timedelta(0))
