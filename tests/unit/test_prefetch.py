"""Messages claimed ahead: nothing is lost, held for too long, or claimed ahead that must not be."""

import gc
import os
import threading
import time
from collections import deque
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.errors import BadInput, Closed, QueueNotFound, Unavailable
from cqueue.message import Message
from cqueue.receiving.prefetch import Prefetch
from cqueue.store.operations import Mutate, SlotState
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.unit.ctrl_c import at_each_moment, on_a_thread
from tests.unit.wanted import Wanted

SOON_S = 20.0
SOON = timedelta(seconds=SOON_S)
CONFIG = QueueConfig(shards=1, visibility=timedelta(minutes=1))
"""On a slow machine as well nothing times out, or is given back because it waited too long."""
TIMED_OUT_S = 61.0


class Watched(FaultyStore):
    """A store that counts the conditional mutations that it executes."""

    def __init__(self):
        super().__init__(around=self._count)
        self.mutations = 0

    def _count(self, operation, do):
        self.mutations += isinstance(operation, Mutate)
        return do()


class AheadClock:
    """The clock of a client, which a test puts forward."""

    def __init__(self, clock):
        self._clock, self._ahead_us = clock, 0

    def now_us(self, **how):
        return self._clock.now_us(**how) + self._ahead_us

    def __getattr__(self, name):
        return getattr(self._clock, name)

    def advance(self, seconds):
        self._ahead_us += round(seconds * 1e6)


@pytest.fixture
def store():
    return Watched()


@pytest.fixture
def queue(store):
    with Client(store) as client:
        yield client.create_queue("q", CONFIG)


def send(queue, *bodies):
    assert not queue.send_many([Message(body) for body in bodies]).failed


def drained(consumer, count, size):
    """Bodies received and acked, in order."""
    found = []
    while len(found) < count:
        messages = consumer.receive(size, wait=SOON)
        assert messages
        found += [message.body for message in messages]
        consumer.ack(messages)
    return found


def received(consumer, count):
    """Messages received until there are at least `count`."""
    found = []
    while len(found) < count:
        some = consumer.receive(40, wait=SOON)
        assert some
        found += some
    return found


@pytest.mark.parametrize("size", [1, 7, 20, 50])
def test_everything_comes_once_and_in_order(queue, size):
    sent = [b"%d" % number for number in range(100)]
    send(queue, *sent)
    with queue.consumer(prefetch=20) as consumer:
        assert drained(consumer, 100, size) == sent
        assert consumer.receive(10) == []
    assert queue.stats(exact=True).live == 0


def test_small_receives_share_a_claim(queue, store):
    send(queue, *[b"x"] * 100)
    before = store.mutations
    with queue.consumer(prefetch=50) as consumer:
        drained(consumer, 100, 1)
        assert store.mutations - before < 10


def test_the_next_messages_are_claimed_while_the_last_are_handled(queue):
    send(queue, *[b"x"] * 40)
    with queue.consumer(prefetch=20) as consumer:
        assert len(consumer.receive(20)) == 20
        until(lambda: queue.stats(exact=True).claimed == 40)


def test_what_is_claimed_ahead_is_given_back_at_close_with_no_attempt_used(queue):
    send(queue, *[b"x"] * 40)
    with queue.consumer(prefetch=20) as consumer:
        consumer.ack(consumer.receive(20))
        until(lambda: queue.stats(exact=True).claimed == 20)
    with queue.consumer() as consumer:
        assert [message.attempt for message in consumer.receive(40)] == [1] * 20


def test_what_waits_too_long_is_given_back_with_no_attempt_used(queue):
    """In less than the visibility timeout: what had timed out would come with its second attempt."""
    send(queue, *[b"x"] * 40)
    with queue.consumer(prefetch=20) as idle, queue.consumer() as other:
        by_default_s, idle._prefetch._hold_s = idle._prefetch._hold_s, lambda: 0.1
        held = idle.receive(20)
        assert 1 < by_default_s() < 45
        found = received(other, 20)
        assert [message.attempt for message in found] == [1] * 20
        assert {message.id for message in found}.isdisjoint({message.id for message in held})


