"""`reschedule`, `set_priority`, `extend` and `cancel` of a queue, by id, also of held messages."""

import secrets
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.errors import LeaseLost, MessageHeld, NotDone, OutcomeUnknown
from cqueue.message import MessageId, to_datetime
from cqueue.protocol import dead
from cqueue.protocol.send import INLINE_BODY
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.firing_id import FiringId
from cqueue.sending import changes
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    DeleteBodies,
    DeleteMessages,
    InsertMessages,
    Mutate,
    ReadHead,
    ReadMessages,
)
from cqueue.testing.clock import ManualClock
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.unit.holding import held

SOON = timedelta(seconds=10)
NOW = timedelta()
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def queue(client):
    return client.create_queue(f"q-{secrets.token_hex(4)}", cqueue.QueueConfig(time_shard=timedelta(hours=1)))


def nearly(moment, other):
    return abs(moment - other) < MINUTE


# ── reschedule ──


def test_a_ready_message_is_put_off_and_keeps_its_id(queue):
    """It does not come before its new time, and comes then, as its first attempt."""
    id_ = queue.send(b"later")
    assert queue.reschedule(id_, timedelta(seconds=1.5)) == id_
    found = queue.find(id_)
    assert (found.state, found.attempts, found.due) == ("waiting", 0, found.sent_at)
    with queue.consumer() as consumer:
        assert consumer.receive() == []
        (message,) = held(consumer)
        assert queue.now >= found.next_at
        assert (message.id, message.attempt, message.body) == (id_, 1, b"later")
        message.ack()
    assert queue.stats(exact=True).live == 0


def test_a_consumer_that_has_just_claimed_there_does_not_deliver_it(queue):
    """Not even one that knows the wide row, and claims without reading its head."""
    with queue.consumer() as consumer:
        queue.send(b"read")
        consumer.ack(consumer.receive(wait=SOON))
        id_ = queue.send(b"later")
        queue.reschedule(id_, HOUR)
        assert consumer.receive() == []
        queue.reschedule(id_, NOW)
        assert held(consumer)[0].id == id_


def test_a_consumer_is_told_of_what_is_due_sooner_now_and_of_nothing_else(queue):
    """It may have seen that the message waits for longer, and look elsewhere until then."""
    with queue.consumer() as consumer:
        consumer.receive()
        id_ = queue.send(b"x")
        hints = consumer._receiver.inbox.hints
        told = hints.pop()
        queue.reschedule(id_, HOUR)
        assert not hints
        queue.reschedule(id_, NOW)
        (again,) = hints
    assert (again.wide_row, again.priorities) == (told.wide_row, told.priorities)


def test_a_change_gets_its_turn_beside_a_consumer_that_always_claims_first(queue, monkeypatch):
    """Such as one that finds ever more messages, keeps the lock, and claims while a change reads."""
    store, *ids = queue._driver.store, *queue.send_many([cqueue.Message(b"%d" % n) for n in range(500)]).ids
    with queue.consumer() as consumer:
        claimed = []

        def claim_first(operation):
            if type(operation) is Mutate and not operation.overtakes:
                with monkeypatch.context() as patch:
                    patch.setattr(queue._driver, "store", store)
                    claimed.extend(messages := consumer.receive(1))
                    consumer.ack(messages)

        monkeypatch.setattr(queue._driver, "store", FaultyStore(store, trouble=claim_first))
        assert queue.reschedule(ids[-1], HOUR) == ids[-1]
        monkeypatch.setattr(queue._driver, "store", store)
        assert claimed
        assert queue.find(ids[-1]).state == "waiting"


def test_due_is_a_moment_or_a_time_from_now(queue):
    """Both give the same time; one in the past is now."""
    id_ = queue.send(b"x")
    queue.reschedule(id_, queue.now + HOUR)
    assert nearly(queue.find(id_).next_at, queue.now + HOUR)
    queue.reschedule(id_, datetime(2020, 1, 1, tzinfo=UTC))
    with queue.consumer() as consumer:
        assert held(consumer)[0].id == id_


