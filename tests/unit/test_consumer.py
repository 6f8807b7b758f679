"""The consumer under trouble: what fails, what rings, what closes must not keep other messages waiting."""

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.errors import DamagedRow, NotDone, OutcomeUnknown, Refused, SchemaMismatch, Unavailable
from cqueue.message import MessageId
from cqueue.protocol import poll
from cqueue.protocol.lease import Holding
from cqueue.protocol.send import INLINE_BODY
from cqueue.receiving import receiver as receivers
from cqueue.receiving import settler
from cqueue.runtime import waiting
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    DropBodies,
    InsertBodies,
    InsertMessages,
    Mutate,
    ReadBodies,
    ReadHead,
    ReadSlice,
    RemoveQueue,
    SlotState,
)
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import ManualClock, until
from tests.unit.ctrl_c import at_each_moment, on_a_thread
from tests.unit.passing import PassingClock

SOON = timedelta(seconds=20)
"""For receives that end as soon as there is a message: never waited for in full. Less than a message that was
lost would take to come again by its timeout."""
VISIBLE = timedelta(minutes=10)
"""A visibility timeout that passes only on a clock that a test moves."""


class Sparse(FaultyStore):
    """A store that hides bodies from a quorum while `few` is set."""

    def __init__(self):
        super().__init__(around=self._hide)
        self.few = False

    def _hide(self, operation, do):
        hides = self.few and isinstance(operation, ReadBodies) and not operation.everywhere
        return {} if hides else do()


@pytest.fixture
def store():
    return Sparse()


@pytest.fixture
def client(store):
    with Client(store) as client:
        yield client


@pytest.fixture
def queue(client):
    return client.create_queue("q", QueueConfig(shards=2))


def messages(*bodies):
    return [cqueue.Message(body) for body in bodies]


def spread(queue, count):
    """Messages in `count` wide rows: one in each, by their time shards and two shards."""
    for _ in range(count):
        queue._producer._states._free.clear()  # a new producer, a shard by chance
        queue.send(b"x")


def test_what_this_process_sends_keeps_nobody_else_waiting(store, queue):
    """A consumer told of new messages without end still finds what another process has sent, in time."""
    with Client(store) as other, queue.consumer() as consumer:
        theirs = other.queue("q")
        consumer.receive()
        for _ in range(8):  # into every shard
            theirs._producer._states._free.clear()
            theirs.send(b"theirs", priority=3)
        queue.send_many(messages(b"ours"))
        consumer.ack(consumer.receive(1))
        found = 0
        deadline = time.monotonic() + 60
        while found < 8:
            assert time.monotonic() < deadline, f"only {found} of 8"
            queue.send_many(messages(b"ours", b"ours"))
            received = consumer.receive(1)
            found += sum(message.body == b"theirs" for message in received)
            consumer.ack(received)


@pytest.mark.usefixtures("brief_pauses")
def test_failing_wide_rows_do_not_stop_the_others(store, queue):
    """One whose messages cannot be read at the moment keeps the others' waiting for no retry of its own."""
    spread(queue, 12)
    broken = next(iter(row for row in store.store._partitions if row.queue.startswith("q@")))
    store.trouble = lambda op: (
        Unavailable("broken") if isinstance(op, ReadSlice) and op.wide_row == broken else None
    )
    in_it = len(store.store._partitions[broken].of(0).live)
    assert in_it < 12
    with queue.consumer() as consumer:
        received = []
        deadline = time.monotonic() + 60
        while len(received) < 12 - in_it and time.monotonic() < deadline:
            received += consumer.receive(wait=SOON)
        assert len(received) == 12 - in_it
        with pytest.raises(Unavailable):
            consumer.receive()


def test_unreadable_heads_cost_one_retry_together(store, queue):
    """Reads of many wide rows that fail at once delay a receive by none of them."""
    spread(queue, 12)
    rows = [row for row in store.store._partitions if row.queue.startswith("q@")]
    store.trouble = lambda op: (
        Unavailable("away") if isinstance(op, ReadHead) and op.wide_row in rows[1:] else None
    )
    paused_s, pause = [], queue._driver._pause
    queue._driver._pause = lambda seconds: paused_s.append(seconds) or pause(seconds)
    with queue.consumer() as consumer:
        assert consumer.receive(wait=SOON)
        assert sum(paused_s) < 2


@pytest.mark.parametrize("error", [Refused("no grant"), DamagedRow("torn"), SchemaMismatch("no column")])
def test_a_receive_does_not_wait_for_what_an_operator_has_to_mend(store, queue, error):
    """It is told at once, after one request; when it is mended the same consumer goes on."""
    queue.send(b"x")
    asked = []

    def refuse(operation):
        if isinstance(operation, ReadHead):
            asked.append(operation)
            return error
        return None

    store.trouble = refuse
    with queue.consumer() as consumer:
        with pytest.raises(type(error)):
            consumer.receive(wait=timedelta(minutes=10))
        assert len(asked) == 1
        store.trouble = lambda _: None
        assert [message.body for message in consumer.receive(wait=SOON)] == [b"x"]