def test_what_could_not_be_given_back_is_given_back_later(queue, store, caplog):
    """And is told once, not at each try: its timeout would come a minute later, and use an attempt."""
    send(queue, *[b"x"] * 40)
    tries = []

    def trouble(operation):
        if isinstance(operation, Mutate) and any(
            change.row.state is SlotState.WAITING for change in operation.slots
        ):
            tries.append(operation)
            return Unavailable("away")
        return None

    def told():
        return [line for line in caplog.messages if "give_back_failed" in line]

    store.trouble = trouble
    with queue.consumer(prefetch=20) as idle, queue.consumer() as other:
        idle._prefetch._hold_s = lambda: 0.1
        idle.receive(20)
        until(told)
        before = len(tries)
        until(lambda: len(tries) > before)
        store.trouble = lambda _: None
        found = received(other, 20)
        assert [message.attempt for message in found] == [1] * 20
    assert len(told()) == 1


def test_part_of_a_claim_is_given_back_and_the_rest_stays_held(queue):
    send(queue, *[b"x"] * 20)
    with queue.consumer(prefetch=20) as idle, queue.consumer() as other:
        idle._prefetch._hold_s = lambda: 0.1
        held = idle.receive(5)
        found = received(other, 15)
        assert len(found) == 15
        assert all(message.is_held for message in held)
        idle.ack(held)
        other.ack(found)
    assert queue.stats(exact=True).live == 0


def test_a_paused_queue_gives_nothing_that_was_claimed_ahead(queue):
    """Nor what a claim gives that was under way when it was paused, and ends just then."""
    go_on = threading.Event()
    send(queue, *[b"x"] * 40)

    def fetch_late(count):
        found = fetch(count)
        assert go_on.wait(SOON_S)
        return found

    def drop_then_go_on():
        drop()
        go_on.set()

    def is_nothing_held():
        assert consumer.receive(10) == []
        return queue.stats(exact=True).claimed == 0

    with queue.consumer(prefetch=20) as consumer:
        ahead = consumer._prefetch
        fetch, drop, ahead._fetch, ahead.drop = ahead._fetch, ahead.drop, fetch_late, drop_then_go_on
        consumer.ack(consumer.receive(10))
        until(lambda: queue.stats(exact=True).claimed == 30)
        queue.pause()
        until(is_nothing_held)
        queue.resume()
        drained(consumer, 30, 10)


def test_what_may_have_killed_its_holder_is_not_claimed_ahead(queue):
    """It comes alone, and only to a receive that starts it at once."""
    queue._driver.clock = AheadClock(queue._driver.clock)
    send(queue, *[b"x"] * 3)
    with queue.consumer() as consumer:
        consumer.receive(3)
        consumer.close(give_back=False)
    queue._driver.clock.advance(TIMED_OUT_S)
    send(queue, *[b"y"] * 40)
    with queue.consumer(prefetch=20) as consumer:
        ahead, fetch = [], consumer._prefetch._fetch

        def noted(count):
            found, more = fetch(count)
            ahead.extend(found)
            return found, more

        consumer._prefetch._fetch = noted
        suspects, others = 0, 0
        for _ in range(3):
            message, *rest = consumer.receive(20, wait=SOON)
            while not message.suspect:
                others += 1 + len(rest)
                consumer.ack([message, *rest])
                message, *rest = consumer.receive(20, wait=SOON)
            assert rest == []
            suspects += 1
            consumer.ack(message)
        others += len(drained(consumer, 40 - others, 20))
        assert (suspects, others) == (3, 40)
        assert ahead
        assert not any(found.suspect for found in ahead)


