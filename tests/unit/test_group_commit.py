"""Sends of several threads go together, and each thread gets what became of its own message."""

import signal
import threading
import time
from datetime import timedelta

import pytest

import cqueue
from cqueue import BadInput, Closed, Message, NotDone
from cqueue.sending import group_commit
from cqueue.sending.group_commit import BATCHES_AT_ONCE, DIRECT_SENDERS, GroupCommit
from tests.fix_dispatcher import until

AT_A_TIME = DIRECT_SENDERS + BATCHES_AT_ONCE


class Sending:
    """A producer that waits to be let through, and remembers what it was given."""

    def __init__(self, producer):
        self._producer = producer
        self.batches = []
        self.limits_s = []
        self.error = None
        self.under_way = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def send(self, message):
        self._let_through([message])
        return self._producer.send(message)

    def send_many(self, messages):
        self._let_through(messages)
        return self._producer.send_many(messages)

    def check_open(self):
        self._producer.check_open()

    def limited(self, limit_s):
        self.limits_s.append(limit_s)
        return self._producer.limited(limit_s)

    def _let_through(self, messages):
        self.batches.append([message.body for message in messages])
        self.under_way.release()
        assert self.go.acquire(timeout=10)
        if self.error is not None:
            raise self.error


class Sender(threading.Thread):
    """A thread that sends one message, and keeps its id or its error."""

    def __init__(self, group, message):
        super().__init__(daemon=True)
        self._group, self._message = group, message
        self.id = self.error = None
        self.start()

    def run(self):
        try:
            self.id = self._group.send(self._message)
        except BaseException as exc:  # noqa: BLE001 - Ctrl-C as well
            self.error = exc


@pytest.fixture
def queue():
    with cqueue.connect("memory://linger") as client:
        yield client.create_queue(f"q{time.time_ns()}")


@pytest.fixture
def sending(queue):
    return Sending(queue._producer)


def gathered(group, *messages):
    """Senders that wait behind those that are under way."""
    senders = []
    for message in messages:
        before = len(group._batcher._waiting)
        senders.append(Sender(group, message))
        until(lambda: len(group._batcher._waiting) > before)  # noqa: B023 - called at once
    return senders


def joined(*senders):
    for sender in senders:
        sender.join(10)
        assert not sender.is_alive()


