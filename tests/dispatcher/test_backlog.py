"""The backlog: which message starts next, how many may wait, and which thread is woken."""

import threading
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.execution.backlog import Backlog, RunQueue
from cqueue.dispatcher.execution.delivery import Delivery


def delivery(queue="q", *, suspect=False, is_async=False):
    one = Delivery(SimpleNamespace(), SimpleNamespace(name=queue))
    one.is_async, one.is_suspect = is_async, suspect
    return one


class Told:
    def __init__(self):
        self.fed = self.called = 0

    def feed(self):
        self.fed += 1

    def call(self):
        self.called += 1


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def backlog(told):
    return Backlog(RunQueue(60, 1000), RunQueue(1, 1000), wake_loop=told.call, room_freed=told.feed)


def taken(backlog, count):
    return [backlog.take(backlog.threads) for _ in range(count)]


def test_queues_take_turns(backlog):
    """A long queue delays a short one by one message only."""
    a, b = [delivery("a") for _ in range(5)], [delivery("b") for _ in range(2)]
    backlog.put(a)
    backlog.put(b)
    assert [one.poller.name for one in taken(backlog, 7)] == list("ababaaa")


def test_within_a_queue_the_order_is_kept(backlog):
    """Urgent messages were received first."""
    ones = [delivery() for _ in range(4)]
    backlog.put(ones[:2])
    backlog.put(ones[2:])
    assert taken(backlog, 4) == ones


def test_suspects_go_first(backlog):
    """A suspect starts before all messages that wait."""
    ones, suspect = [delivery() for _ in range(3)], delivery(suspect=True)
    backlog.put(ones)
    backlog.put([suspect])
    assert taken(backlog, 4) == [suspect, *ones]


def test_coroutines_wait_in_a_line_of_their_own(backlog, told):
    """Neither kind of runner takes what is the other's."""
    plain, coroutine = delivery(), delivery(is_async=True)
    backlog.put([coroutine, plain])
    assert told.called == 1
    assert backlog.take(backlog.threads) is plain
    assert backlog.take(backlog.coroutines) is coroutine
    assert backlog.take(backlog.coroutines) is None


def test_running_and_waiting_are_counted_exactly(backlog):
    """At every moment a message is in exactly one of the two counts."""
    backlog.put([delivery() for _ in range(3)])
    assert (backlog.waiting, backlog.running) == (3, 0)
    one = backlog.take(backlog.threads)
    assert (backlog.waiting, backlog.running) == (2, 1)
    backlog.take(backlog.threads, id(one))
    assert (backlog.waiting, backlog.running) == (1, 1)


def test_withdrawn_is_only_what_nobody_has_started(backlog):
    """The other deliveries keep their order."""
    ones = [delivery() for _ in range(5)]
    backlog.put(ones)
    backlog.take(backlog.threads)
    assert backlog.withdraw(ones[:3]) == ones[1:3]
    assert taken(backlog, 2) == ones[3:]


def test_close_gives_back_what_waits_and_ends_the_workers(backlog):
    """Deliveries that come after the close are given back as well."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(backlog.wait()))
    thread.start()
    backlog.put([delivery(is_async=True)])
    assert len(backlog.close()) == 1
    thread.join(10)
    assert ended == [None]
    late = delivery()
    assert backlog.put([late]) == [late]
    assert not backlog.running


def test_calm_is_when_nothing_runs(backlog):
    """A worker that cannot be ended is not waited for, once it is abandoned."""
    backlog.put([delivery()])
    one = backlog.take(backlog.threads)
    backlog.close()
    assert backlog.running
    backlog.abandon(one)
    assert not backlog.running


# ── room ──


def room(backlog, name="a", batch=100, capacity=100, coming=0):
    backlog.threads.capacity = lambda _visibility_s: capacity
    return backlog.room(SimpleNamespace(name=name, kinds=set(), visibility_s=30.0), batch, coming)


def test_room_is_what_is_left_of_the_capacity(backlog):
    """The room is never more than a batch."""
    assert room(backlog) == 100
    backlog.put([delivery("a") for _ in range(40)])
    assert room(backlog) == 60
    assert room(backlog, batch=10) == 10


def test_a_queue_that_comes_late_has_its_share(backlog):
    """Though another has filled everything."""
    backlog.put([delivery("a") for _ in range(100)])
    assert room(backlog, "a") == 0
    assert room(backlog, "b") == 50


def test_a_receive_of_little_use_is_put_off_and_asked_for_later(backlog, told):
    """Claims cost the same whatever they bring; the fetcher is told when half a batch fits."""
    backlog.put([delivery("a") for _ in range(70)])
    assert room(backlog, "a") == 0
    taken(backlog, 19)
    assert told.fed == 0
    backlog.take(backlog.threads)
    assert told.fed == 1
    assert room(backlog, "a") == 50


def test_where_two_batches_fit_none_is_asked_for_in_part(backlog, told):
    """A claim of half a batch costs as much as one of a whole, also while another one is under way."""
    backlog.put([delivery("a") for _ in range(101)])
    assert room(backlog, capacity=200) == 0
    assert room(backlog, capacity=200, coming=100) == 0
    backlog.take(backlog.threads)
    assert told.fed == 1
    assert room(backlog, capacity=200) == 100
    assert room(backlog, capacity=200, coming=100) == 0


def test_an_idle_worker_is_room_for_one(backlog, told):
    """Where handlers are so slow that nothing should wait."""
    assert room(backlog, "a", capacity=0) == 0
    assert backlog.take(backlog.threads) is None
    assert told.fed == 1


# ── pace ──


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def line(clock):
    return RunQueue(4, 1000, clock)


def begin(line, clock, count=1):
    line.add([delivery() for _ in range(count)])
    begun = [line.start() for _ in range(count)]
    for one in begun:
        one.begun_s = clock.now
    return begun


def run(line, clock, seconds, count=1):
    for _ in range(count):
        (one,) = begin(line, clock)
        clock.now += seconds
        line.finish(id(one))


def test_before_anything_is_known_little_may_wait(line):
    """Two messages a thread."""
    assert line.capacity(30) == 8


def test_quick_handlers_fill_the_backlog_and_slow_ones_leave_it(line, clock):
    """Waiting messages are started within a quarter of their timeout."""
    run(line, clock, 0.001)
    assert line.capacity(30) == 1000
    run(line, clock, 3.0, count=200)
    assert line.capacity(30) == 10
    run(line, clock, 60.0, count=200)
    begin(line, clock)
    assert line.capacity(30) == 3  # for idle threads
    begin(line, clock, count=3)
    assert line.capacity(30) == 0


def test_handlers_that_have_not_returned_count(line, clock):
    """Otherwise a hundred quick handlers would hide that all threads hang."""
    run(line, clock, 0.001)
    begin(line, clock, count=4)
    assert line.capacity(30) == 1000
    clock.now += 100.0
    assert line.capacity(30) == 0