def test_a_client_holds_one_suspect_though_its_consumer_is_gone(store):
    """Also if nothing else of the queue is left in this process but the message."""
    with Client(store) as client:
        client._driver.clock = AheadClock(client._driver.clock)
        client.create_queue("q", CONFIG)
        send(client.queue("q"), b"x", b"x")

        def received(count):
            with client.queue("q").consumer() as consumer:
                found = consumer.receive(count)
                consumer.close(give_back=False)
            gc.collect()
            return found

        assert len(received(2)) == 2
        client._driver.clock.advance(TIMED_OUT_S)
        (held,) = received(2)
        assert held.suspect
        assert received(2) == []
        held.ack()
        assert [one.suspect for one in received(2)] == [True]


@pytest.mark.parametrize("shards", [1, 4])
def test_what_may_have_killed_its_holder_does_not_wait_for_the_end_of_a_backlog(store, shards):
    """Others are claimed ahead all the time; it still comes, alone, and so does the next one."""
    with Client(store) as client:
        client._driver.clock = AheadClock(client._driver.clock)
        queue = client.create_queue("q", replace(CONFIG, shards=shards))
        send(queue, *[b"x"] * 3)
        with queue.consumer() as consumer:
            held = [consumer.receive(1, wait=SOON) for _ in range(3)]
            consumer.close(give_back=False)
        assert all(held)
        client._driver.clock.advance(TIMED_OUT_S)
        suspects = []
        with queue.consumer(prefetch=40) as consumer:
            end = time.monotonic() + 20
            while len(suspects) < 3:
                assert time.monotonic() < end
                send(queue, *[b"y"] * 40)
                messages = consumer.receive(10, wait=SOON)
                if messages[0].suspect:
                    assert len(messages) == 1
                    suspects.append(messages[0].id)
                consumer.ack(messages)
        assert sorted(suspects) == sorted(one[0].id for one in held)


def test_few_in_one_wide_row_are_followed_by_those_of_another(store):
    """That a claim found but a few says nothing of wide rows that a search has found as well."""
    with Client(store) as client:
        queue = client.create_queue("q", QueueConfig(shards=4))
        for _ in range(16):  # each sender stays with a wide row for a while
            with Client(store) as sender:
                sender.queue("q").send(b"x")
        assert len({row.shard for row in store.store._partitions}) > 1
        with queue.consumer(prefetch=100) as consumer:
            first = consumer.receive(100, wait=SOON)
            assert 2 * len(first) < 100
            consumer.ack(first)
            until(lambda: queue.stats(exact=True).claimed > 0)
            drained(consumer, 16 - len(first), 10)


def test_a_fetch_that_fails_is_no_error_but_of_the_receive_that_fails_as_well(queue, store):
    send(queue, *[b"x"] * 40)
    with queue.consumer(prefetch=20) as consumer:
        consumer.ack(consumer.receive(20))
        until(lambda: queue.stats(exact=True).claimed == 20)
        store.trouble = lambda operation: Unavailable("no") if isinstance(operation, Mutate) else None
        ahead = consumer.receive(20)
        assert len(ahead) == 20
        send(queue, *[b"y"] * 5)
        with pytest.raises(Unavailable):
            consumer.receive(20)
        store.trouble = lambda _: None
        consumer.ack(ahead)
        assert len(drained(consumer, 5, 20)) == 5