@pytest.mark.parametrize("size", [1, INLINE_BODY + 1])
def test_a_send_is_not_repeated_where_it_is_refused_for_good(store, queue, size):
    """Each statement is asked once, and the caller learns that nothing was stored."""
    asked = []

    def refuse(operation):
        if isinstance(operation, InsertMessages | InsertBodies):
            asked.append(operation)
            return Refused("no grant")
        return None

    store.trouble = refuse
    with pytest.raises(Refused):
        queue.send(b"x" * size)
    assert len(asked) == 1


def test_close_ends_a_receive_that_waits(queue):
    """In another thread, at once, with Closed."""
    consumer = queue.consumer()
    outcome = []

    def wait():
        try:
            outcome.append(consumer.receive(wait=timedelta(minutes=1)))
        except cqueue.Closed as exc:
            outcome.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    while not consumer._receiver.inbox.waiting:
        time.sleep(0.001)
    consumer.close()
    thread.join(20)
    assert not thread.is_alive()
    assert isinstance(outcome[0], cqueue.Closed)


@pytest.mark.parametrize("prefetch", [0, 10])
def test_what_a_receive_has_claimed_when_the_consumer_is_closed_is_given_back(store, queue, prefetch):
    """It ends with Closed, and nobody handles what is in the queue again; no attempt is used."""
    consumer = queue.consumer(prefetch=prefetch)
    claiming, closed, outcome = threading.Event(), threading.Event(), []

    def around(operation, execute):
        found = execute()
        if isinstance(operation, Mutate) and not closed.is_set():
            claiming.set()
            assert closed.wait(SOON.total_seconds())
        return found

    def receive():
        try:
            outcome.append(consumer.receive(5))
        except cqueue.Closed as exc:
            outcome.append(exc)

    queue.send_many(messages(*(b"%d" % number for number in range(10))))
    store.around = around
    receiving = threading.Thread(target=receive)
    receiving.start()
    assert claiming.wait(SOON.total_seconds())
    closing = threading.Thread(target=consumer.close)
    closing.start()
    while not consumer._closed:
        time.sleep(0.001)
    closed.set()
    receiving.join()
    closing.join()
    assert isinstance(outcome[0], cqueue.Closed)
    with queue.consumer() as other:
        again = []
        while len(again) < 10:
            again += other.receive(10, wait=SOON)
    assert {message.attempt for message in again} == {1}


