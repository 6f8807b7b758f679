"""The hand-over: whose turn it is, how much may wait, and who is told."""

import threading
from types import SimpleNamespace

import pytest

from cqueue.dispatcher.delivery import Delivery
from cqueue.dispatcher.handover import Handover, Line


def delivery(queue="q", *, suspect=False, is_async=False):
    one = Delivery(SimpleNamespace(), SimpleNamespace(name=queue))
    one.suspect = suspect
    one.is_async = is_async
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
def handover(told):
    return Handover(Line(60, 1000), Line(1, 1000), call_loop=told.call, feed=told.feed)


def taken(handover, count):
    return [handover.take() for _ in range(count)]


def test_queues_take_turns(handover):
    """One that has much keeps one that has little waiting for one message only."""
    a, b = [delivery("a") for _ in range(5)], [delivery("b") for _ in range(2)]
    handover.put(a)
    handover.put(b)
    assert [one.lane.name for one in taken(handover, 7)] == list("ababaaa")


def test_within_a_queue_the_order_is_kept(handover):
    """Urgent messages were received first."""
    ones = [delivery() for _ in range(4)]
    handover.put(ones[:2])
    handover.put(ones[2:])
    assert taken(handover, 4) == ones


def test_suspects_go_first(handover):
    """Whatever waits."""
    ones, suspect = [delivery() for _ in range(3)], delivery(suspect=True)
    handover.put(ones)
    handover.put([suspect])
    assert taken(handover, 4) == [suspect, *ones]


def test_coroutines_wait_in_a_line_of_their_own(handover, told):
    """Neither kind of runner takes what is the other's."""
    plain, coroutine = delivery(), delivery(is_async=True)
    handover.put([coroutine, plain])
    assert told.called == 1
    assert handover.take() is plain
    assert handover.take_now(handover.coroutines) is coroutine
    assert handover.take_now(handover.coroutines) is None


def test_running_and_waiting_are_counted_exactly(handover):
    """At no moment is a message in neither count."""
    handover.put([delivery() for _ in range(3)])
    assert (handover.waiting, handover.running) == (3, 0)
    one = handover.take()
    assert (handover.waiting, handover.running) == (2, 1)
    handover.take(id(one))
    assert (handover.waiting, handover.running) == (1, 1)


def test_withdrawn_is_only_what_nobody_has_started(handover):
    """And the others keep their order."""
    ones = [delivery() for _ in range(5)]
    handover.put(ones)
    handover.take()
    assert handover.withdraw(ones[:3]) == ones[1:3]
    assert taken(handover, 2) == ones[3:]


def test_close_gives_back_what_waits_and_ends_the_workers(handover):
    """What comes later is given back as well."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(handover.take()))
    thread.start()
    handover.put([delivery(is_async=True)])
    assert len(handover.close()) == 1
    thread.join(10)
    assert ended == [None]
    late = delivery()
    assert handover.put([late]) == [late]
    assert handover.wait_calm(0)


def test_calm_is_when_nothing_runs(handover):
    """A worker that cannot be ended is not waited for, once it is abandoned."""
    handover.put([delivery()])
    one = handover.take()
    handover.close()
    assert not handover.wait_calm(0)
    handover.abandon(one)
    assert handover.wait_calm(0)


# ── room ──


def room(handover, name="a", batch=100, capacity=100, coming=0):
    handover.threads.capacity = lambda _visibility_s: capacity
    return handover.room(SimpleNamespace(name=name, kinds=set(), visibility_s=30.0), batch, coming)


def test_room_is_what_is_left_of_the_capacity(handover):
    """And never more than a batch."""
    assert room(handover) == 100
    handover.put([delivery("a") for _ in range(40)])
    assert room(handover) == 60
    assert room(handover, batch=10) == 10


def test_a_queue_that_comes_late_has_its_share(handover):
    """Though another has filled everything."""
    handover.put([delivery("a") for _ in range(100)])
    assert room(handover, "a") == 0
    assert room(handover, "b") == 50


def test_a_receive_of_little_use_is_put_off_and_asked_for_later(handover, told):
    """Claims cost the same whatever they bring; the feeder is told when half a batch fits."""
    handover.put([delivery("a") for _ in range(70)])
    assert room(handover, "a") == 0
    taken(handover, 19)
    assert told.fed == 0
    handover.take()
    assert told.fed == 1
    assert room(handover, "a") == 50


def test_where_two_batches_fit_none_is_asked_for_in_part(handover, told):
    """A claim of half a batch costs as much as one of a whole, also while another one is under way."""
    handover.put([delivery("a") for _ in range(101)])
    assert room(handover, capacity=200) == 0
    assert room(handover, capacity=200, coming=100) == 0
    handover.take()
    assert told.fed == 1
    assert room(handover, capacity=200) == 100
    assert room(handover, capacity=200, coming=100) == 0


def test_an_idle_worker_is_room_for_one(handover, told):
    """Where handlers are so slow that nothing should wait."""
    assert room(handover, "a", capacity=0) == 0
    thread = threading.Thread(target=handover.take)
    thread.start()
    while not handover._asleep:
        pass
    handover.close()
    thread.join(10)
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
    return Line(4, 1000, clock)


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
    """What waits is started within a quarter of its timeout."""
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
    """Or a hundred quick ones would hide that all threads hang."""
    run(line, clock, 0.001)
    begin(line, clock, count=4)
    assert line.capacity(30) == 1000
    clock.now += 100.0
    assert line.capacity(30) == 0
