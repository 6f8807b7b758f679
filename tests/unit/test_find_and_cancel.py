"""`find`, `ids` and `cancel` of a queue: where a message stands, and that it does not come any more."""

import secrets
from datetime import timedelta

import pytest

import cqueue
from cqueue.errors import OutcomeUnknown
from cqueue.message import MessageId
from cqueue.protocol.send import INLINE_BODY
from cqueue.store.operations import DeleteBodies, DeleteMessages, ReadBodies
from tests.fix_on_loop import API
from tests.unit.holding import held

SOON = timedelta(seconds=10)
HOUR = timedelta(hours=1)


@pytest.fixture(params=API)
def client(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def queue(client):
    return client.create_queue(f"q-{secrets.token_hex(4)}")


def test_find_says_how_a_message_stands(queue):
    """Task, key and codec as sent; state, attempts and the next time as its slot says."""
    sent = cqueue.Message(b"{}", task="mail", key="user-7", codec="json", priority=3)
    (id_,) = queue.send_many([sent]).ids
    ready = queue.find(id_)
    assert (ready.task, ready.key, ready.codec, ready.priority) == ("mail", "user-7", "json", 3)
    assert (ready.state, ready.attempts, ready.next_at) == ("ready", 0, ready.due)
    with queue.consumer() as consumer:
        (message,) = held(consumer)
        claimed = queue.find(id_)
        assert (claimed.state, claimed.attempts) == ("claimed", 1)
        assert claimed.next_at == message.visible_again
        message.nack(HOUR)
    waiting = queue.find(id_)
    assert (waiting.state, waiting.attempts) == ("waiting", 1)
    assert abs(waiting.next_at - queue.now - HOUR) < timedelta(minutes=1)
    assert waiting.due == ready.due
    assert queue.peek() == [waiting]


def test_find_of_a_delayed_message(queue):
    """It may be delivered when it is due."""
    found = queue.find(queue.send(b"x", delay=HOUR))
    assert (found.state, found.attempts, found.next_at) == ("delayed", 0, found.due)


def test_ids_are_those_of_all_messages(queue):
    """Whatever their priority and due time, alone or sharing a row."""
    sent = queue.send_many([cqueue.Message(b"%d" % n, priority=n % 3) for n in range(100)]).ids
    sent += [queue.send(b"later", delay=timedelta(days=900))]
    assert sorted(queue.ids()) == sorted(sent)


@pytest.mark.parametrize("delay", [timedelta(), HOUR])
def test_a_cancelled_message_does_not_come(queue, delay):
    """Not even to a consumer of the process that has just sent it, which claims unread."""
    with queue.consumer() as consumer:
        queue.send(b"read")
        consumer.ack(consumer.receive(wait=SOON))
        gone = queue.send(b"gone", delay=delay)
        assert queue.cancel(gone)
        assert consumer.receive() == []
        assert queue.find(gone) is None
        assert not queue.cancel(gone), "it is gone already"
        acked = queue.send(b"sent since")
        (message,) = held(consumer)
        assert message.id == acked
        message.ack()
    assert not queue.cancel(acked)
    assert queue.stats(exact=True).live == 0


def test_one_of_many_that_were_sent_together_is_cancelled(queue):
    """Those that share its row stay."""
    sent = queue.send_many([cqueue.Message(b"%d" % n) for n in range(50)]).ids
    assert queue.cancel(sent[17])
    with queue.consumer() as consumer:
        assert sorted(message.id for message in held(consumer, 49)) == sorted({*sent} - {sent[17]})
        assert consumer.receive() == []


def test_a_message_that_is_held_is_cancelled_for_its_next_time(queue):
    """Its handler goes on and may ack; a nack says that the message is cancelled."""
    first, second = queue.send(b"first"), queue.send(b"second")
    with queue.consumer() as consumer:
        messages = {message.id: message for message in held(consumer, 2)}
        assert queue.cancel(first)
        assert queue.cancel(second)
        messages[first].ack()
        with pytest.raises(cqueue.LeaseLost, match="cancelled"):
            messages[second].nack()
        assert messages[second].is_cancelled
        queue.send(b"third")
        assert [message.body for message in held(consumer)] == [b"third"]
    assert queue.stats(exact=True).live == 1


def test_a_cancelled_message_leaves_no_body(client, queue):
    """One that stands apart goes with it."""
    id_ = queue.send(bytes(INLINE_BODY + 1))
    wide_row, _, key = MessageId(id_).locate()
    assert queue.cancel(id_)
    assert client._driver.ask(ReadBodies(wide_row, (key,))) == {}


def test_an_expired_message_is_no_more(queue, monkeypatch):
    """It would not have been delivered: nothing was cancelled."""
    id_ = queue.send(b"x", ttl=HOUR)
    later_us = queue._driver.clock.now_us() + 2 * HOUR // timedelta(microseconds=1)
    monkeypatch.setattr(queue._driver.clock, "now_us", lambda **_: later_us)
    assert not queue.cancel(id_)
    assert queue.find(id_) is None


def test_cancel_refuses_what_is_no_id_of_the_queue(client, queue):
    """Nothing of another queue is deleted by mistake."""
    other = client.create_queue(f"{queue.name}-other")
    id_ = other.send(b"x")
    with pytest.raises(cqueue.BadInput, match="not one of queue"):
        queue.cancel(id_)
    with pytest.raises(cqueue.InvalidMessageId):
        queue.cancel("nonsense")
    assert other.find(id_) is not None


@pytest.mark.usefixtures("brief_settling", "brief_pauses")
@pytest.mark.parametrize("client", ["memory_client"], indirect=True)
def test_cancel_says_what_is_known(queue, monkeypatch):
    """An answer that is missing is an unknown outcome; a body that stays is none, its message is gone."""
    store, failing = queue._driver.store, DeleteMessages
    execute = store.execute

    def lie(operation):
        result = execute(operation)
        if isinstance(operation, failing):
            raise OutcomeUnknown("no answer")
        return result

    monkeypatch.setattr(store, "execute", lie)
    monkeypatch.setattr(store, "together", lambda operations: [_result(lie, one) for one in operations])
    with pytest.raises(OutcomeUnknown):
        queue.cancel(queue.send(b"x"))
    failing = DeleteBodies
    assert queue.cancel(queue.send(bytes(INLINE_BODY + 1)))


def _result(call, operation):
    try:
        return call(operation)
    except OutcomeUnknown as exc:
        return exc
