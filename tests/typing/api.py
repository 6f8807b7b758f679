"""The public types, as an application's type checker sees them. Checked by mypy, never run.

`assert_type` proves what comes back; a line with `type: ignore` proves that a wrong use is found, because an
ignore that ignores nothing is an error itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import assert_type

import cqueue

SECOND = timedelta(seconds=1)

# ── Connecting and queues ──

assert_type(cqueue.__version__, str)
client = cqueue.connect()
assert_type(client, cqueue.Client)
assert_type(cqueue.connect("memory://"), cqueue.Client)
with cqueue.connect("memory://") as entered:
    assert_type(entered, cqueue.Client)
cqueue.connect(b"memory://")  # type: ignore[arg-type]

config = cqueue.QueueConfig(
    shards=4, time_shard=SECOND, visibility=SECOND, max_attempts=5, lease=SECOND, max_shards=8, open_shards=1
)
cqueue.QueueConfig(4)  # type: ignore[call-arg, misc, unused-ignore]
cqueue.QueueConfig(visibility=30)  # type: ignore[arg-type]
config.shards = 5  # type: ignore[misc]

queue = client.create_queue("mail", config, exist_ok=True)
assert_type(queue, cqueue.Queue)
assert_type(client.queue("mail"), cqueue.Queue)
assert_type(client.queues(), list[str])
assert_type(client.delete_queue("mail"), int)
assert_type(queue.name, str)
assert_type(queue.config, cqueue.QueueConfig)
assert_type(queue.paused, bool)
assert_type(queue.dead_letter_name, str)
assert_type(queue.alter(shards=8), cqueue.QueueConfig)
assert_type(queue.purge(), int)
queue.paused = True  # type: ignore[misc]

# ── Sending ──

message_id = queue.send(
    b"hello", delay=SECOND, due=datetime.now(UTC), priority=0, headers={"k": "v"}, ttl=SECOND
)
assert_type(message_id, cqueue.MessageId)
as_text: str = message_id
queue.send("hello")  # type: ignore[arg-type]
queue.send(b"hello", SECOND)  # type: ignore[call-arg, misc, unused-ignore]
queue.send(b"hello", delay=5)  # type: ignore[arg-type]

message = cqueue.Message(b"hello", delay=SECOND, priority=3, headers={"k": "v"}, ttl=SECOND)
result = queue.send_many([message])
queue.send_many(cqueue.Message(b"%d" % i) for i in range(3))
queue.send_many([b"hello"])  # type: ignore[list-item]
assert_type(result, cqueue.SendResult)
assert_type(queue.send_statement(message), cqueue.SendStatement)
assert_type(result.ids, list[cqueue.MessageId | None])
assert_type(result.failed, list[tuple[int, cqueue.CqueueError]])
assert_type(result.remade, int)

# ── Receiving ──

with queue.consumer(poll_interval=SECOND, max_poll_interval=SECOND) as consumer:
    assert_type(consumer, cqueue.Consumer)
    received = consumer.receive(max_messages=10, wait=SECOND)
    assert_type(received, list[cqueue.ReceivedMessage])
    consumer.receive(wait=5)  # type: ignore[arg-type]

    one = received[0]
    assert_type(one.id, cqueue.MessageId)
    assert_type(one.body, bytes)
    assert_type(one.headers, dict[str, str])
    assert_type(one.priority, int)
    assert_type(one.due, datetime)
    assert_type(one.sent_at, datetime)
    assert_type(one.visible_again, datetime)
    assert_type(one.attempt, int)
    assert_type(one.fence, int)

    one.ack()
    one.nack()
    one.nack(delay=SECOND)
    one.snooze(SECOND)
    one.extend(SECOND)
    one.dead("why")
    one.dead()  # type: ignore[call-arg]
    consumer.ack(one)
    consumer.ack(received)
    consumer.ack(each for each in received)
    consumer.nack(received, delay=SECOND)
    consumer.snooze(one, SECOND)
    consumer.extend(received, SECOND)
    consumer.dead(one, "why")
    consumer.ack(one.id)  # type: ignore[arg-type]
    assert_type(consumer.ack_async(received), Future[None])

# ── A delay queue ──

with cqueue.DelayQueue(client, "mail") as delay_queue:
    assert_type(delay_queue, cqueue.DelayQueue)
    assert_type(delay_queue.push([message]), list[cqueue.MessageId])
    assert_type(delay_queue.pop(10, wait=SECOND), list[cqueue.ReceivedMessage])
    assert_type(delay_queue.peek(), list[cqueue.StoredMessage])
    assert_type(delay_queue.ensure(message), bool)
    assert_type(delay_queue.ack("id"), bool)
    assert_type(delay_queue.set_timeout("id", SECOND), cqueue.MessageId | None)
    assert_type(delay_queue.size(), int)
    delay_queue.push(message)  # type: ignore[arg-type]
    delay_queue.pop(wait=5)  # type: ignore[arg-type]
    delay_queue.set_unack_timeout("id", 5)  # type: ignore[arg-type]

# ── Looking ──

found = queue.find("id")
assert_type(found, cqueue.StoredMessage | None)
assert_type(queue.cancel("id"), bool)
assert_type(queue.find_many(["id"]), dict[cqueue.MessageId, cqueue.StoredMessage])
assert_type(queue.reschedule("id", timedelta(hours=1)), cqueue.MessageId | None)
assert_type(queue.reschedule("id", queue.now), cqueue.MessageId | None)
assert_type(queue.set_priority("id", 3), cqueue.MessageId | None)
assert_type(queue.extend("id", timedelta(minutes=1)), bool)
assert_type(queue.cancel_many(["id"]), cqueue.ChangeResult)
assert_type(queue.cancel_many(["id"]).failed, Mapping[cqueue.MessageId, cqueue.CqueueError])
queue.reschedule("id", 5)  # type: ignore[arg-type]
assert_type(list(queue.ids()), list[cqueue.MessageId])
found.body  # type: ignore[union-attr]  # noqa: B018
for stored in queue.peek(10):
    assert_type(stored, cqueue.StoredMessage)
    assert_type(stored.id, cqueue.MessageId)
    assert_type(stored.headers, Mapping[str, str])
    assert_type(stored.state, str)
    assert_type(stored.next_at, datetime)

page = queue.list(cqueue.Where(task="mail", state=("ready", "claimed")), limit=10, token=None)
assert_type(page, cqueue.Page)
assert_type(page.messages, tuple[cqueue.StoredMessage, ...])
assert_type(page.token, str | None)
assert_type(queue.exists({"headers": {"a": "1"}}), bool)

letters = queue.dead_letters
assert_type(letters.groups(), list[cqueue.LetterGroup])
assert_type(letters, cqueue.DeadLetters)
assert_type(letters.list(10, reason="x", task="y"), list[cqueue.DeadLetter])
for letter in letters:
    assert_type(letter.id, cqueue.MessageId)
    assert_type(letter.original_id, cqueue.MessageId | None)
    assert_type(letter.body, bytes)
    letter.reason = "x"  # type: ignore[misc]
outcome = letters.redrive([letters.get("id").id], dry_run=True)
assert_type(outcome, cqueue.LettersResult)
assert_type(outcome.failed, tuple[tuple[cqueue.MessageId, cqueue.CqueueError], ...])
assert_type(letters.drop(everything=True), cqueue.LettersResult)
letters.redrive(7)  # type: ignore[arg-type]

stats = queue.stats(exact=True)
assert_type(stats, cqueue.QueueStats)
assert_type(stats.claimed, int)
assert_type(stats.live, int)
assert_type(stats.oldest, datetime | None)
queue.stats(True)  # type: ignore[call-arg, misc, unused-ignore]

# ── Errors ──

try:
    queue.send(b"hello")
except cqueue.SendUnknown as unknown:
    assert_type(unknown.ids, tuple[str, ...])
    a_family: cqueue.OutcomeUnknown = unknown
except cqueue.NotDone as not_done:
    the_base: cqueue.CqueueError = not_done
except cqueue.BadInput as bad:
    a_value_error: ValueError = bad


# ── asyncio ──


async def with_asyncio() -> None:
    async with cqueue.connect_async("memory://", lazy=True) as client:
        assert_type(client, cqueue.AsyncClient)
        queue = await client.create_queue("mail", config, exist_ok=True)
        assert_type(queue, cqueue.AsyncQueue)
        assert_type(await client.queue("mail", linger=SECOND), cqueue.AsyncQueue)
        assert_type(await client.queues(), list[str])
        assert_type(await queue.config(), cqueue.QueueConfig)
        assert_type(await queue.send(b"hello", delay=SECOND, priority=1), cqueue.MessageId)
        await queue.send("hello")  # type: ignore[arg-type]
        await queue.send(b"hello", delay=5)  # type: ignore[arg-type]
        assert_type(await queue.send_many([message]), cqueue.SendResult)
        assert_type(await queue.find("id"), cqueue.StoredMessage | None)
        assert_type(await queue.alter(shards=8), cqueue.QueueConfig)
        assert_type([id_ async for id_ in queue.ids()], list[cqueue.MessageId])
        async with queue.consumer(poll_interval=SECOND) as consumer:
            assert_type(consumer, cqueue.AsyncConsumer)
            received = await consumer.receive(10, wait=SECOND)
            assert_type(received, list[cqueue.AsyncReceivedMessage])
            await consumer.receive(10, wait=5)  # type: ignore[arg-type]
            await consumer.ack(received)
            await consumer.nack(received[0], delay=SECOND)
            async for one in consumer:
                assert_type(one, cqueue.AsyncReceivedMessage)
                assert_type(one.headers, dict[str, str])
                await one.ack()
        assert_type(await queue.dead_letters.list(), list[cqueue.DeadLetter])
        assert_type(await queue.dead_letters.redrive(everything=True), cqueue.LettersResult)
        assert_type(await queue.schedules.list(), list[cqueue.Schedule])
        log = await client.log("audit")
        assert_type(await log.append("t", b"x"), cqueue.LogId)
        async with log.scan() as scanner:
            assert_type([record async for record in scanner], list[cqueue.LogRecord])
        async with log.follow() as follower:
            assert_type(await follower.poll(SECOND), list[cqueue.LogRecord])