def test_what_comes_while_one_is_sent_goes_together(queue, sending):
    group = GroupCommit(sending, 10.0, timedelta())
    first = Sender(group, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    others = gathered(group, *(Message(b"%d" % number) for number in range(1, 6)))
    sending.go.release(2)
    joined(first, *others)
    assert sending.batches == [[b"0"], [b"1", b"2", b"3", b"4", b"5"]]
    stored = {message.id: message.body for message in queue.peek(10)}
    assert [stored[sender.id] for sender in (first, *others)] == [b"%d" % number for number in range(6)]


def test_the_first_one_waits_for_others(sending, monkeypatch):
    monkeypatch.setattr(group_commit, "BATCH_MESSAGES", 3)
    group = GroupCommit(sending, 10.0, timedelta(minutes=10))
    senders = [Sender(group, Message(b"x")) for _ in range(3)]
    sending.go.release()
    joined(*senders)
    assert sending.batches == [[b"x"] * 3]


def test_a_message_that_passes_a_limit_fails_alone(sending):
    group = GroupCommit(sending, 10.0, timedelta())
    first = Sender(group, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    good, bad = gathered(group, Message(b"1"), Message(b"2", priority=10))
    sending.go.release(2)
    joined(first, good, bad)
    assert good.id
    assert isinstance(bad.error, BadInput)


def test_an_error_of_all_is_told_to_all(sending):
    group = GroupCommit(sending, 10.0, timedelta())
    first = Sender(group, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    sending.error = NotDone("no answer")
    others = gathered(group, Message(b"1"), Message(b"2"))
    sending.go.release(2)
    joined(first, *others)
    assert [type(sender.error) for sender in (first, *others)] == [NotDone] * 3


class Stopped:
    """Sends a message on the main thread, which Ctrl-C stops once `when` is set; `others` see to the rest."""

    def __init__(self, group, message, when):
        self._stopped = threading.Event()
        threading.Thread(target=self._stop, args=(when,), daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            group.send(message)
        self._stopped.set()

    def _stop(self, when):
        when()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        while not self._stopped.wait(1.0):  # Python misses one that comes just before a lock is waited for
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_who_is_stopped_while_it_is_sent_keeps_nothing_from_the_others(queue, sending):
    """Its batch is stored by another thread, so they need not be told that they do not know."""
    group = GroupCommit(sending, 10.0, timedelta())
    first = Sender(group, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    others = gathered(group, Message(b"1"), Message(b"2"))

    def when_it_is_sent():
        until(lambda: len(group._batcher._waiting) == 3)
        sending.go.release()
        assert sending.under_way.acquire(timeout=10)

    Stopped(group, Message(b"stopped"), when_it_is_sent)
    sending.go.release()
    joined(first, *others)
    assert sending.batches == [[b"0"], [b"1", b"2", b"stopped"]]
    assert {sender.id for sender in (first, *others)} <= {message.id for message in queue.peek(10)}


def test_who_is_stopped_while_it_waits_sends_nothing_and_holds_up_nobody(sending):
    group = GroupCommit(sending, 10.0, timedelta())
    first = Sender(group, Message(b"0"))
    assert sending.under_way.acquire(timeout=10)
    Stopped(group, Message(b"1"), lambda: until(lambda: group._batcher._waiting))
    last = Sender(group, Message(b"2"))
    until(lambda: len(group._batcher._waiting) == 2)
    sending.go.release(2)
    joined(first, last)
    assert sending.batches == [[b"0"], [b"2"]]


def test_who_is_stopped_while_it_sends_alone_keeps_no_place(sending):
    """However often: afterwards as many go at a time as ever."""
    group = GroupCommit(sending, 10.0)
    sending.error = KeyboardInterrupt()
    for _ in range(3):
        sending.go.release()
        with pytest.raises(KeyboardInterrupt):
            group.send(Message(b"stopped"))
        assert sending.under_way.acquire(timeout=10)
    sending.error = None
    first = under_way(sending, group)
    sending.go.release(AT_A_TIME)
    joined(*first)


def under_way(sending, group):
    """As many sends as go at a time, each of one message."""
    senders = []
    for _ in range(AT_A_TIME):
        senders.append(Sender(group, Message(b"alone")))
        assert sending.under_way.acquire(timeout=10)
    return senders


def test_a_few_go_at_a_time_and_what_comes_beyond_goes_together(queue, sending):
    group = GroupCommit(sending, 10.0)
    first = under_way(sending, group)
    others = gathered(group, *(Message(b"%d" % number) for number in range(6)))
    sending.go.release(AT_A_TIME + 1)
    joined(*first, *others)
    assert sending.batches == [[b"alone"]] * AT_A_TIME + [[b"%d" % number for number in range(6)]]
    stored = {message.id: message.body for message in queue.peek(20)}
    assert [stored[sender.id] for sender in others] == [b"%d" % number for number in range(6)]
    assert len({sender.id for sender in (*first, *others)}) == AT_A_TIME + 6
    sending.go.release()
    assert group.send(Message(b"later"))  # all places are free again
    assert sending.batches[-1] == [b"later"]


def test_more_than_go_together_are_two_batches(sending, monkeypatch):
    monkeypatch.setattr(group_commit, "BATCH_MESSAGES", 3)
    group = GroupCommit(sending, 10.0)
    first = under_way(sending, group)
    others = gathered(group, *(Message(b"%d" % number) for number in range(4)))
    sending.go.release(AT_A_TIME + 2)
    joined(*first, *others)
    assert sorted(sending.batches[AT_A_TIME:]) == [[b"0", b"1", b"2"], [b"3"]]


def test_who_waited_for_all_of_its_time_is_not_sent(queue, sending):
    group = GroupCommit(sending, 10.0)
    first = under_way(sending, group)
    group._limit_s = 0.05  # only now: those under way had more
    late = Sender(group, Message(b"late"))
    joined(late)
    assert isinstance(late.error, NotDone)
    sending.go.release(AT_A_TIME)
    joined(*first)
    assert [message.body for message in queue.peek(10)] == [b"alone"] * AT_A_TIME


def test_what_is_sent_has_the_time_that_is_left_and_half_of_it_at_least(sending):
    now_s = 0.0
    group = GroupCommit(sending, 10.0, clock=lambda: now_s)
    for waited_s, left_s in ((3.0, 7.0), (9.0, 5.0)):
        first = under_way(sending, group)
        (other,) = gathered(group, Message(b"other"))
        now_s += waited_s
        sending.go.release(AT_A_TIME + 1)
        joined(*first, other)
        assert sending.under_way.acquire(timeout=10)
        assert sending.limits_s.pop() == left_s


def test_who_may_not_send_waits_for_nobody(sending):
    """A client that was closed, or forked while others were sending: nobody would come back."""
    group = GroupCommit(sending, 10.0)
    first = under_way(sending, group)
    sending._producer._driver.close()
    with pytest.raises(Closed):
        group.send(Message(b"late"))
    sending.go.release(AT_A_TIME)
    joined(*first)
    assert {type(sender.error) for sender in first} == {Closed}


def test_a_queue_lingers_when_it_is_told_to(queue):
    with cqueue.connect("memory://linger") as client:
        group = client.queue(queue.name, linger=timedelta(milliseconds=1))
        id_ = group.send(b"hello", priority=3)
        (found,) = queue.peek(1)
        assert (found.id, found.body, found.priority) == (id_, b"hello", 3)
        with pytest.raises(BadInput, match="linger"):
            client.queue(queue.name, linger=timedelta(seconds=2))