def test_a_nacked_message_keeps_its_attempts_and_its_neighbours_their_time(queue):
    """It leaves the slot that it shares with others."""
    first, second = queue.send_many([cqueue.Message(b"1"), cqueue.Message(b"2")]).ids
    with queue.consumer() as consumer:
        consumer.nack(held(consumer, 2), HOUR)
        assert queue.reschedule(first, NOW) == first
        (message,) = held(consumer)
        assert (message.id, message.attempt) == (first, 2)
        message.ack()
        assert nearly(queue.find(second).next_at, queue.now + HOUR)
        assert queue.reschedule(second, NOW) == second
        assert held(consumer)[0].attempt == 2


def test_a_delayed_message_of_a_later_time_shard_comes_now_under_a_new_id(queue):
    """As sent, once."""
    texts = {"task": "t", "key": "k", "codec": "c", "headers": {"a": "b"}}
    sent = cqueue.Message(b"x", timedelta(days=9), priority=3, ttl=timedelta(10), **texts)
    (id_,) = queue.send_many([sent]).ids
    new = queue.reschedule(id_, NOW)
    assert new != id_
    assert queue.find(id_) is None
    found = queue.find(new)
    assert (found.body, found.priority, found.headers) == (b"x", 3, {"a": "b"})
    assert (found.task, found.key, found.codec) == ("t", "k", "c")
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        assert message.id == new
        message.ack()
    assert queue.stats(exact=True).live == 0


def test_a_delayed_message_is_put_off_in_its_place(queue):
    """Where it stands no consumer has looked yet."""
    id_ = queue.send(b"x", delay=timedelta(days=9))
    assert queue.reschedule(id_, timedelta(days=10)) == id_
    assert nearly(queue.find(id_).next_at, queue.now + timedelta(days=10))
    assert queue.cancel(id_)
    assert queue.stats(exact=True).live == 0


def test_a_held_message_stays_with_its_holder(queue):
    """It can be moved only once it was given back."""
    id_ = queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        with pytest.raises(cqueue.MessageHeld):
            queue.reschedule(id_, HOUR)
        with pytest.raises(cqueue.MessageHeld):
            queue.set_priority(id_, 3)
        message.nack()
        assert queue.reschedule(id_, HOUR) == id_


def test_messages_of_about_one_time_share_a_slot(queue):
    """One after the other, too: the head of a wide row stays small."""
    ids = queue.send_many([cqueue.Message(b"%d" % n) for n in range(20)]).ids
    due = queue.now + HOUR
    for n, id_ in enumerate(ids):
        assert queue.reschedule(id_, due + n * timedelta(microseconds=1)) == id_
    slots = {found.next_at for found in queue.find_many(ids).values()}
    assert len(slots) <= 2
    head = queue._driver.ask(ReadHead(MessageId(ids[0]).locate().wide_row))
    assert len([slot for slot in head.slots if slot.in_use]) <= 2


# ── priority ──


@pytest.mark.parametrize("size", [1, INLINE_BODY + 1])
@pytest.mark.parametrize("delay", [NOW, HOUR])
def test_a_message_gets_another_priority(queue, delay, size):
    """Under a new id, with its own due time; the old one is gone."""
    id_ = queue.send(bytes(size), delay=delay)
    new = queue.set_priority(id_, 7)
    found = queue.find(new)
    assert (found.priority, len(found.body)) == (7, size)
    assert nearly(found.due, queue.now + delay)
    assert queue.find(id_) is None
    assert queue.set_priority(new, 7) == new
    assert queue.stats(exact=True).live == 1


