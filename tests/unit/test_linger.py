"""Sends of several threads go together, and each thread gets what became of its own message."""

import threading
import time
from datetime import timedelta

import pytest

import cqueue
from cqueue import BadInput, Message, NotDone, SendUnknown, linger
from cqueue.linger import Lingering


class Sending:
    """A `send_many` that waits to be let through, and remembers what it was given."""

    def __init__(self, producer):
        self._producer = producer
        self.batches = []
        self.error = None
        self.under_way = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, messages):
        self.batches.append([message.body for message in messages])
        self.under_way.release()
        assert self.go.acquire(timeout=10)
        if self.error is not None:
            raise self.error
        return self._producer.send_many(messages)


class Sender(threading.Thread):
    """A thread that sends one message, and keeps its id or its error."""

    def __init__(self, lingering, message):
        super().__init__(daemon=True)
        self._lingering, self._message = lingering, message
        self.id = self.error = None
        self.start()

    def run(self):
        try:
            self.id = self._lingering.send(self._message)
        except BaseException as exc:  # noqa: BLE001 - Ctrl-C as well
            self.error = exc


@pytest.fixture
def queue():
    with cqueue.connect("memory://linger") as client:
        yield client.create_queue(f"q{time.time_ns()}")


@pytest.fixture
def sending(queue):
    return Sending(queue._producer)


def gathered(lingering, *messages):
    """Senders that wait behind one that is under way."""
    senders = []
    for message in messages:
        before = len(lingering._waiting)
        senders.append(Sender(lingering, message))
        until_s = time.monotonic() + 10
        while len(lingering._waiting) == before and time.monotonic() < until_s:
            time.sleep(0.001)
    return senders


def joined(*senders):
    for sender in senders:
        sender.join(10)
        assert not sender.is_alive()


def test_what_comes_while_one_is_sent_goes_together(queue, sending):
    lingering = Lingering(sending, 0.0)
    first = Sender(lingering, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    others = gathered(lingering, *(Message(b"%d" % number) for number in range(1, 6)))
    sending.go.release(2)
    joined(first, *others)
    assert sending.batches == [[b"0"], [b"1", b"2", b"3", b"4", b"5"]]
    stored = {message.id: message.body for message in queue.peek(10)}
    assert [stored[sender.id] for sender in (first, *others)] == [b"%d" % number for number in range(6)]


def test_the_first_one_waits_for_others(sending):
    lingering = Lingering(sending, 10.0)
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linger, "MOST", 3)
        senders = [Sender(lingering, Message(b"x")) for _ in range(3)]
        sending.go.release()
        joined(*senders)
    assert sending.batches == [[b"x"] * 3]
    assert time.monotonic() - began < 8


def test_a_message_that_passes_a_limit_fails_alone(sending):
    lingering = Lingering(sending, 0.0)
    first = Sender(lingering, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    good, bad = gathered(lingering, Message(b"1"), Message(b"2", priority=10))
    sending.go.release(2)
    joined(first, good, bad)
    assert good.id
    assert isinstance(bad.error, BadInput)


def test_an_error_of_all_is_told_to_all(sending):
    lingering = Lingering(sending, 0.0)
    first = Sender(lingering, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    sending.error = NotDone("no answer")
    others = gathered(lingering, Message(b"1"), Message(b"2"))
    sending.go.release(2)
    joined(first, *others)
    assert [type(sender.error) for sender in (first, *others)] == [NotDone] * 3


def test_when_the_leader_is_stopped_the_others_do_not_know(sending):
    """Its thread was interrupted in the middle: their messages may be stored."""
    lingering = Lingering(sending, 0.0)
    first = Sender(lingering, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    leader, follower = gathered(lingering, Message(b"1"), Message(b"2"))
    sending.go.release()
    joined(first)
    assert sending.under_way.acquire(timeout=10)
    (waiting,) = gathered(lingering, Message(b"3"))
    sending.error = KeyboardInterrupt()
    sending.go.release()
    joined(leader, follower)
    assert isinstance(leader.error, KeyboardInterrupt)
    assert isinstance(follower.error, SendUnknown)
    sending.error = None
    sending.go.release()
    joined(waiting)
    assert waiting.id


def test_who_is_interrupted_while_it_waits_sends_nothing_and_holds_up_nobody(sending, monkeypatch):
    lingering = Lingering(sending, 0.0)
    first = Sender(lingering, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)

    def interrupted(_event):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lingering.send(Message(b"1"))
    (last,) = gathered(lingering, Message(b"2"))
    sending.go.release(2)
    joined(first, last)
    assert sending.batches == [[b"0"], [b"2"]]


def test_a_queue_lingers_when_it_is_told_to(queue):
    with cqueue.connect("memory://linger") as client:
        lingering = client.queue(queue.name, linger=timedelta(milliseconds=1))
        id_ = lingering.send(b"hello", priority=3)
        (found,) = queue.peek(1)
        assert (found.id, found.body, found.priority) == (id_, b"hello", 3)
        with pytest.raises(BadInput, match="linger"):
            client.queue(queue.name, linger=timedelta(seconds=2))
