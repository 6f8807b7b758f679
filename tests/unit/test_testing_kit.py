"""Clients in memory, whose clock moves. The fixtures are tested in dispatcher/test_pytest_plugin.py."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.testing import MemoryClient, memory_async

DAY = timedelta(days=1)


def received(queue, count=10):
    with queue.consumer() as consumer:
        messages = consumer.receive(count)
        consumer.ack(messages)
    return [message.body for message in messages]


def test_the_clock_stands_still_until_it_is_moved():
    """A delayed message comes when its time has come, and not before."""
    began = datetime(2030, 1, 1, tzinfo=UTC)
    with MemoryClient(now=began) as client:
        queue = client.create_queue("mail")
        queue.send(b"later", delay=DAY)
        client.advance(DAY - timedelta(seconds=1))
        assert received(queue) == []
        client.advance(timedelta(seconds=1))
        assert received(queue) == [b"later"]
        assert client.now - began < DAY + timedelta(seconds=1)
        with pytest.raises(cqueue.BadInput):
            client.advance(-DAY)


def test_a_timeout_passes_when_the_clock_is_moved():
    """What is not settled within its visibility comes again, with the next attempt."""
    with MemoryClient() as client:
        queue = client.create_queue("mail", cqueue.QueueConfig(visibility=timedelta(hours=1)))
        queue.send(b"one")
        consumer = queue.consumer()
        (first,) = consumer.receive()
        client.advance(timedelta(minutes=59))
        assert received(queue) == []
        client.advance(timedelta(minutes=2))
        with queue.consumer() as other:
            (again,) = other.receive()
            assert (again.body, again.attempt) == (b"one", 2)
            with pytest.raises(cqueue.LeaseLost):
                first.extend(timedelta(hours=1))


def test_messages_come_in_the_order_of_their_sends():
    """Also many, sent one by one and together."""
    with MemoryClient() as client:
        queue = client.create_queue("mail")
        for number in range(20):
            queue.send(b"%02d" % number)
        queue.send_many([cqueue.Message(b"%02d" % number) for number in range(20, 40)])
        assert received(queue, 100) == [b"%02d" % number for number in range(40)]


def test_records_of_a_log_are_stable_when_the_clock_has_moved():
    """A scan reads what is older than a few seconds, at once in real time."""
    with MemoryClient() as client:
        log = client.create_log("audit")
        log.append("t", b"one")
        with log.scan() as scanner:
            assert list(scanner) == []
        client.advance(timedelta(seconds=10))
        with log.scan() as scanner:
            assert [record.body for record in scanner] == [b"one"]


def test_two_clients_in_memory_share_nothing():
    """Each has a store and a clock of its own."""
    with MemoryClient() as one, MemoryClient() as other:
        one.create_queue("mail")
        one.advance(DAY)
        assert other.queues() == []
        assert one.now - other.now > timedelta(hours=23)


def test_the_same_for_asyncio():
    """One clock for both APIs."""

    async def story():
        memory = MemoryClient()
        async with memory_async(memory) as client:
            queue = await client.create_queue("mail")
            await queue.send(b"later", delay=DAY)
            memory.advance(DAY)
            async with queue.consumer() as consumer:
                (message,) = await consumer.receive()
                await message.ack()
            assert await queue.now() == memory.now
            return message.body

    assert asyncio.run(story()) == b"later"