def test_a_copy_is_the_message_that_it_was(queue):
    """All that was sent with it, also the rest of its time to live; a retry is due when it was due."""
    whole = {"headers": {"a": "1"}, "task": "mail", "key": "user-7", "codec": "json", "trigger": "by hand"}
    (id_,) = queue.send_many([cqueue.Message(b"[1]", ttl=HOUR, **whole)]).ids
    with queue.consumer() as consumer:
        held(consumer)[0].nack(HOUR / 2)
    copy = queue.set_priority(id_, 3)
    (row,) = queue._driver.ask(ReadMessages(*_place(copy)))
    assert {name: getattr(row, name) for name in whole} == whole
    assert nearly(queue.find(copy).due, queue.now + HOUR / 2)
    assert nearly(to_datetime(row.expires), queue.now + HOUR)


def _place(id_):
    wide_row, priority, key = MessageId(id_).locate()
    return wide_row, priority, (key,)


def test_a_firing_keeps_its_id(queue):
    """Its schedule finds it by that. One that `run_now` asked for is any message, and so are others."""
    firings = (FiringId("nightly", generation, 3, 3_000).to_json() for generation in (5, 0))
    planned, manual = queue.send_many([cqueue.Message(b"x", trigger=text) for text in firings]).ids
    result = queue.set_priority_many([planned, manual], 3)
    assert [*result.done] == [manual]
    assert {id_: type(error) for id_, error in result.failed.items()} == {planned: cqueue.BadInput}
    assert "firing of schedule 'nightly'" in str(result.failed[planned])
    assert {found.priority for found in queue.find_many([planned, *result.done.values()]).values()} == {0, 3}


def test_a_message_without_its_body_is_not_copied(queue):
    """It stays as it is."""
    id_ = queue.send(bytes(INLINE_BODY + 1))
    wide_row, _, (key,) = _place(id_)
    queue._driver.ask(DeleteBodies(wide_row, (key,)))
    with pytest.raises(NotDone, match="body cannot be read"):
        queue.set_priority(id_, 3)
    assert MessageId(id_) in {*queue.ids()}


# ── what others do while a message is copied ──


@pytest.mark.parametrize("delay", [NOW, HOUR])
def test_nobody_gets_the_original_of_a_copy_meanwhile(queue, before, delay):
    """It waits, for its own time if that is later: should the process die, it does not come too early."""
    id_, seen = queue.send(b"x", delay=delay), []
    with queue.consumer() as consumer:

        def look():
            seen.append((consumer.receive(), queue.find(id_).next_at - queue.now))

        before(InsertMessages, look)
        assert queue.set_priority(id_, 3)
    ((received, left),) = seen
    assert received == []
    assert left > max(delay - MINUTE, timedelta(milliseconds=changes.COPY_MS / 2))


def test_of_a_held_message_no_copy_is_made(queue, before):
    """Not even for a moment: somebody could get it."""
    id_, made = queue.send(b"x"), []
    before(InsertMessages, lambda: made.append(True))
    with queue.consumer() as consumer:
        held(consumer)
        with pytest.raises(MessageHeld):
            queue.set_priority(id_, 3)
    assert not made


@pytest.fixture
def before(queue, monkeypatch):
    """Do something once, before the first operation of a type: of all, or of those after a copy's insert."""

    def arrange(kind, act):
        waits_for = [kind] if kind is InsertMessages else [InsertMessages, kind]

        def watch(operation):
            if waits_for and type(operation) is waits_for[0]:
                waits_for.pop(0)
                if not waits_for:
                    act()

        monkeypatch.setattr(queue._driver, "store", FaultyStore(queue._driver.store, trouble=watch))

    return arrange


def copies(queue, id_, delay):
    """Let a call copy a message: to another priority, or, if it is delayed, to now."""
    return queue.reschedule(id_, NOW) if delay else queue.set_priority(id_, 3)


AT = pytest.mark.parametrize("at", [ReadMessages, Mutate, DeleteMessages])
DELAY = pytest.mark.parametrize("delay", [NOW, timedelta(days=9)])


