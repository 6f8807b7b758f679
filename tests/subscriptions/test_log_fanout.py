"""Test feeding queues from a log: each record is one message, however often it is handed out."""

from datetime import timedelta

import pytest

import cqueue
from cqueue.errors import BadInput, SchemaMismatch
from cqueue.log import LogConfig
from cqueue.store.operations import InsertMessages
from tests.subscriptions.subscribing import Member, fill, lose_answers


def received(queue, store):
    """Receive and ack everything in the queue."""
    found = []
    with queue.consumer() as consumer:
        for _ in range(20):
            messages = consumer.receive(1000)
            found += messages
            consumer.ack(messages)
            store.pass_time(seconds=1)
    return found


def numbers(messages):
    return sorted(int(message.body) for message in messages)


def test_each_record_becomes_one_message_in_each_queue(client, log, store):
    queues = [client.create_queue(name) for name in ("mail", "stock")]
    fill(log, store, 50, headers={"a": "1"}, key="k")
    Member(client, cqueue.feed(*queues)).live()
    assert all(queue.config.derived_sends for queue in queues)
    for queue in queues:
        messages = received(queue, store)
        assert numbers(messages) == list(range(50))
        first = min(messages, key=lambda message: int(message.body))
        assert first.headers == {"a": "1", "cqueue-topic": "t0"}
        assert first.key == "k"
        assert first.due == next(iter(log.scan())).time


def test_a_record_handed_out_again_is_no_second_message(client, log, store):
    """Neither before nor after the ack, nor through another subscription."""
    queue = client.create_queue("mail")
    fill(log, store, 30)
    member = Member(client, cqueue.feed(queue))
    member.live()
    member.subscription.seek("earliest")
    member.live()
    assert numbers(received(queue, store)) == list(range(30))
    member.subscription.seek("earliest")
    member.live()
    Member(client, cqueue.feed(queue), name="another").live()
    assert received(queue, store) == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_send_without_an_answer_is_repeated(client, log, store, stored):
    """There is one message, whether the first send was stored or not."""
    queue = client.create_queue("mail")
    fill(log, store, 30)
    lose_answers(store, InsertMessages, 12, stored=stored)
    Member(client, cqueue.feed(queue)).live(30)
    assert numbers(received(queue, store)) == list(range(30))


def test_topics_and_messages_can_be_chosen(client, log, store):
    queue = client.create_queue("mail")
    fill(log, store, 30)

    def message(record):
        return cqueue.Message(record.body, task="send", priority=3, delay=timedelta(hours=1))

    Member(client, cqueue.feed(queue, topics=["t1"], message=message)).live()
    messages = received(queue, store)
    assert numbers(messages) == list(range(1, 30, 3))
    assert {(each.task, each.priority) for each in messages} == {("send", 3)}


def test_what_a_queue_does_not_take_goes_to_the_dead_letter_log(client, log, store):
    """Only the refused record does; its neighbours are sent."""
    queue = client.create_queue("mail")
    fill(log, store, 4, partition=0)
    log.append("t", b"4", partition=0, headers={f"h{n}": "x" for n in range(64)})
    store.pass_time(seconds=5)
    Member(client, cqueue.feed(queue)).live()
    assert numbers(received(queue, store)) == [0, 1, 2, 3]
    (letter,) = client.log("events.dead").scan()
    assert letter.body == b"4"
    assert "HeadersTooLarge" not in letter.headers["cqueue-dead-reason"]


def test_what_an_operator_can_mend_rejects_no_record(client, log, store):
    """A missing column, for example: records are tried as often as the subscription says, and sent then."""
    queue = client.create_queue("mail")
    fill(log, store, 3, partition=0)
    left = [None] * 3

    def trouble(operation):
        if type(operation) is InsertMessages and left:
            left.pop()
            raise SchemaMismatch("table messages lacks a column")

    store.trouble = trouble
    Member(client, cqueue.feed(queue)).live(10)
    assert numbers(received(queue, store)) == [0, 1, 2]
    assert client.logs() == ["events"]


def test_a_record_that_is_too_old_to_be_sent_once_is_rejected(client, store):
    log = client.create_log("events", LogConfig(partitions=1))
    queue = client.create_queue("mail")
    fill(log, store, 1)
    store.pass_time(days=1)
    fill(log, store, 1, start=1)
    Member(client, cqueue.feed(queue)).live(10)
    assert numbers(received(queue, store)) == [1]
    (letter,) = client.log("events.dead").scan()
    assert "gc_grace" in letter.headers["cqueue-dead-reason"]


@pytest.mark.parametrize("queues", [(), ("mail",)])
def test_feeding_no_queue_is_refused(queues):
    with pytest.raises(BadInput, match="queues"):
        cqueue.feed(*queues)