@pytest.mark.parametrize("call", ["ack", "ack_async"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_close_does_not_give_back_what_is_being_acked(store, queue, fails, call):
    """The ack is on its way, and what it deletes would come once more. If it fails, the timeout brings it."""
    deleting, go_on = threading.Event(), threading.Event()

    def trouble(operation):
        if not isinstance(operation, DeleteMessages):
            return None
        deleting.set()
        assert go_on.wait(SOON.total_seconds())
        return Unavailable("no quorum") if fails else None

    queue.send_many(messages(b"acked", b"left"))
    consumer = queue.consumer()
    held = []
    while len(held) < 2:
        held += consumer.receive(10, wait=SOON)
    store.trouble = trouble
    (acked,) = (message for message in held if message.body == b"acked")
    threads = ThreadPoolExecutor(1)
    future = threads.submit(consumer.ack, acked) if call == "ack" else consumer.ack_async(acked)
    threads.shutdown(wait=False)
    assert deleting.wait(SOON.total_seconds())
    consumer.close()
    with queue.consumer() as other:
        (again,) = other.receive(10, wait=SOON)
        assert (again.body, again.attempt) == (b"left", 2)
        go_on.set()
        assert (future.exception() is not None) is fails
        states = {found.body: found.state for found in queue.peek()}
    assert states == {b"left": "claimed"} | ({b"acked": "claimed"} if fails else {})
    assert future.done()
    while consumer._settler.acking:  # emptied by a callback
        time.sleep(0.001)


def test_ctrl_c_at_any_moment_of_a_wait_holds_up_no_sender(queue):
    """A receive that waits is ended; another thread that sends wakes the consumer, or finds it gone."""
    with queue.consumer() as consumer:

        def check():
            on_a_thread(lambda: queue.send(b"x"))
            consumer.ack(consumer.receive(wait=SOON))

        assert at_each_moment(lambda: consumer._receiver.inbox.sleep(0.001), check) > 1


def test_a_consumer_that_has_never_polled_takes_no_hints(queue):
    """A Ctrl-C may have ended it as it was made, so that nobody can close it."""
    queue.consumer()
    with queue.consumer() as consumer:
        consumer.receive()
        queue.send(b"x")
        assert consumer._receiver.inbox.hints


def test_a_second_close_gives_nothing_back(queue):
    """What the first one left to be settled stays held, as where the first stands inside a `with`."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        (received,) = consumer.receive()
        consumer.close(give_back=False)
    received.extend(timedelta(minutes=1))
    assert received.is_held


def hold_one_by_one(queue, consumer, count):
    """Messages that were sent and received one after the other: each has a lease of its own."""
    held = []
    for _ in range(count):
        queue.send(b"x")
        held += consumer.receive()
    return held


@pytest.mark.parametrize("acking", [0, 3])
def test_a_close_while_nobody_answers_takes_one_deadline_however_much_is_held(
    store, queue, monkeypatch, acking
):
    """Not one for each lease: a process that is to end would be killed meanwhile. Nor for acks under way."""
    with queue.consumer() as consumer:
        held = hold_one_by_one(queue, consumer, 6 + acking)
        assert len({one.lease for one in held}) == 6 + acking
        consumer._settler.acking[object()] = held[::2][:acking]
        passing = PassingClock()
        monkeypatch.setattr(waiting, "time", passing)
        store.trouble = passing.hang
        consumer.close()
    assert passing.now_s - 1000 < 12
    store.trouble = lambda _: None


def test_a_close_where_only_plain_reads_are_answered_takes_two_deadlines_at_most(store, queue, monkeypatch):
    """As where commit logs cannot be written: each nack reads first, and then hangs."""
    passing = PassingClock()

    def trouble(op):
        return passing.hang(op) if isinstance(op, Mutate) or getattr(op, "serial", False) else None

    with queue.consumer() as consumer:
        pairs = []
        for _ in range(6):
            queue.send_many([cqueue.Message(b"x"), cqueue.Message(b"y")])
            pairs.append(consumer.receive(2, wait=SOON))
        consumer._settler.acking[object()] = [pair[0] for pair in pairs if len(pair) == 2]
        queue._driver.run(consumer._receiver._poll.let_go())
        monkeypatch.setattr(waiting, "time", passing)
        monkeypatch.setattr(queue._driver, "_pause", passing.pass_time)
        store.trouble = trouble
        consumer.close()
    assert passing.now_s - 1000 < 22
    store.trouble = lambda _: None


def test_a_receive_whose_time_is_over_does_not_pause_for_what_it_may_not_ask_any_more(
    store, queue, monkeypatch
):
    """A claim without an answer is looked for a second longer, and not after that."""
    passing = PassingClock()
    monkeypatch.setattr(waiting, "time", passing)
    monkeypatch.setattr(queue._driver, "_pause", passing.pass_time)

    def trouble(operation):
        if not isinstance(operation, Mutate):
            return Unavailable("no quorum") if passing.now_s > 1005 else None
        passing.pass_time(9.5)
        return OutcomeUnknown("no answer")

    queue.send(b"x")
    with queue.consumer() as consumer:
        store.trouble = trouble
        with pytest.raises((NotDone, OutcomeUnknown)):
            consumer.receive()
        assert 1009 < passing.now_s < 1011.6
        store.trouble = lambda _: None


@pytest.mark.parametrize("cancelled", [0, 5])
def test_a_close_that_is_answered_slowly_gives_back_all(store, queue, monkeypatch, cancelled):
    """Each answer shows that Cassandra is there, also if it is that a message was cancelled."""
    passing = PassingClock()
    with queue.consumer() as consumer:
        held = hold_one_by_one(queue, consumer, 6 + cancelled)
        by_lease = {one.lease: one for one in held}
        for lease in list(consumer._settler._leases)[:cancelled]:
            queue.cancel(by_lease[lease].id)
        monkeypatch.setattr(waiting, "time", passing)
        store.trouble = lambda _: passing.pass_time(3)
    assert passing.now_s - 1000 > 12
    store.trouble = lambda _: None
    with queue.consumer() as other:
        back = other.receive(10)
        while len(back) < 6:  # of two shards
            back += other.receive(10, wait=SOON) or pytest.fail("some were not given back")


@pytest.mark.usefixtures("brief_pauses")
def test_messages_whose_bodies_cannot_be_read_are_given_back_with_no_attempt_used(store, queue):
    """They come again as soon as bodies can be read, and not after the visibility timeout."""
    queue.send(b"x" * 20_000)
    store.trouble = lambda operation: Unavailable("no quorum") if isinstance(operation, ReadBodies) else None
    with queue.consumer() as consumer:
        with pytest.raises(Unavailable, match="no quorum"):
            consumer.receive()
        store.trouble = lambda _: None
        (received,) = consumer.receive(wait=SOON)
    assert received.attempt == 1


def test_a_close_that_a_ctrl_c_ends_can_be_repeated(queue, client):
    """The second one removes the consumer from those that are told of messages, if the first one had not."""
    consumers = []

    def begin():
        consumers.append(queue.consumer())
        consumers[-1].receive()

    def close():
        consumers[-1].close()

    def check():
        close()
        assert client._wakeups["q"]._inboxes == []
        begin()

    begin()
    assert at_each_moment(close, check) > 10


def test_an_ack_whose_body_stays_is_an_ack(store, queue):
    """The message is gone, so the ack succeeds; its body goes with the wide row."""
    id_ = queue.send(bytes(INLINE_BODY + 1))
    store.trouble = lambda op: Unavailable("away") if isinstance(op, DeleteBodies | DropBodies) else None
    with queue.consumer() as consumer:
        consumer.ack(consumer.receive(wait=SOON))
        assert queue.find(id_) is None
        assert consumer._receiver._poll.finished


def lose_bodies(store):
    """As a cluster does that has lost all replicas' files of them."""
    for partition in store.store._partitions.values():
        partition.bodies.live.clear()


def letters_of(queue, client):
    return client.queue(queue.dead_letter_name).peek()


def test_a_message_whose_body_is_lost_is_dead_at_once(store, queue, client):
    """It is accounted for, and its neighbours are delivered; the letter says how much is missing."""
    id_ = queue.send(bytes(INLINE_BODY + 1), headers={"k": "v"}, priority=3)
    lose_bodies(store)
    queue.send(b"small", priority=3)
    with queue.consumer() as consumer:
        received = consumer.receive(wait=SOON)
        received += consumer.receive()
        assert [message.body for message in received] == [b"small"]
        consumer.ack(received)
    (letter,) = letters_of(queue, client)
    assert (letter.body, letter.priority, letter.headers["k"]) == (b"", 3, "v")
    assert letter.headers["cqueue-dead-lost"] == str(INLINE_BODY + 1)
    assert letter.headers["cqueue-dead-reason"] == "its body is lost: no replica has it"
    assert letter.headers["cqueue-dead-id"] == id_
    assert queue.stats(exact=True).live == 0


def test_a_body_that_is_lost_meanwhile_does_not_keep_its_message_from_dying(store, queue, client):
    """Whatever the reason that it dies for."""
    queue.send(bytes(INLINE_BODY + 1))
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        lose_bodies(store)
        message.dead("no good")
    (letter,) = letters_of(queue, client)
    assert letter.headers["cqueue-dead-reason"] == "no good"
    assert letter.headers["cqueue-dead-lost"] == str(INLINE_BODY + 1)


def test_a_body_is_read_from_the_last_replica_that_has_it(store, queue, client):
    """A quorum without it does not mean that it is lost."""
    body = bytes(INLINE_BODY + 1)
    queue.send(body)
    store.few = True
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        assert message.body == body
        message.dead("no good")
    store.few = False
    (letter,) = letters_of(queue, client)
    assert letter.body == body
    assert "cqueue-dead-lost" not in letter.headers


@pytest.fixture
def looks(store):
    """The times that all replicas are asked, one of which is away until `store.trouble` is another."""
    looks = []

    def away(op):
        if isinstance(op, ReadBodies) and op.everywhere:
            looks.append(op)
            return Unavailable("away")
        return None

    store.trouble = away
    return looks


def large(count):
    return [cqueue.Message(bytes(INLINE_BODY + 1)) for _ in range(count)]


def test_while_a_replica_is_away_no_body_is_given_up(store, client, looks):
    """They are asked once for all messages of a claim, which come again, and have used no attempt."""
    client._driver.clock = clock = ManualClock()
    queue = client.create_queue("away", QueueConfig(shards=1, visibility=VISIBLE))
    sent = queue.send_many(large(50))
    kept = dict(next(iter(store.store._partitions.values())).bodies.live)
    lose_bodies(store)
    clock.advance(1)  # each of them is due a little later than the one before
    with queue.consumer() as consumer:
        for count in (1, 2):
            assert consumer.receive(50) == consumer.receive(50) == []
            assert [len(look.ids) for look in looks] == count * [50]
            clock.advance(VISIBLE.total_seconds() + 1)
        (partition,) = store.store._partitions.values()
        partition.bodies.live.update(kept)  # the replica that has them is back
        store.trouble = lambda _: None
        found = consumer.receive(50)
        assert {message.id for message in found} == set(sent.ids)
        assert {message.attempt for message in found} == {1}
    assert letters_of(queue, client) == []


def test_large_messages_that_cannot_be_buried_now_hold_up_nobody(store, client, looks):
    """Of those that are spent one is tried at each claim; a small one beside them dies, others are given."""
    queue = client.create_queue("spent", QueueConfig(shards=1, visibility=VISIBLE, max_attempts=2))
    queue.send_many([*large(20), cqueue.Message(b"spent")])
    for _ in range(2):
        with queue.consumer() as consumer:
            assert len(consumer.receive(50, wait=SOON)) == 21
    lose_bodies(store)
    queue.send(b"healthy")
    with queue.consumer() as consumer:
        found = consumer.receive(50, wait=SOON) + consumer.receive(50, wait=timedelta(milliseconds=500))
        assert [message.body for message in found] == [b"healthy"]
    assert len(looks) <= 3
    assert [letter.body for letter in letters_of(queue, client)] == [b"spent"]


def test_an_ack_and_a_purge_delete_messages_before_their_bodies(store, queue):
    """A message that is still there when its body is not found has not been acked."""
    queue.send_many(large(2))
    deletes = []

    def note(op):
        if isinstance(op, DeleteMessages | DeleteBodies):
            deletes.append(type(op))

    store.trouble = note
    with queue.consumer() as consumer:
        consumer.receive(1, wait=SOON)[0].ack()
    assert queue.purge() == 1
    assert deletes == 2 * [DeleteMessages, DeleteBodies]


def test_a_message_acked_while_its_body_is_looked_for_is_not_dead(store, queue, client):
    """By a consumer whose timeout has passed: its ack counts, and deletes the message before the body."""
    id_ = queue.send(bytes(INLINE_BODY + 1))
    wide_row, priority, key = MessageId(id_).locate()
    store.few = True

    def acks(op):
        if isinstance(op, ReadBodies) and op.everywhere:
            store.execute(DeleteMessages(wide_row, priority, (key,)))
            store.execute(DeleteBodies(wide_row, (key,)))

    store.trouble = acks
    with queue.consumer() as consumer:
        assert consumer.receive() == []
    assert queue.find(id_) is None
    assert letters_of(queue, client) == []


def test_a_letter_whose_body_is_lost_is_received_without_it(store, queue, client):
    """It cannot die a second time, and must not come again for ever."""
    queue.send(bytes(INLINE_BODY + 1))
    with queue.consumer() as consumer:
        consumer.receive(wait=SOON)[0].dead("no good")
    lose_bodies(store)
    with client.queue(queue.dead_letter_name).consumer() as consumer:
        (letter,) = consumer.receive(wait=SOON)
        assert (letter.body, letter.headers["cqueue-dead-lost"]) == (b"", str(INLINE_BODY + 1))
        assert letter.headers["cqueue-dead-reason"] == "no good"
        letter.ack()
    assert letters_of(queue, client) == []


def test_housekeeping_that_fails_is_not_the_receiver_s_error(store, queue, monkeypatch):
    """Slots that cannot be freed now are freed later; an empty receive is empty."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        consumer.ack(consumer.receive(wait=SOON))

        def frees(op):
            free = isinstance(op, Mutate) and op.lock is None
            return OutcomeUnknown("lost") if free or (isinstance(op, ReadHead) and op.serial) else None

        monkeypatch.setattr(poll, "FREE_AFTER_US", 0)
        consumer._driver._pause = lambda _: None
        store.trouble = frees
        assert consumer.receive() == []
        store.trouble = lambda _: None
    assert all(
        slot.state is SlotState.FREE
        for partition in store.store._partitions.values()
        for slot in partition.slots.values()
    )


def test_several_nacks_go_on_after_one_that_fails(queue):
    """The first error is raised, but all messages are tried."""
    queue.send_many(messages(b"a", b"b"))
    with queue.consumer() as consumer:
        (one,) = consumer.receive(1, wait=SOON)
        (two,) = consumer.receive(1, wait=SOON)
        one.nack(timedelta(minutes=1))
        with pytest.raises(cqueue.LeaseLost):
            consumer.nack([one, two], timedelta(minutes=1))
    assert queue.stats(exact=True).waiting == 2


def test_a_dead_letter_does_not_die_again(client):
    """Its queue takes no limit of attempts: there is no queue to bury it in."""
    client.create_queue("q")
    with pytest.raises(cqueue.ConfigError, match="max_attempts"):
        client.queue("q.dead").alter(max_attempts=3)


def test_a_burial_that_fails_keeps_nothing_from_being_delivered(client, queue, store):
    """Messages claimed beside a spent one are delivered, whatever becomes of that one."""
    queue.alter(max_attempts=2)
    queue.send(b"bad")
    with queue.consumer() as consumer:
        for _ in range(2):
            consumer.nack(consumer.receive(wait=SOON))
        del store.store._queues["q.dead"]
        client._catalog._forget()
        queue.send(b"good")
        assert [message.body for message in consumer.receive(wait=SOON)] == [b"good"]


def test_a_delete_that_stops_half_way_can_be_gone_on_with(client, store):
    """Nobody finds the queue meanwhile, nobody makes it anew; called again it is deleted."""
    client.create_queue("q")
    store.trouble = lambda op: Unavailable("away") if isinstance(op, RemoveQueue) else None
    with pytest.raises(OutcomeUnknown, match="deleted in part"):
        client.delete_queue("q")
    store.trouble = lambda _: None
    with pytest.raises(cqueue.QueueNotFound):
        client.queue("q")
    with pytest.raises(cqueue.QueueExists, match="being deleted"):
        client.create_queue("q", exist_ok=True)
    client.delete_queue("q")
    assert client.create_queue("q").stats(exact=True).live == 0


@pytest.mark.parametrize("deleted", [0, 1])
def test_a_purge_that_stops_half_way_says_so(monkeypatch, store, queue, deleted):
    """It is "not done" only if nothing is deleted; called again it goes on."""
    monkeypatch.setattr("cqueue.protocol.inspection.PURGED_AT_ONCE", 1)
    queue.send_many([cqueue.Message(b"x")] * 3)
    deletes = []

    def trouble(operation):
        if isinstance(operation, DeleteMessages):
            deletes.append(operation)
            return Unavailable("away") if len(deletes) > deleted else None
        return None

    store.trouble = trouble
    with pytest.raises(OutcomeUnknown if deleted else Unavailable):
        queue.purge()
    store.trouble = lambda _: None
    assert queue.purge() == 3 - deleted


def test_a_forked_client_says_so(client, queue):
    """Connections do not survive a fork: Closed at once, instead of waiting for answers that cannot come."""
    client._driver._pid += 1
    with pytest.raises(cqueue.Closed, match="fork"):
        queue.send(b"x")


def test_a_fork_waits_for_no_lock_of_its_parents_threads(client, queue):
    """None of the threads that hold them is there: whatever the child asks, or closes, ends at once."""
    with queue.consumer() as consumer, ThreadPoolExecutor(1) as pool:
        receives = pool.submit(consumer.receive, wait=VISIBLE)
        until(lambda: consumer._receiver.inbox.waiting)
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # ends a child that hangs
            consumer.close()
            client.close()
            os._exit(7)
        _, status = os.waitpid(child, 0)
        queue.send(b"x")
        assert len(receives.result()) == 1
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_forked_client_refuses_before_it_waits_for_a_thread_of_its_parent(client, queue):
    queue.send(b"x")
    with queue.consumer() as consumer, ExitStack() as held:
        (message,) = consumer.receive()
        for lock in (client._catalog._polling, consumer._receiving, *consumer._settler._locks):
            held.enter_context(lock)
        client._driver._pid += 1
        client._catalog._polled_s = float("-inf")

        def refusals():
            for call in (lambda: queue.config, consumer.receive, message.nack):
                with pytest.raises(cqueue.Closed, match="fork"):
                    call()

        on_a_thread(refusals)


def test_ack_async_after_close_says_closed(store):
    """As everything else does."""
    client = Client(store)
    queue = client.create_queue("late")
    queue.send(b"x")
    consumer = queue.consumer()
    received = consumer.receive(wait=SOON)
    consumer.close(give_back=False)
    client.close()
    with pytest.raises(cqueue.Closed):
        consumer.ack_async(received)
    assert not consumer._settler.acking


def test_leases_that_were_given_back_are_forgotten_once_there_are_many(queue, monkeypatch):
    """A consumer that lives for years keeps those that it holds."""
    monkeypatch.setattr(settler, "MAX_LEASES", 1)
    with queue.consumer() as consumer:
        held = []
        for number in range(5):
            queue.send(b"%d" % number)
            held += consumer.receive(wait=SOON)
            if number != 3:
                held.pop().lease.state = Holding.LOST
        assert len(held) == 1
        assert held[0].lease in consumer._settler._leases
        assert len(consumer._settler._leases) <= 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (None, "None is neither"),
        ("abc", "'abc' is not .*; give what receive returned"),
        (5, "5 is neither"),
        ([b"x"], "b'x' is not .*; give what receive returned"),
    ],
)
def test_what_is_no_message_cannot_be_acked(queue, wrong, said):
    """Bad input, of its own kind; of an id all is quoted, not its first letter."""
    with queue.consumer() as consumer, pytest.raises(cqueue.BadInput, match=said):
        consumer.ack(wrong)


def test_send_many_takes_several(queue):
    """A single message is the likeliest slip."""
    with pytest.raises(cqueue.BadInput, match="several"):
        queue.send_many(cqueue.Message(b"x"))


def test_an_ack_refused_after_a_lost_answer_is_unknown(store, queue):
    """One try may have been stored: that later ones were refused does not make it "not done"."""
    errors = iter([OutcomeUnknown("lost")])
    queue.send(b"x")
    with queue.consumer() as consumer:
        received = consumer.receive(wait=SOON)
        store.trouble = lambda op: (
            next(errors, Unavailable("away")) if isinstance(op, DeleteMessages) else None
        )
        with pytest.raises(cqueue.AckUnknown):
            consumer.ack(received)
        store.trouble = lambda _: None
        consumer.ack(received)
    assert queue.stats(exact=True).live == 0


def test_a_claim_that_is_answered_after_its_visibility_timeout_delivers_nothing(monkeypatch):
    """Others may take the messages by then. They come with the next claim, and no attempt is used."""
    passed_us = [0]

    def answer_late(operation, do):
        result = do()
        if type(operation) is Mutate and operation.slots and not passed_us[0]:
            passed_us[0] = VISIBLE // timedelta(microseconds=1) + 1
        return result

    with Client(FaultyStore(around=answer_late)) as client:
        queue = client.create_queue("late", QueueConfig(visibility=VISIBLE))
        clock, now_us = client._driver.clock, client._driver.clock.now_us
        monkeypatch.setattr(clock, "now_us", lambda **given: now_us(**given) + passed_us[0])
        queue.send_many(messages(b"1", b"2"))
        with queue.consumer() as consumer:
            got = consumer.receive(2, wait=SOON)
            assert passed_us[0]
            assert {message.body for message in got} == {b"1", b"2"}
            assert all(message.attempt == 1 and message.visible_again > queue.now for message in got)


def test_claims_that_are_answered_too_late_are_told(monkeypatch, caplog):
    """At once, and then every so often, with the messages of all claims since: a bad hour is no flood."""
    late, left, passed_us = [], [3], [0]

    def answer_late(operation, do):
        result = do()
        slots = operation.slots if type(operation) is Mutate else ()
        if left[0] and (
            ids := [one for each in slots if each.row.state is SlotState.CLAIMED for one in each.row.ids]
        ):
            late.append(len(ids))
            left[0] -= 1
            passed_us[0] += VISIBLE // timedelta(microseconds=1) + 1
        return result

    def told():
        return [line for line in caplog.messages if "claim_too_late" in line]

    with Client(FaultyStore(around=answer_late)) as client:
        queue = client.create_queue("late", QueueConfig(visibility=VISIBLE))
        clock = client._driver.clock
        for name in ("now_us", "guess_us"):
            read = getattr(clock, name)
            monkeypatch.setattr(clock, name, lambda read=read, **given: read(**given) + passed_us[0])
        queue.send_many(messages(b"1", b"2"))
        monkeypatch.setattr(receivers, "REPEAT_S", float("inf"))
        with queue.consumer() as consumer:
            consumer.nack(consumer.receive(2, wait=SOON))
            assert len(late) == 3
            assert len(told()) == 1
            assert f"queue='late' messages={late[0]}" in told()[0]
            monkeypatch.setattr(receivers, "REPEAT_S", 0.0)
            left[0] = 1
            assert consumer.receive(2, wait=SOON)
            assert len(told()) == 2
            assert f"messages={sum(late[1:])}" in told()[1]


@pytest.mark.usefixtures("brief_pauses")
def test_an_ack_stored_in_part_is_unknown(store, queue):
    """Some messages are deleted and some are not: neither done nor not done."""
    queue.send_many([cqueue.Message(b"a"), cqueue.Message(b"b", priority=1)])
    with queue.consumer() as consumer:
        received = consumer.receive(wait=SOON)
        while len(received) < 2:
            received += consumer.receive(wait=SOON)
        store.trouble = lambda op: (
            Unavailable("away") if isinstance(op, DeleteMessages) and op.priority == 1 else None
        )
        with pytest.raises(cqueue.AckUnknown):
            consumer.ack(received)
        store.trouble = lambda op: Unavailable("away") if isinstance(op, DeleteMessages) else None
        with pytest.raises(cqueue.NotDone):
            consumer.ack(received)
        store.trouble = lambda _: None


def test_a_consumer_knows_that_it_was_told(queue):
    """Until it looks: then what it was told of is found, or is gone."""
    with queue.consumer() as consumer:
        consumer.receive()
        assert not consumer._receiver.inbox.hints
        queue.send(b"x")
        assert consumer._receiver.inbox.hints
        assert len(consumer.receive(wait=SOON)) == 1
        assert not consumer._receiver.inbox.hints


def test_a_message_that_is_due_later_tells_nobody(queue):
    """A look before it is due would be in vain; one that is due beside it is told of."""
    with queue.consumer() as consumer:
        consumer.receive()
        queue.send(b"later", delay=timedelta(minutes=1), priority=3)
        assert not consumer._receiver.inbox.hints
        queue.send_many([cqueue.Message(b"later", delay=timedelta(minutes=1), priority=3), *messages(b"now")])
        assert {hint.priorities for hint in consumer._receiver.inbox.hints} == {frozenset({0})}


def test_what_was_purged_is_not_claimed(queue):
    """After a purge there is nothing to receive, though the consumer was told of a message before it."""
    with queue.consumer() as consumer:
        queue.send(b"read")
        consumer.ack(consumer.receive(wait=SOON))
        queue.send(b"purged")
        assert queue.purge() == 1
        assert consumer.receive() == []
        queue.send(b"sent since")
        assert [message.body for message in consumer.receive(wait=SOON)] == [b"sent since"]


def test_what_was_read_ahead_of_a_purge_is_not_received(queue):
    """A consumer of this process forgets what its last claim has read for the next one."""
    queue.send_many(messages(*[b"x"] * 40))
    with queue.consumer() as consumer:
        consumer._mean_gap_s = 0.0  # it comes back at once, so it keeps the lock and reads ahead
        assert len(consumer.receive(10, wait=SOON)) == 10
        assert queue.purge() == 40
        assert consumer.receive(10) == []


def test_a_receive_in_vain_frees_slots_whose_messages_are_acked(queue, monkeypatch):
    """But not at once: the next claim frees them on the way."""
    with queue.consumer() as consumer:
        queue.send(b"x")
        consumer.ack(consumer.receive(wait=SOON))
        assert consumer.receive() == []
        assert consumer._receiver._poll._unfreed
        monkeypatch.setattr(poll, "FREE_AFTER_US", 0)
        assert consumer.receive() == []
        assert not consumer._receiver._poll._unfreed
        queue.send(b"y")
        assert [message.body for message in consumer.receive(wait=SOON)] == [b"y"]


def test_a_purge_takes_what_a_consumer_has_heard_of(queue):
    """Nothing comes that was sent before the purge, though the consumer was handed it already."""
    with queue.consumer() as consumer:
        queue.send(b"first")
        consumer.ack(consumer.receive(wait=SOON))
        queue.send(b"second")
        receiver = consumer._receiver
        consumer._driver.run(receiver._poll.begin(receiver._entry().spec, receiver._hints(receiver._poll)))
        assert queue.purge() == 1
        assert consumer.receive() == []


def test_a_message_of_a_deleted_queue_is_not_buried_in_one_of_its_name(client, queue):
    """A queue deleted and made again is another one."""
    queue.send(b"of the old one")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        client.delete_queue(queue.name)
        again = client.create_queue(queue.name)
        with pytest.raises(cqueue.LeaseLost, match="has been deleted"):
            message.dead("late")
    assert list(again.dead_letters) == []


def test_nor_is_it_if_another_client_has_made_that_one(client, store, queue):
    """This client does not know of it yet, and reads the dead-letter queue for the first time."""
    queue.send(b"of the old one")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        with Client(store) as other:
            other.delete_queue(queue.name)
            again = other.create_queue(queue.name)
            with pytest.raises(cqueue.LeaseLost, match="has been deleted"):
                message.dead("late")
            assert list(again.dead_letters) == []
    assert client.queue(queue.name).stats(exact=True).live == 0


def test_a_send_succeeds_whatever_the_consumer_that_it_wakes_makes_of_it(queue, caplog):
    """The message is stored: an error would have it sent again."""

    def broken():
        raise ValueError("no")

    with queue.consumer(wake=broken) as consumer:
        consumer.receive()
        queue.send(b"x")
        assert len(consumer.receive()) == 1
    assert caplog.text.count("wake_failed") == 1


def test_a_message_that_was_moved_to_now_comes_with_the_next_receive(memory_client):
    """Though a moment ago the consumer has read that its slot is due in an hour."""
    now_us = memory_client._driver.clock.now_us()
    memory_client._driver.clock._local_us = lambda: now_us
    queue = memory_client.create_queue("q")
    id_ = queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive()
        consumer.nack(message, timedelta(hours=1))
        assert consumer.receive() == []
        queue.reschedule(id_, timedelta())
        now_us += 100_000  # the step of due times
        assert len(consumer.receive()) == 1


def test_a_paused_queue_shows_once_nothing_is_held_any_more(queue):
    """An operator pauses it and waits for that. Trap: acked messages counted as held until it went on."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=timedelta(seconds=5))
        queue.pause()
        message.ack()

        def is_drained():
            assert consumer.receive() == []
            return queue.stats().claimed == 0

        until(is_drained)


def test_a_lost_lease_leaves_nothing_for_the_collector(client):
    """Messages are let go of as their calls end; the collector of a dispatcher runs rarely."""
    queue = client.create_queue("q", QueueConfig(visibility=VISIBLE))
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.ack()
        gc.collect()
        gc.disable()
        try:
            with suppress(cqueue.LeaseLost):
                consumer.extend([message], timedelta(minutes=1))
            assert gc.collect() == 0
        finally:
            gc.enable()