@AT
@DELAY
def test_what_is_cancelled_while_it_is_copied_stays_cancelled(queue, before, delay, at):
    """The copy is deleted, and the call finds no message."""
    id_, cancelled = queue.send(b"x", delay=delay), []
    before(at, lambda: cancelled.append(queue.cancel(id_)))
    assert copies(queue, id_, delay) is None
    assert cancelled == [True]
    assert not [*queue.ids()]


@AT
@DELAY
def test_of_two_calls_that_copy_one_message_one_does(queue, before, delay, at):
    """The other one finds no message, and its copy is deleted."""
    id_, made = queue.send(b"x", delay=delay), []
    before(at, lambda: made.append(queue.set_priority(id_, 7)))
    assert copies(queue, id_, delay) is None
    assert made != [None]
    assert [*queue.ids()] == made


def test_of_two_calls_that_cancel_what_waits_one_does(queue, monkeypatch):
    """The other one finds no message, though it had read the row before anybody deleted it."""
    id_, cancelled = queue.send(b"x"), []
    queue.reschedule(id_, HOUR)
    store = queue._driver.store

    def cancel_first(operation):
        if type(operation) is DeleteMessages:
            monkeypatch.setattr(queue._driver, "store", store)
            cancelled.append(queue.cancel(id_))

    monkeypatch.setattr(queue._driver, "store", FaultyStore(store, trouble=cancel_first))
    assert not queue.cancel(id_)
    assert cancelled == [True]


@pytest.mark.parametrize("is_held", [False, True])
def test_a_cancel_beside_a_claim_that_frees_its_slot_is_unknown(queue, monkeypatch, is_held):
    """The claim has found the message deleted. Nobody can tell by which call.

    The message may have been held when the cancel began, and given back since.
    """
    id_ = queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        if not is_held:
            message.nack()
        store, received = queue._driver.store, []

        def claim_then(operation, do):
            done = do()
            if type(operation) is DeleteMessages:
                monkeypatch.setattr(queue._driver, "store", store)
                if is_held:
                    message.nack()
                received.extend(consumer.receive())
            return done

        monkeypatch.setattr(queue._driver, "store", FaultyStore(store, around=claim_then))
        with pytest.raises(OutcomeUnknown, match="by this call or by another one"):
            queue.cancel(id_)
    assert received == []
    assert queue.find(id_) is None


def test_a_message_that_is_held_when_its_ttl_ends_is_there_until_it_comes_back():
    """It was received in time, and its handler runs: look-ups and changes say so."""
    clock = ManualClock(datetime(2031, 5, 1, 12, tzinfo=UTC))
    store = MemoryStore(clock.now_us)
    client = Client(store, driver=BlockingDriver(store, clock, pause=clock.pause))
    queue = client.create_queue("q", cqueue.QueueConfig(keyed=True))
    with queue.consumer() as consumer:
        id_, gone = (queue.send(b"x", ttl=MINUTE, key="k") for _ in range(2))
        (message,) = consumer.receive(1)
        message.extend(HOUR)
        clock.pause(61)
        held_id, other = (id_, gone) if message.id == id_ else (gone, id_)
        assert queue.find(held_id).state == "claimed"
        assert set(queue.find_many([id_, gone])) == {held_id}
        assert queue.get_by_key("k").id == held_id
        assert queue.find(other) is None
        for change in (lambda: queue.set_priority(held_id, 5), lambda: queue.reschedule(held_id, HOUR)):
            with pytest.raises(MessageHeld):
                change()
        assert queue.set_priority(other, 5) is None
        assert (queue.cancel(held_id), queue.cancel(held_id)) == (True, False)
        with pytest.raises(LeaseLost):
            message.extend(HOUR)
        assert message.is_cancelled


