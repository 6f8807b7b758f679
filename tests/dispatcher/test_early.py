"""A dispatcher claims what its own process sends as it is being written, and handles what is stored."""

import statistics
import threading
import time
from datetime import timedelta

import pytest

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.dispatcher.dispatcher import Dispatcher
from cqueue.errors import NotDone, OutcomeUnknown, SendUnknown, Unavailable
from cqueue.protocol import view
from cqueue.store.operations import InsertMessages, Mutate
from tests.fix_dispatcher import SOON, SOON_S, until


class Watched:
    """A dispatcher that has just handled a message, so it remembers the head of the wide row."""

    def __init__(self, client, store):
        self.store = store
        self.queue = client.create_queue("work", QueueConfig(shards=1, time_shard=timedelta(hours=1)))
        self.handled = []
        self.claims = []
        self.claimed = threading.Event()
        self.dispatcher = Dispatcher(self.queue, self._handle)

    def _handle(self, message, _context):
        self.handled.append((message.body, message.attempt))

    def __enter__(self):
        self.dispatcher.start()
        until(self._is_remembered)
        self.handled.clear()
        return self

    def _is_remembered(self):
        """Send and handle one message; whether the next one can be claimed without a read."""
        count = len(self.handled)
        self.queue.send(b"before")
        until(lambda: len(self.handled) > count)
        consumer = self.dispatcher.lanes[0].consumer
        now_us = consumer._driver.clock.now_us()
        return any(row.claims_unread(now_us) for row in consumer._poll.registry.views.values())

    def __exit__(self, *_):
        self.store.trouble = lambda _: None
        self.dispatcher.stop()

    def during(self, insert):
        """From now on, have `insert` called with each write of messages, and note what is claimed."""

        def trouble(operation):
            if type(operation) is InsertMessages:
                return insert(operation)
            if type(operation) is Mutate and operation.lock is not None:
                self.claims.append(operation)
                if any(change.row.ids for change in operation.slots):
                    self.claimed.set()
            return None

        self.store.trouble = trouble


@pytest.fixture
def watched(troubled, monkeypatch):
    monkeypatch.setattr(view, "REMEMBERED_US", 60_000_000)
    with Client(troubled) as client, Watched(client, troubled) as watched:
        yield watched


def test_a_message_is_claimed_while_it_is_written_and_handled_afterwards(watched):
    seen = []

    def insert(_operation):
        seen.append((watched.claimed.wait(SOON_S), list(watched.handled)))
        until(lambda: watched.dispatcher.lanes[0].consumer._poll.early.leases)  # the claim is over, and waits
        seen.append(list(watched.handled))
        watched.store.trouble = lambda _: None

    watched.during(insert)
    watched.queue.send(b"x")
    until(lambda: watched.handled)
    assert seen == [(True, []), []]
    assert watched.dispatcher.drain(SOON)
    assert watched.handled == [(b"x", 1)]


def slow_send(watched):
    """A send that is held up until the event, and that is claimed; and its thread.

    It need not be claimed, should the dispatcher be at something else just then: tried again.
    """
    for _ in range(10):
        go_on = threading.Event()

        def insert(operation, go_on=go_on):
            if operation.rows[0].body == b"slow":
                go_on.wait(SOON_S)

        watched.claimed.clear()
        watched.during(insert)
        slow = threading.Thread(target=watched.queue.send, args=(b"slow",))
        slow.start()
        if watched.claimed.wait(2):
            return go_on, slow
        go_on.set()
        slow.join()
        until(lambda: (b"slow", 1) in watched.handled)
        watched.store.trouble = lambda _: None
        until(watched._is_remembered)
        watched.handled.clear()
    raise AssertionError("no send was claimed while it was under way")


def test_a_send_that_takes_long_holds_up_no_other(watched):
    """What is stored meanwhile is handled at once, be it of the same wide row."""
    go_on, slow = slow_send(watched)
    took_s = []
    for number in range(10):
        watched.queue.send(b"%d" % number)
        sent_s = time.monotonic()
        until(lambda number=number: len(watched.handled) > number)
        took_s.append(time.monotonic() - sent_s)
    assert statistics.median(took_s) < 0.05
    assert (b"slow", 1) not in watched.handled
    go_on.set()
    slow.join()
    until(lambda: (b"slow", 1) in watched.handled, 1)


def test_a_message_that_is_not_stored_is_not_handled(watched):
    """What was claimed of it comes to nothing, and what is sent next is handled."""
    watched.during(lambda _: Unavailable("no node"))
    with pytest.raises(NotDone):
        watched.queue.send(b"x")
    assert watched.claimed.is_set()
    watched.store.trouble = lambda _: None
    watched.queue.send(b"y")
    until(lambda: watched.handled)
    assert watched.dispatcher.drain(SOON)
    assert watched.handled == [(b"y", 1)]


def test_a_message_that_may_be_stored_is_handled_if_it_is(watched):
    """Its sender does not know; it is delivered as a first attempt, once."""

    def insert(operation):
        trouble, watched.store.trouble = watched.store.trouble, lambda _: None
        watched.store.execute(operation)
        watched.store.trouble = trouble
        return OutcomeUnknown("no answer")

    watched.during(insert)
    with pytest.raises(SendUnknown):
        watched.queue.send(b"x")
    assert watched.claimed.is_set()
    watched.store.trouble = lambda _: None
    until(lambda: watched.handled)
    assert watched.dispatcher.drain(SOON)
    assert watched.handled == [(b"x", 1)]


def test_a_sender_that_is_interrupted_leaves_nobody_waiting(watched):
    """Ctrl-C in the middle of a send: what was claimed of it is given back at once."""

    def interrupt(_operation):
        watched.claimed.wait(SOON_S)
        raise KeyboardInterrupt

    watched.during(interrupt)
    with pytest.raises(KeyboardInterrupt):
        watched.queue.send(b"x")
    watched.store.trouble = lambda _: None
    begun_s = time.monotonic()
    watched.queue.send(b"y")
    until(lambda: watched.handled)
    assert watched.handled == [(b"y", 1)]
    assert time.monotonic() - begun_s < 1.5
