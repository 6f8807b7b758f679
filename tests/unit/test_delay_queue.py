"""`DelayQueue` behaves as the tests of dyno-queues say, in memory and on Cassandra."""

import secrets
import threading
import time
from datetime import timedelta

import pytest

import cqueue
from cqueue import DelayQueue, Message, Where
from tests.fix_dispatcher import ManualClock, until

UNACK = timedelta(minutes=10)
"""Longer than the slowest test takes, and than `SOON`; tests in which it passes move the clock."""
LONGER = 2 * UNACK
SOON = timedelta(seconds=60)
SHORT = timedelta(milliseconds=300)
SECOND = timedelta(seconds=1)


class MovedClock(ManualClock):
    """The cluster's time, and a process's own beside it, which goes on by itself as well."""

    passed_s = 0.0

    def monotonic(self):
        return time.monotonic() + self.passed_s

    def advance(self, seconds):
        super().advance(seconds)
        self.passed_s += seconds


@pytest.fixture
def clock(client, monkeypatch):
    """The clock of the client and of its queues: no test is too slow for a timeout."""
    clock = MovedClock()
    monkeypatch.setattr(client._driver, "clock", clock)
    monkeypatch.setattr("cqueue.delay_queue.time", clock)
    return clock


@pytest.fixture
def make(client):
    """A function that makes a queue, and opens it; `open_again(queue)` is another consumer of it."""
    opened = []

    def make(**config):
        name = f"q-{secrets.token_hex(4)}"
        client.create_queue(name, cqueue.QueueConfig(**{"visibility": UNACK, "shards": 1, **config}))
        opened.append(DelayQueue(client, name))
        return opened[-1]

    yield make
    for queue in opened:
        queue.close()


@pytest.fixture
def queue(make):
    return make()


def pop_all(queue, count):
    popped = queue.pop(count, wait=SOON)
    assert len(popped) == count
    return popped


def wait_out(queue, clock, timeout=UNACK):
    """Let a timeout pass of what was popped before, and have that given back."""
    clock.advance(timeout.total_seconds() + 0.1)
    queue.process_unacks()


def test_it_says_its_name_and_unack_time(queue):
    assert queue.name in repr(queue)
    assert queue.unack_time == UNACK


def test_a_popped_message_comes_again_when_it_was_told_to(clock, queue):
    """Not before its delay, nor before its unack timeout, which can be made shorter and longer."""
    (id_,) = queue.push([Message(b"x", delay=SHORT)])
    clock.advance(SHORT.total_seconds() - 0.1)
    assert queue.pop() == []
    clock.advance(0.1)
    pop_all(queue, 1)
    assert queue.set_unack_timeout(id_, SHORT)
    queue.process_unacks()
    assert queue.pop() == []
    wait_out(queue, clock, SHORT)
    pop_all(queue, 1)
    assert queue.set_unack_timeout(id_, LONGER)
    wait_out(queue, clock, UNACK + SECOND)  # long enough for other consumers, too
    assert queue.pop() == []
    assert queue.set_unack_timeout(id_, timedelta())
    queue.process_unacks()
    pop_all(queue, 1)
    assert queue.ack(id_)
    assert sum(map(sum, queue.shard_sizes().values())) == 0
    assert queue.pop() == []


def test_a_shortened_timeout_ends_with_its_delivery(clock, client, queue):
    """Popped again after its unack time, a message was given back at once, though somebody works on it."""
    (id_,) = queue.push([Message(b"x")])
    pop_all(queue, 1)
    clock.advance(UNACK.total_seconds() - 1)
    queue.process_unacks()
    assert queue.set_unack_timeout(id_, timedelta())
    clock.advance(2)  # before the next time that a pop gives back what is late
    (again,) = pop_all(queue, 1)
    assert again.attempt == 2
    queue.process_unacks()
    with DelayQueue(client, queue.name) as other:
        assert other.pop() == []
    assert queue.ack(id_)


def test_a_message_is_acknowledged_within_a_shortened_timeout(queue):
    """A shorter timeout takes nothing away from the holder until somebody processes it."""
    (id_,) = queue.push([Message(b"x")])
    pop_all(queue, 1)
    assert queue.set_unack_timeout(id_, timedelta())
    assert queue.ack(id_)
    queue.process_unacks()
    assert queue.get(id_) is None