@pytest.mark.parametrize("is_called", [False, True])
def test_a_change_that_stands_still_beside_a_claim_loses_no_message(is_called):
    """The claim frees the slot of the deleted original. The copy stays, as nobody knows who deleted it.

    The original has waited long enough by then; or somebody else has it come now.
    """
    clock = ManualClock(datetime(2031, 5, 1, 12, tzinfo=UTC))
    store = MemoryStore(clock.now_us)

    def client_of(store):
        return Client(store, driver=BlockingDriver(store, clock, pause=clock.pause))

    config = cqueue.QueueConfig(shards=1, time_shard=timedelta(hours=1))
    queue = client_of(store).create_queue("q", config)
    received = []
    with queue.consumer() as consumer:
        id_ = queue.send(b"moved", priority=3)
        queue.send(b"urgent")

        def stand_still(operation, do):
            is_cancel = type(operation) is DeleteMessages and not received
            if is_cancel and is_called:
                queue.reschedule(id_, NOW)
            done = do()
            if is_cancel:
                clock.pause(1 if is_called else changes.COPY_MS / 1000 + 1)
                received.extend(message.body for message in consumer.receive(1))
            return done

        slow = client_of(FaultyStore(store, around=stand_still)).queue("q")
        with pytest.raises(OutcomeUnknown, match="stored as"):
            slow.set_priority(id_, 5)
        for _ in range(5):
            clock.pause(60)
            received += [message.body for message in consumer.receive()]
    assert set(received) == {b"urgent", b"moved"}


def test_a_cancel_without_an_answer_whose_slot_was_overwritten_is_unknown(queue, monkeypatch):
    """Nobody can tell any more who took the message out of its slot."""
    first, second = queue.send_many([cqueue.Message(b"1"), cqueue.Message(b"2")]).ids
    queue.reschedule_many([first, second], HOUR)
    store = queue._driver.store

    def apply_without_an_answer(operation):
        if type(operation) is Mutate:
            monkeypatch.setattr(queue._driver, "store", store)
            assert store.execute(operation)
            queue.reschedule(second, 2 * HOUR)
            raise OutcomeUnknown("simulated")

    monkeypatch.setattr(queue._driver, "store", FaultyStore(store, trouble=apply_without_an_answer))
    with pytest.raises(OutcomeUnknown, match="by this call or by another one"):
        queue.cancel(first)
    assert [*queue.ids()] == [second]


@pytest.mark.parametrize("is_settled", [True, False])
def test_what_is_delivered_while_its_copy_is_sent_has_no_copy(queue, before, monkeypatch, is_settled):
    """Where a send takes longer than the original waits: the copy is deleted."""
    monkeypatch.setattr(changes, "COPY_MS", 200)
    id_, got = queue.send(b"x"), []
    with queue.consumer() as consumer:

        def deliver():
            got.extend(held(consumer))
            if is_settled:
                got[0].ack()

        before(InsertMessages, deliver)
        if is_settled:
            assert queue.set_priority(id_, 3) is None
            assert not [*queue.ids()]
        else:
            with pytest.raises(cqueue.MessageHeld):
                queue.set_priority(id_, 3)
            assert [*queue.ids()] == [id_]
            got[0].extend(MINUTE)
    assert [message.id for message in got] == [id_]


@pytest.mark.parametrize("becomes", ["held", "cancelled"])
def test_a_copy_that_was_used_before_its_original_was_missed_is_unknown(queue, before, becomes):
    """It may be delivered, though somebody has cancelled the original."""
    id_ = queue.send(b"x")
    with queue.consumer() as consumer:

        def use():
            assert queue.cancel(id_)
            if becomes == "held":
                held(consumer)
            else:
                (copy,) = queue.ids()
                assert queue.cancel(copy)

        before(ReadMessages, use)
        with pytest.raises(OutcomeUnknown, match="stored as"):
            queue.set_priority(id_, 3)
    assert id_ not in {*queue.ids()}