def test_a_receive_that_waits_for_a_fetch_ends_at_close(queue, store):
    send(queue, *[b"x"] * 40)
    consumer = queue.consumer(prefetch=20)
    gate = threading.Event()
    consumer.receive(20)
    until(lambda: queue.stats(exact=True).claimed == 40)

    def trouble(operation):
        if isinstance(operation, Mutate):
            gate.wait(SOON_S)

    store.trouble = trouble
    send(queue, *[b"y"] * 40)
    assert len(consumer.receive(20)) == 20
    outcome = []

    def receive():
        try:
            outcome.append(consumer.receive(20))
        except Closed as exc:
            outcome.append(exc)

    waiting = threading.Thread(target=receive)
    waiting.start()
    until(lambda: consumer._prefetch._changed._waiters)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    until(lambda: consumer._closed)
    gate.set()
    for thread in (waiting, closing):
        thread.join(10)
        assert not thread.is_alive()
    assert isinstance(outcome[0], Closed)
    store.trouble = lambda _: None
    assert queue.stats(exact=True).live == 80
    until(lambda: queue.stats(exact=True).claimed == 0)


def test_after_its_queue_is_deleted_a_receive_says_so(queue, store):
    send(queue, *[b"x"] * 40)
    with queue.consumer(prefetch=10) as consumer:
        consumer.receive(10)
        until(lambda: consumer._prefetch._waiting)
        with Client(store) as other:
            other.delete_queue("q")
        queue._catalog._polled_s = float("-inf")  # what others changed is known two seconds later
        with pytest.raises(QueueNotFound):
            consumer.receive(10)


def test_of_a_closed_client_nothing_is_received_though_it_was_claimed_ahead(store):
    with Client(store) as client:
        queue = client.create_queue("q2", QueueConfig(shards=1))
        send(queue, *[b"x"] * 40)
        consumer = queue.consumer(prefetch=20)
        assert len(consumer.receive(5)) == 5
    with pytest.raises(Closed):
        consumer.receive(5)
    consumer.close()


def test_a_child_process_receives_nothing_and_waits_for_no_thread(queue):
    """Its parent may have forked while messages were being claimed."""
    send(queue, *[b"x"] * 40)
    with queue.consumer(prefetch=20) as consumer:
        consumer.receive(20)
        consumer._prefetch._claiming = True
        pid = os.fork()
        if not pid:
            try:
                consumer.receive(20)
            except Closed:
                os._exit(7)
            os._exit(1)
        consumer._prefetch._claiming = False
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.parametrize("prefetch", [-1, 4001, 2.0, True, "10", None])
def test_a_prefetch_out_of_range_is_refused(queue, prefetch):
    with pytest.raises(BadInput, match="prefetch"):
        queue.consumer(prefetch=prefetch)


def test_a_full_buffer_is_not_added_to():
    """One fetch follows each time that half of the buffer is gone, and none a fetch that found little."""
    fetched = []
    left = 35

    def fetch(count):
        nonlocal left
        given, left = min(count, left), left - min(count, left)
        fetched.append(given)
        return [0] * given, False

    ahead = Prefetch(10, fetch, lambda _: [], lambda: 60.0)
    ahead.put([0] * 9, 10, more=False)
    got = 0
    while messages := ahead.take(1):
        got += len(messages)
        with ahead._changed:
            assert len(ahead._waiting) <= 15
    assert got == 44
    assert fetched == [10, 10, 10, 5, 0]
    ahead.close()


def test_what_has_waited_too_long_is_not_received():
    """Though the thread that gives it back is busy with a fetch."""
    given, begun, done = [], threading.Event(), threading.Event()

    def fetch(_size):
        begun.set()
        done.wait(SOON_S)
        return [], False

    prefetch = Prefetch(10, fetch, lambda some: given.extend(some) or [], lambda: 0.0)
    prefetch.put([], 10, more=True)
    assert begun.wait(SOON_S)
    prefetch.put([1], 1, more=False)
    assert prefetch.take(1) == []
    done.set()
    prefetch.close()
    assert given == [1]


def test_a_close_gives_back_what_a_fetch_under_way_brings():
    """It waits for the fetch: later nobody would give those messages back."""
    given, begun = [], threading.Event()

    def fetch(_size):
        begun.set()
        with prefetch._changed:
            prefetch._changed.wait_for(lambda: prefetch._closed, SOON_S)
        return [1, 2], False

    prefetch = Prefetch(10, fetch, lambda some: given.extend(some) or [], lambda: SOON_S)
    prefetch.put([], 10, more=True)
    assert begun.wait(SOON_S)
    prefetch.close()
    assert given == [1, 2]


