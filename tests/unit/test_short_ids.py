"""Short forms of message ids: where they are looked for."""

from datetime import timedelta

import pytest

from cqueue.cli.short_ids import message_ids
from cqueue.client import Client
from cqueue.errors import QueueNotFound
from cqueue.message import short
from cqueue.store.memory import MemoryStore


@pytest.fixture
def client():
    """Queues a and q; a is deleted as soon as all were listed."""
    with Client(MemoryStore()) as client:
        for name in ("a", "q"):
            client.create_queue(name)
        listed = client.queues

        def list_and_delete():
            names = listed()
            client.delete_queue("a")
            return names

        client.queues = list_and_delete
        yield client


def test_a_queue_that_is_deleted_meanwhile_is_left_out(client):
    """The message stands in another one."""
    id_ = client.queue("q").send(b"x")
    assert message_ids(client, [short(id_)], None) == {short(id_): id_}


def test_a_queue_that_is_deleted_meanwhile_has_no_letters(client):
    """Nor does it end the search among the letters of the others."""
    queue = client.queue("q")
    id_ = queue.send(b"x")
    with queue.consumer() as consumer:
        consumer.dead(consumer.receive(1, wait=timedelta(seconds=20)), "no use")
    (letter,) = queue.dead_letters.list()
    assert message_ids(client, [short(id_)], None) == {short(id_): letter.id}


def test_a_queue_that_is_named_and_is_gone_is_told(client):
    """To find nothing in it would say that the message is done."""
    with pytest.raises(QueueNotFound):
        message_ids(client, ["abcd"], "gone")