@pytest.mark.parametrize("failing", [Mutate, DeleteMessages])
@pytest.mark.parametrize("error", [NotDone, OutcomeUnknown])
def test_a_copy_that_cannot_be_deleted_is_unknown(queue, before, monkeypatch, failing, error):
    """It stays, and the error names it."""
    id_ = queue.send(b"x")

    def cancel():
        assert queue.cancel(id_)
        store = queue._driver.store
        fail = FaultyStore(
            store.store, trouble=lambda op: error("simulated") if type(op) is failing else None
        )
        monkeypatch.setattr(queue._driver, "store", fail)

    before(ReadMessages, cancel)
    with pytest.raises(OutcomeUnknown, match="stored as") as caught:
        queue.set_priority(id_, 3)
    (copy,) = queue.ids()
    assert copy in str(caught.value)
    assert isinstance(caught.value.__cause__, NotDone | OutcomeUnknown)


# ── extend ──


def test_what_somebody_holds_is_extended(queue):
    """By anybody, without the message; the holder can still extend and give back."""
    queue.alter(visibility=timedelta(seconds=2))
    id_ = queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        assert queue.extend(id_, MINUTE)
        assert nearly(queue.find(id_).next_at, queue.now + MINUTE)
        assert queue.extend(id_, timedelta(seconds=2)), "never shortened"
        assert queue.find(id_).next_at - queue.now > timedelta(seconds=50)
        consumer.receive(wait=timedelta(seconds=3))
        message.extend(2 * MINUTE)
        assert message.visible_again == queue.find(id_).next_at
        message.nack()
        assert held(consumer)[0].attempt == 2


def test_a_holder_that_extends_does_not_shorten_what_another_client_extended(queue):
    """Neither the holder nor its dispatcher knows of the longer extension until its own one meets it."""
    id_ = queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        assert queue.extend(id_, HOUR)
        message.extend(MINUTE)
        assert message.visible_again == queue.find(id_).next_at
        assert message.visible_again - queue.now > HOUR - MINUTE


def test_what_nobody_holds_is_not_extended(queue):
    """Ready, given back or let expire."""
    id_ = queue.send(b"x")
    with pytest.raises(cqueue.LeaseLost):
        queue.extend(id_, MINUTE)
    queue.alter(visibility=timedelta(seconds=2))
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        until(lambda: queue.now >= message.visible_again)
        with pytest.raises(cqueue.LeaseLost):
            queue.extend(id_, MINUTE)


# ── cancel, while held ──


def test_a_cancelled_message_is_gone_for_its_holder_and_its_neighbours_stay(queue):
    """The holder learns of it with the next change of the lease, which goes on without the message."""
    ids = queue.send_many([cqueue.Message(b"%d" % n) for n in range(3)]).ids
    with queue.consumer() as consumer:
        messages = {message.id: message for message in held(consumer, 3)}
        assert queue.cancel(ids[1])
        with pytest.raises(cqueue.LeaseLost, match="cancelled"):
            messages[ids[1]].extend(MINUTE)
        assert not messages[ids[1]].is_held
        assert messages[ids[1]].is_cancelled
        messages[ids[0]].extend(MINUTE)
        messages[ids[2]].nack()
        assert held(consumer)[0].id == ids[2]
        messages[ids[0]].ack()
        assert not messages[ids[0]].is_cancelled
    assert queue.find(ids[1]) is None
    assert queue.stats(exact=True).live == 1


def test_a_burial_that_began_meanwhile_makes_a_cancel_unknown(queue, monkeypatch):
    """The slot had no time of death when the cancel looked; the dead letter may come all the same."""
    id_ = queue.send(b"x")
    store = queue._driver.store
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        execute, begun = store.execute, []

        def bury_first(operation):
            if isinstance(operation, DeleteMessages) and not begun:
                begun.append(True)
                queue._driver.run(dead._die(queue._catalog.entry(queue.name).spec, message))
            return execute(operation)

        monkeypatch.setattr(store, "execute", bury_first)
        with pytest.raises(OutcomeUnknown, match="dead letter"):
            queue.cancel(id_)
    assert begun


# ── many ──