def test_what_a_receive_waits_for_counts_as_gone():
    """The thread goes on to the next fetch, and does not wait until the receive has come and asked."""
    asked_by = []

    class Noted(Prefetch):
        def _fetch_if_low(self):
            before = self._claiming
            super()._fetch_if_low()
            if self._claiming and not before:
                asked_by.append(threading.current_thread().name)

    def fetch(count):
        until(lambda: ahead._wanted == 6 or len(asked_by) > 1)
        return [0] * count, False

    ahead = Noted(10, fetch, lambda _: [], lambda: 60.0)
    ahead.put([], 10, more=False)
    assert len(ahead.take(6)) == 6
    until(lambda: len(ahead._waiting) == 14)
    ahead.close()
    assert asked_by == [threading.current_thread().name, "cqueue-prefetch"]


def test_where_no_thread_can_be_started_a_receive_claims_and_a_later_one_starts_it(queue, monkeypatch):
    """What it has claimed is not lost to its caller until the timeout, and the next one does not hang."""
    send(queue, *(b"%d" % number for number in range(6)))

    def none_left(_):
        raise RuntimeError("can't start new thread")

    with queue.consumer(prefetch=2) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none_left)
            found = consumer.receive(2) + consumer.receive(1)  # the rest of a claim waits for the next one
        found += on_a_thread(lambda: consumer.receive(2))
        found += on_a_thread(lambda: consumer.receive(2))
        assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert consumer._prefetch._thread is not None


def test_a_receive_that_is_interrupted_waits_for_nothing_any_more(monkeypatch):
    ahead = Prefetch(10, lambda count: ([0] * count, False), lambda _: [], lambda: 60.0)
    ahead._claiming = True

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ahead._changed, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ahead.take(5)
    assert ahead._wanted == 0


def test_ctrl_c_at_any_moment_of_a_receive_that_waits_leaves_the_rest_to_others():
    """The thread that fetches goes on, and close ends."""

    def begin():
        """Begin anew: fetches end once `gate` is open. A blocked take may have two of them made."""
        nonlocal ahead, gate
        gate = opened = threading.Event()
        ahead = Prefetch(2, lambda _: ([1, 2], not opened.wait(SOON_S)), lambda _: [], lambda: 60.0)
        ahead.put([0], 2, more=True)

    def take():
        ahead.take(1)
        opening = threading.Timer(0.001, gate.set)
        opening.daemon = True  # a Ctrl-C in its start may stop it for ever, and this process at its end
        opening.start()
        ahead.take(1)

    def check():
        gate.set()
        on_a_thread(ahead.close)
        begin()

    ahead = gate = None
    begin()
    assert at_each_moment(take, check) > 10
    gate.set()
    on_a_thread(ahead.close)


def test_a_receive_that_is_interrupted_while_it_takes_leaves_the_rest_in_order():
    """Whatever the moment: what it did not take is there, and close gives it back."""

    class Waiting(deque):
        def popleft(self):
            super().popleft()
            raise KeyboardInterrupt

    back = []
    ahead = Prefetch(100, lambda _: ([], False), lambda some: back.extend(some) or [], lambda: 60.0)
    ahead._waiting = Waiting()
    ahead.put([1, 2], 0, more=False)
    ahead.put([3, 4], 0, more=False)
    with pytest.raises(KeyboardInterrupt):
        ahead.take(3)
    ahead._waiting = deque(ahead._waiting)
    assert ahead.take(1) == [2]
    ahead.close()
    assert back == [3, 4]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=20), st.lists(st.integers(1, 12), max_size=60))