def test_what_is_not_popped_has_no_unack_timeout(queue):
    (id_,) = queue.push([Message(b"x")])
    assert not queue.set_unack_timeout(id_, SOON)
    for timeout in (timedelta(seconds=-1), timedelta(hours=13), 5):
        with pytest.raises(cqueue.BadInput):
            queue.set_unack_timeout(id_, timeout)


def test_three_that_push_and_two_that_pop(queue):
    """Each message is popped once, though several push and pop."""
    count, popped = 120, []

    def push():
        for number in range(0, count // 3, 10):
            queue.push([Message(b"%d" % number, priority=number % 10) for _ in range(10)])

    def pop():
        while len(popped) < count and time.monotonic() < deadline:
            popped.extend(queue.pop(100))

    deadline = time.monotonic() + 60
    threads = [threading.Thread(target=target) for target in (push, push, push, pop, pop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({message.id for message in popped}) == len(popped) == count
    assert queue.pop() == []


def test_a_pop_that_waits_holds_up_no_other(queue):
    """Each `pop` keeps its own `wait`; what comes meanwhile goes to the one that waits."""
    queue.push([Message(b"first")])
    popped = []
    waiting = threading.Thread(target=lambda: popped.extend(queue.pop(2, wait=10 * SOON)))
    waiting.start()
    until(lambda: queue._popped, SOON.total_seconds())
    began = time.monotonic()
    assert queue.pop() == []
    assert time.monotonic() - began < SOON.total_seconds()
    queue.push([Message(b"second")])
    waiting.join()
    assert [message.body for message in popped] == [b"first", b"second"]


def test_a_pop_that_waits_for_more_returns_the_first_in_time(make):
    """Else their unack time is over when they are returned, and others have them."""
    queue = make(visibility=timedelta(seconds=4))
    queue.push([Message(b"first")])
    (message,) = queue.pop(2, wait=6 * SECOND)
    assert message.visible_again > queue._queue.now


@pytest.mark.parametrize("by", ["process_unacks", "close"])
def test_what_two_pops_at_once_popped_is_given_back(clock, client, queue, by):
    queue.push([Message(b"1"), Message(b"2")])
    with queue._consumer():  # as while another thread pops
        pop_all(queue, 1)
    pop_all(queue, 1)
    if by == "close":
        queue.close()
    else:
        wait_out(queue, clock)
    with DelayQueue(client, queue.name) as other:
        assert [(one.attempt, one.suspect) for one in pop_all(other, 2)] == [(2, False)] * 2


def test_set_timeout(queue):
    """It brings a message forward; one that is popped keeps its unack timeout."""
    (id_,) = queue.push([Message(b"x", delay=timedelta(hours=1), priority=3)])
    assert queue.pop() == []
    now_id = queue.set_timeout(id_, timedelta())
    (popped,) = pop_all(queue, 1)
    assert (popped.id, popped.body) == (now_id, b"x")
    assert queue.set_timeout(now_id, timedelta()) is None
    assert queue.ack(now_id)
    assert queue.set_timeout(now_id, timedelta()) is None


def test_ten_messages_all_the_way(clock, queue):
    """Peeked, popped by priority, not acknowledged, popped again, acknowledged once."""
    ids = queue.push([Message(b"%d" % number, priority=9 - number) for number in range(10)])
    peeked = queue.peek(10)
    assert [message.id for message in peeked] == ids[::-1]
    assert queue.peek(10) == peeked
    assert queue.size() == 10
    assert [message.id for message in pop_all(queue, 10)] == ids[::-1]
    assert (queue.size(), queue.peek()) == (0, [])
    wait_out(queue, clock)
    assert queue.size() == 10
    assert all(queue.get(id_).body == b"%d" % number for number, id_ in enumerate(ids))
    with pytest.raises(cqueue.InvalidMessageId):
        queue.get("some fake id")
    assert {message.id for message in pop_all(queue, 10)} == set(ids)
    assert [(queue.ack(id_), queue.ack(id_)) for id_ in ids] == [(True, False)] * 10
    wait_out(queue, clock)
    assert queue.pop() == []
    assert [queue.remove(id_) for id_ in ids] == [False] * 10


def test_forgotten_messages_come_again_together(clock, queue):
    """`pop` gives back by itself what was not acknowledged in time."""
    queue.push([Message(b"%d" % number) for number in range(5)])
    first = pop_all(queue, 5)
    clock.advance(UNACK.total_seconds() + 0.1)
    assert {message.id for message in pop_all(queue, 5)} == {message.id for message in first}


def test_what_was_popped_of_a_queue_that_was_made_again_is_forgotten(clock, client, queue):
    """It comes no more, and no later pop goes by it."""
    queue.push([Message(b"old")])
    pop_all(queue, 1)
    client.delete_queue(queue.name)
    client.create_queue(queue.name, cqueue.QueueConfig(visibility=UNACK, shards=1))
    wait_out(queue, clock)
    assert queue._popped == {}
    queue.push([Message(b"new")])
    assert [message.body for message in pop_all(queue, 1)] == [b"new"]


def test_a_wide_row_that_cannot_be_read_keeps_no_others_popped(monkeypatch, clock, queue):
    """Its own messages may have been extended: they stay popped until they can be looked up."""
    first = queue.push([Message(b"1"), Message(b"2")])
    clock.advance(queue._queue.config.time_shard.total_seconds() * 2)
    (other,) = queue.push([Message(b"3")])
    pop_all(queue, 3)
    find_many = queue._queue.find_many

    def find(ids):
        ids = list(ids)
        if other in ids:
            raise cqueue.NotDone("no replica")
        return find_many(ids)

    with monkeypatch.context() as patch:
        patch.setattr(queue._queue, "find_many", find)
        with pytest.raises(cqueue.NotDone, match="no replica"):
            wait_out(queue, clock)
    assert queue._popped.keys() == {other}
    assert {one.id for one in pop_all(queue, 2)} == {*first}
    wait_out(queue, clock)
    assert [one.id for one in pop_all(queue, 3) if one.id == other] == [other]


def test_without_an_answer_it_gives_up_after_one_deadline(monkeypatch, clock, client, queue):
    """`pop` waits for it: a deadline for each wide row would take minutes while Cassandra is away."""
    for _ in range(3):
        queue.push([Message(b"x")])
        clock.advance(queue._queue.config.time_shard.total_seconds() * 2)
    pop_all(queue, 3)
    asked = []

    def find(ids):
        asked.append([*ids])
        clock.passed_s += client._driver.deadline_s
        raise cqueue.Unavailable("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(queue._queue, "find_many", find)
        with pytest.raises(cqueue.Unavailable, match="nobody answers"):
            wait_out(queue, clock)
    assert len(asked) == 1
    wait_out(queue, clock)
    pop_all(queue, 3)


def test_clear(queue):
    ids = queue.push([Message(b"%d" % number, delay=timedelta(hours=number)) for number in range(10)])
    pop_all(queue, 1)
    assert queue.clear() == 10
    assert (queue.size(), queue.ack(ids[0])) == (0, False)


def test_removed_messages_do_not_come(queue):
    """Neither one that waits, nor one that is popped."""
    ids = queue.push([Message(b"popped"), Message(b"waits", delay=timedelta(hours=1))])
    pop_all(queue, 1)
    assert [queue.remove(id_) for id_ in ids] == [True, True]
    assert [queue.ack(id_) for id_ in ids] == [False, False]
    assert queue.size() == 0


def test_ensure(queue):
    """One message of a key at a time: as long as it waits, and while it is popped."""
    message = Message(b"x", key="order-17")
    assert (queue.ensure(message), queue.ensure(message)) == (True, False)
    (popped,) = pop_all(queue, 1)
    assert not queue.ensure(message)
    assert queue.ack(popped.id)
    assert queue.ensure(message)
    with pytest.raises(cqueue.BadInput):
        queue.ensure(Message(b"no key"))


def test_shards(make):
    """Messages are counted by shard; `pop` waits for as many as it was asked for."""
    queue = make(shards=2)
    began = time.monotonic()
    assert queue.pop(1, wait=SHORT) == []
    assert time.monotonic() - began >= SHORT.total_seconds()
    for number in range(10):
        queue.push([Message(b"%d" % number)])
    assert sum(size.size for size in queue.shard_sizes().values()) == queue.size() == 10
    pop_all(queue, 2)
    began = time.monotonic()
    assert len(queue.pop(10, wait=timedelta(seconds=1))) == 8
    assert time.monotonic() - began >= 1
    assert sum(size.unacked for size in queue.shard_sizes().values()) == 10
    assert queue.size() == 0


def test_another_consumer_acknowledges_by_id(client, queue):
    """As a process that was only told the id: what nobody has popped cannot be acknowledged."""
    (id_,) = queue.push([Message(b"x")])
    with DelayQueue(client, queue.name) as other:
        assert not other.ack(id_)
        pop_all(queue, 1)
        assert other.set_unack_timeout(id_, LONGER)
        assert queue.get(id_).next_at - queue.get(id_).due > UNACK
        assert other.ack(id_)
    assert queue.get(id_) is None


@pytest.mark.parametrize("own", [None, UNACK + SECOND, SECOND])
def test_another_process_extends_an_unack_timeout(clock, client, queue, own):
    """The object that popped the message does not give it back before, whatever it was told itself."""
    (id_,) = queue.push([Message(b"x")])
    pop_all(queue, 1)
    if own is not None:
        assert queue.set_unack_timeout(id_, own)
    with DelayQueue(client, queue.name) as other:
        assert other.set_unack_timeout(id_, LONGER)
        wait_out(queue, clock, own or UNACK)
        assert (queue.pop(), other.pop()) == ([], [])
        assert queue.get(id_).state == "claimed"
    wait_out(queue, clock, LONGER)
    (again,) = pop_all(queue, 1)
    assert (again.id, again.suspect) == (id_, False)
    assert queue.ack(id_)


def test_predicates(queue):
    """Over headers and state, popped messages included."""
    ids = queue.push([Message(b"%d" % number, headers={"kind": "ab"[number % 2]}) for number in range(6)])
    where = Where(headers={"kind": "a"})
    assert [message.id for message in queue.matching(where)] == ids[::2]
    assert [message.id for message in queue.matching(where, 2)] == ids[:4:2]
    assert (queue.contains(where), queue.contains(Where(headers={"kind": "c"}))) == (True, False)
    pop_all(queue, 6)
    assert queue.contains(Where(headers={"kind": "b"}, state="claimed"))


def test_a_refused_push_says_why(queue):
    with pytest.raises(cqueue.PriorityOutOfRange):
        queue.push([Message(b"good"), Message(b"bad", priority=10)])
    for count in (0, "3", None, 1_001):
        with pytest.raises(cqueue.BatchTooLarge):
            queue.pop(count)
    with pytest.raises(cqueue.BadInput, match="an entry is a Message, not bytes"):
        queue.ensure(b"x")


def test_close_gives_back(client, queue):
    queue.push([Message(b"x")])
    pop_all(queue, 1)
    queue.close()
    with DelayQueue(client, queue.name) as other:
        (message,) = pop_all(other, 1)
    assert message.attempt == 2
    with pytest.raises(cqueue.Closed):
        queue.pop()
    with queue._consumer(), pytest.raises(cqueue.Closed):  # nor with a consumer made since
        queue.pop()


def test_a_count_or_timeout_out_of_range_is_refused_by_its_name(queue):
    (id_,) = queue.push([Message(b"x")])
    for count in (-1, 0, 10_001, "a", True):
        with pytest.raises(cqueue.BadInput, match=r"count is .*from 1 to 10,000"):
            queue.peek(count)
        with pytest.raises(cqueue.BadInput, match=r"count is .*from 1 to 10,000"):
            queue.matching(Where(), count)
    for timeout in (timedelta(seconds=-1), timedelta(days=4000), 3):
        with pytest.raises(cqueue.BadInput, match="timeout is"):
            queue.set_timeout(id_, timeout)


def test_predicates_may_be_a_mapping(queue):
    (id_,) = queue.push([Message(b"x", task="mail")])
    assert [one.id for one in queue.matching({"task": "mail"})] == [id_]
    assert queue.contains({"task": "mail"})
    assert not queue.contains({"task": "other"})


def test_what_was_claimed_is_popped_though_the_configuration_cannot_be_read(make, monkeypatch):
    """Otherwise the messages would be held until their timeout, by nobody who knows of them."""
    queue = make()
    queue.push([Message(b"x")])
    catalog, receive = queue._queue._catalog, cqueue.Consumer.receive

    def receive_last(*args, **options):
        messages = receive(*args, **options)
        monkeypatch.setattr(catalog, "entry", unreadable)
        return messages

    def unreadable(_name):
        raise cqueue.Unavailable("no node answers")

    monkeypatch.setattr(cqueue.Consumer, "receive", receive_last)
    (message,) = queue.pop()
    monkeypatch.undo()
    assert queue.ack(message.id)