def test_many_are_changed_at_once(queue):
    """The result says what became of each."""
    ids = queue.send_many([cqueue.Message(b"%d" % n, priority=n % 2) for n in range(100)]).ids
    with queue.consumer() as consumer:
        (mine,) = held(consumer)
        gone = next(id_ for id_ in ids if id_ != mine.id)
        assert queue.cancel(gone)
        result = queue.reschedule_many(ids, HOUR)
        assert result.missing == (gone,)
        assert {id_: type(error) for id_, error in result.failed.items()} == {mine.id: cqueue.MessageHeld}
        assert {*result.done} == {*ids} - {gone, mine.id}
        assert all(id_ == now for id_, now in result.done.items())
        assert consumer.receive(10) == []
        assert {*queue.find_many(ids)} == {*ids} - {gone}
        assert {*queue.extend_many(ids, MINUTE).done} == {mine.id}
        assert len(queue.set_priority_many(ids[-3:], 5).done) == 3
        assert len(queue.cancel_many(ids).done) == 96
    assert queue.stats(exact=True).live == 3


# ── bad input, and what is known ──


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda q, id_: q.reschedule(id_, datetime(2020, 1, 1)), cqueue.BadInput),  # noqa: DTZ001
        (lambda q, id_: q.reschedule(id_, None), cqueue.BadInput),
        (lambda q, id_: q.reschedule(id_, timedelta(days=4000)), cqueue.DelayOutOfRange),
        (lambda q, id_: q.reschedule(id_, timedelta(-1)), cqueue.DelayOutOfRange),
        (lambda q, id_: q.set_priority(id_, 10), cqueue.PriorityOutOfRange),
        (lambda q, id_: q.extend(id_, timedelta(seconds=1)), cqueue.BadInput),
        (lambda q, id_: q.extend(id_, 30), cqueue.BadInput),
        (lambda q, id_: q.cancel_many(id_), cqueue.BadInput),
        (lambda q, _: q.cancel_many(5), cqueue.BadInput),
        (lambda q, id_: q.cancel_many([id_, "nonsense"]), cqueue.InvalidMessageId),
        (lambda q, _: q.cancel_many(map(str, range(10_001))), cqueue.BatchTooLarge),
    ],
)
def test_bad_input_changes_nothing(queue, call, error):
    """It gets a typed error before anything is written."""
    id_ = queue.send(b"x")
    before = queue.find(id_)
    with pytest.raises(error):
        call(queue, id_)
    assert queue.find(id_) == before


def test_what_is_gone_is_not_changed(queue):
    """None and False, and no error."""
    id_ = queue.send(b"x")
    queue.cancel(id_)
    assert queue.reschedule(id_, HOUR) is None
    assert queue.set_priority(id_, 3) is None
    assert not queue.extend(id_, MINUTE)
    assert not queue.cancel(id_)


@pytest.mark.usefixtures("brief_settling", "brief_pauses")
@pytest.mark.parametrize("client", ["memory"], indirect=True)
@pytest.mark.parametrize("error", [NotDone, OutcomeUnknown])
def test_a_change_says_what_is_known(queue, monkeypatch, error):
    """Of a copy that failed the original stays; one that may be there is unknown, and so is its original."""
    id_ = queue.send(b"x")
    store = queue._driver.store
    execute, failing = store.execute, []

    def fail(operation):
        if type(operation) in failing:
            raise error("simulated")
        return execute(operation)

    monkeypatch.setattr(store, "execute", fail)
    failing[:] = [InsertMessages]
    with pytest.raises(error):
        queue.set_priority(id_, 3)
    assert queue.find(id_) is not None
    failing[:] = [Mutate]
    with pytest.raises(error):  # without an answer it may have been applied, and written over since
        queue.reschedule(id_, HOUR)
    with pytest.raises(OutcomeUnknown):
        queue.cancel(id_)  # deleted, but somebody may have read it before
    assert queue.find(id_) is None
    failing[:] = [DeleteMessages]
    id_ = queue.send(b"x")
    with pytest.raises(error):
        queue.cancel(id_)
    with pytest.raises(OutcomeUnknown, match="stored as"):
        queue.set_priority(id_, 3)
    assert MessageId(id_) in {*queue.ids()}