def test_takes_and_puts_of_all_sizes_keep_the_order(puts, takes):
    """A message is taken once, in the order in which it came, and the count of what waits is right."""
    ahead = Prefetch(100, lambda _: ([], False), lambda _: [], lambda: 60.0)
    numbers = iter(range(sum(puts)))
    for size in puts:
        ahead.put([next(numbers) for _ in range(size)], 0, more=False)
    taken = []
    for count in takes:
        some = ahead.take(count)
        assert len(some) == min(count, sum(puts) - len(taken))
        taken += some
    assert taken == list(range(len(taken)))
    assert len(ahead._waiting) == sum(puts) - len(taken)
    ahead.close()


def test_large_bodies_are_claimed_ahead_a_few_at_a_time():
    """A claim that left some is followed by the next, but no more wait than half of one and a whole one."""
    fetched = []

    def fetch(_count):
        fetched.append(4)
        return [0] * 4, len(fetched) < 5

    ahead = Prefetch(100, fetch, lambda _: [], lambda: 60.0)
    ahead.put([0] * 3, 4, more=True)
    assert not ahead._claiming
    got = 0
    while messages := ahead.take(1):
        got += len(messages)
        with ahead._changed:
            assert len(ahead._waiting) <= 6
    assert (got, len(fetched)) == (3 + 5 * 4, 5)
    ahead.close()


def test_messages_with_large_bodies_are_claimed_while_others_are_handled(queue):
    """A claim gives 16 MiB of them, far less than asked for: the next one is under way all the same."""
    send(queue, *[bytes(1 << 20)] * 20)
    with queue.consumer(prefetch=100) as consumer:
        first = consumer.receive(100)
        assert len(first) < 20
        until(lambda: queue.stats(exact=True).claimed > len(first))


def test_a_receive_beside_a_close_gives_no_prefetched_message(store, queue):
    """The close waits for a claim under way. Messages handed out meanwhile would be given back as well."""
    claiming, go_on = threading.Event(), threading.Event()
    count = store.around

    def around(operation, do):
        if isinstance(operation, Mutate) and threading.current_thread().name == "cqueue-prefetch":
            claiming.set()
            assert go_on.wait(SOON_S)
        return count(operation, do)

    queue.send_many([Message(b"%d" % number) for number in range(40)])
    consumer = queue.consumer(prefetch=10)
    consumer.receive(1, wait=SOON)
    store.around = around
    consumer.receive(5, wait=SOON)
    assert claiming.wait(SOON_S)
    is_closed, close = threading.Event(), consumer._prefetch.close

    def close_then():
        is_closed.set()
        close()

    consumer._prefetch.close = close_then
    closing = threading.Thread(target=consumer.close)
    closing.start()
    assert is_closed.wait(SOON_S)
    with pytest.raises(Closed):
        consumer.receive(2)
    go_on.set()
    closing.join(SOON_S)
    assert not closing.is_alive()


@pytest.mark.parametrize("give_back", [True, False])
def test_what_a_receive_beside_a_close_has_not_returned_uses_no_attempt(queue, give_back):
    """The close comes between the claim of a receive and the moment when the rest of it is put aside."""
    send(queue, *[b"x"] * 10)
    consumer = queue.consumer(prefetch=10)
    closing = threading.Thread(target=consumer.close, kwargs={"give_back": give_back})
    receive, receiving = consumer._receive, Wanted(consumer._receiving)
    consumer._receiving = receiving

    def receive_and_close(*args):
        messages = receive(*args)
        closing.start()
        until(lambda: closing in receiving.by or not closing.is_alive())
        return messages

    consumer._receive = receive_and_close
    assert len(consumer.receive(3, wait=SOON)) == 3
    closing.join(SOON_S)
    assert not closing.is_alive()
    with queue.consumer() as other:
        attempts = sorted(message.attempt for message in other.receive(10))
    assert attempts == ([1] * 7 + [2] * 3 if give_back else [1] * 7)
