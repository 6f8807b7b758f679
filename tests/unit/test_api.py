"""The public API, as an application uses it.

What is no matter of arguments alone runs on `memory://` and on a real Cassandra. On memory the cluster's
time can be moved on, so that delays, timeouts and times to live are tested without waiting.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.log import LogConfig
from cqueue.protocol import inspection
from cqueue.protocol.send import INLINE_BODY
from cqueue.store.log_operations import ChangeLog, ReadLog
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import (
    ChangeQueue,
    DeleteMessages,
    HasMessages,
    InsertMessages,
    ListQueues,
    LockState,
    ReadHead,
    ReadQueue,
)
from tests.faulty_store import FaultyStore
from tests.fix_client import STORES
from tests.fix_on_loop import API

KIB, MIB = 1 << 10, 1 << 20
SHORT = cqueue.QueueConfig(visibility=timedelta(seconds=2))
SOON = timedelta(seconds=60)
"""For long polls that end as soon as there is a message: never waited for in full."""


def ms(count):
    return timedelta(milliseconds=count)


def seconds(count):
    return timedelta(seconds=count)


class MovableTime:
    """A client on memory, and a cluster whose time moves on when told."""

    def __init__(self):
        self._ahead_us = 0
        self.client = Client(MemoryStore(lambda: time.time_ns() // 1000 + self._ahead_us))

    def pass_(self, duration):
        self._ahead_us += duration // timedelta(microseconds=1)
        self.client._driver.clock.sync()


@pytest.fixture
def movable():
    movable = MovableTime()
    with movable.client:
        yield movable


@pytest.fixture(params=API)
def client(request):
    """A client of each back end and of each API in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=STORES)
def threads_client(request):
    """A client of each back end in turn, for what the asyncio API does not have."""
    return request.getfixturevalue(f"{request.param}_client")


@pytest.fixture
def name():
    """A queue name that no other test uses."""
    return f"mail-{secrets.token_hex(4)}"


@pytest.fixture
def queue(client, name):
    """A queue with the shortest visibility."""
    return client.create_queue(name, SHORT)


@pytest.fixture
def memory_queue():
    with cqueue.connect("memory://") as client:
        yield client.create_queue("mail", SHORT)


def drain(queue, count):
    """Bodies in the order of delivery: `count` of them, received one by one and acked."""
    bodies = []
    with queue.consumer() as consumer:
        while len(bodies) < count:
            (message,) = consumer.receive(1, wait=SOON)
            bodies.append(message.body)
            message.ack()
        assert consumer.receive() == []
    return bodies


# ── The example of the project's first page ──


def test_the_whole_way(client, name):
    """What the first page shows works as it stands there."""
    config = cqueue.QueueConfig(shards=4, time_shard=seconds(30), visibility=seconds(30), max_attempts=5)
    client.create_queue(name, config)
    queue = client.queue(name)
    delayed = queue.send(b"hello", delay=timedelta(minutes=5), priority=0, headers={"k": "v"})
    assert isinstance(delayed, cqueue.MessageId)

    result = queue.send_many([
        cqueue.Message(b"one", headers={"k": "v"}),
        cqueue.Message(b"bad", priority=10),
        cqueue.Message(b"two", priority=3),
        cqueue.Message(b"three", delay=ms(100)),
        cqueue.Message(b"four"),
    ])  # fmt: skip
    ((index, error),) = result.failed
    assert (index, type(error)) == (1, cqueue.PriorityOutOfRange)
    assert [id_ is None for id_ in result.ids] == [False, True, False, False, False]

    with queue.consumer() as consumer:
        held = {}
        while len(held) < 4:
            for message in consumer.receive(max_messages=100, wait=seconds(5)):
                held[message.body] = message
        first = held[b"one"]
        assert first.id == result.ids[0]
        assert (first.headers, first.priority, first.attempt) == ({"k": "v"}, 0, 1)
        assert first.due - first.sent_at < seconds(1)
        assert first.fence > 0
        consumer.ack([held[b"two"], held[b"four"]])
        first.ack()
        held[b"three"].nack(delay=ms(50))
        (again,) = consumer.receive(wait=SOON)
        assert (again.body, again.attempt) == (b"three", 2)
        again.extend(seconds(60))
        again.dead("why")

    (dead,) = client.queue(queue.dead_letter_name).peek()
    assert (dead.body, dead.headers["cqueue-dead-reason"]) == (b"three", "why")
    assert [message.id for message in queue.peek()] == [delayed]


# ── Queues ──


def test_a_queue_that_does_not_exist_is_not_found(client, name):
    """Opening never creates: a misspelt name is an error, for every call."""
    with pytest.raises(cqueue.QueueNotFound, match=name):
        client.queue(name)
    with pytest.raises(cqueue.QueueNotFound):
        client.delete_queue(name)


def test_creating_an_existing_queue(client, name):
    """QueueExists; with exist_ok it is opened if and only if it has the settings that are asked for."""
    client.create_queue(name, SHORT)
    with pytest.raises(cqueue.QueueExists):
        client.create_queue(name, SHORT)
    assert client.create_queue(name, SHORT, exist_ok=True).config == SHORT
    different = r"another configuration: shards is 4, not 9\. Alter it, or ask for no configuration"
    with pytest.raises(cqueue.QueueExists, match=different):
        client.create_queue(name, replace(SHORT, shards=9), exist_ok=True)


def test_a_program_that_names_some_settings_opens_what_an_operator_has_altered_besides(client, name):
    """A setting that is the default in the program's configuration counts as not named."""
    wanted, kept = cqueue.QueueConfig(visibility=timedelta(minutes=1)), LogConfig(partitions=4)
    queue, log = client.create_queue(name, wanted), client.create_log(name, kept)
    altered = queue.alter(shards=8, history=timedelta(days=1)), log.alter(ttl=timedelta(days=1))
    again = [client.create_queue(name, wanted, exist_ok=True), client.create_log(name, kept, exist_ok=True)]
    assert tuple(one.config for one in again) == altered
    queue.alter(visibility=timedelta(minutes=2))
    with pytest.raises(cqueue.QueueExists, match=r"configuration: visibility is 2m, not 1m\."):
        client.create_queue(name, wanted, exist_ok=True)
    with pytest.raises(cqueue.LogExists, match=r"configuration: partitions is 4, not 8\."):
        client.create_log(name, LogConfig(partitions=8), exist_ok=True)


def test_a_program_that_asks_for_no_configuration_opens_what_an_operator_has_altered(client, name):
    """It creates its queue and its log at each start. Neither loses what was altered, nor its history."""
    queue, log = (create(name, exist_ok=True) for create in (client.create_queue, client.create_log))
    altered = queue.alter(history=timedelta(days=1), shards=8), log.alter(partitions=20)
    again = client.create_queue(name, exist_ok=True), client.create_log(name, exist_ok=True)
    assert tuple(one.config for one in again) == altered
    again[0].send(b"x")
    assert again[0].config.history == timedelta(days=1)
    with pytest.raises(cqueue.QueueExists, match="shards is 8, not 9; history is 1d, not 2d"):
        client.create_queue(name, cqueue.QueueConfig(shards=9, history=timedelta(days=2)), exist_ok=True)


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}])
def test_what_is_no_list_of_messages_is_refused(memory_queue, wrong):
    """Each letter, byte or key would be an entry of its own that fails."""
    with pytest.raises(cqueue.BadInput, match="send_many takes several messages, not one"):
        memory_queue.send_many(wrong)


@pytest.mark.parametrize("bad", ["", "a b", "ä", "a/b", "a@b", "x" * 201, "a\n", ".", ".."])
def test_queue_names_have_limits(bad):
    """1 to 200 of `A-Z a-z 0-9 . _ -` and no directory, else InvalidQueueName; so do those of logs."""
    with cqueue.connect("memory://") as client:
        for create in (client.create_queue, client.create_log):
            kind = "log" if create == client.create_log else "queue"
            with pytest.raises(cqueue.InvalidQueueName, match=f"is not a {kind} name"):
                create(bad)


def test_the_longest_and_oddest_names_work(client):
    """Every allowed character, at full length, names a queue with a dead-letter queue."""
    name = ("Az09._-" + secrets.token_hex(100))[:200]
    queue = client.create_queue(name)
    queue.send(b"x")
    assert drain(client.queue(name), 1) == [b"x"]
    client.delete_queue(name)


def test_names_of_dead_letter_queues_are_taken(client, name):
    """`….dead` cannot be created: each queue has one already."""
    with pytest.raises(cqueue.QueueExists, match="dead-letter"):
        client.create_queue(name + ".dead")


def test_queues_are_listed_in_order(client, name):
    """With their dead-letter queues."""
    for suffix in ("b", "a"):
        client.create_queue(f"{name}-{suffix}")
    mine = [each for each in client.queues() if each.startswith(name)]
    assert mine == [f"{name}-a", f"{name}-a.dead", f"{name}-b", f"{name}-b.dead"]


def test_delete_and_create_again(client, name):
    """Deleting takes all messages and counts them; a queue made anew under the name is empty and works."""
    queue = client.create_queue(name, SHORT)
    first = queue.send(b"old")
    queue.send(b"old", delay=timedelta(days=400))
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.dead("so that the dead-letter queue holds one")
        queue.send(b"old")
        assert client.delete_queue(name) == 3
        with pytest.raises(cqueue.QueueNotFound):
            consumer.receive()
    with pytest.raises(cqueue.QueueNotFound):
        queue.send(b"lost")
    again = client.create_queue(name, cqueue.QueueConfig(time_shard=seconds(1)))
    with pytest.raises(cqueue.BadInput, match="not one of queue"):
        again.find(first)
    again.send(b"new")
    assert drain(again, 1) == [b"new"]
    assert client.queue(again.dead_letter_name).stats(exact=True).live == 0


def test_a_deleted_queue_leaves_nothing_behind(client, name):
    """Nobody retires its wide rows, so the deletion takes what consumers wrote there, too."""
    queue = client.create_queue(name, SHORT)
    queue.send_many([cqueue.Message(b"x"), cqueue.Message(b"x" * 20_000)])
    with queue.consumer() as consumer:
        left = 2
        while left:
            for message in consumer.receive(wait=SOON):
                message.snooze(seconds(60))
                left -= 1
        driver, spec = client._driver, client._catalog.entry(name).spec
        places = [wide_row for wide_row, _ in driver.run(inspection.wide_rows(spec))]
        assert any(driver.ask(ReadHead(place)).slots for place in places)
        client.delete_queue(name)
    heads = [driver.ask(ReadHead(place)) for place in places]
    assert [(head.slots, head.cursors) for head in heads] == [((), {})] * len(places)
    assert {head.lock.state for head in heads if head.lock} == {LockState.RETIRED}  # for an hour
    assert not any(driver.ask(HasMessages(place)) for place in places)


def test_a_consumer_survives_delete_and_create(client, name):
    """A consumer held over the deletion goes on with the new queue of that name."""
    queue = client.create_queue(name)
    with queue.consumer() as consumer:
        queue.send(b"old")
        consumer.receive(wait=SOON)
        client.delete_queue(name)
        client.create_queue(name)
        queue.send(b"new")
        assert [message.body for message in consumer.receive(wait=SOON)] == [b"new"]


def test_alter(client, name):
    """What may change changes at once for this client and is there for the next; the rest is refused."""
    queue = client.create_queue(name)
    queue.alter(visibility=seconds(7), shards=9)
    assert (queue.config.visibility, queue.config.shards) == (seconds(7), 9)
    queue.send_many([cqueue.Message(b"%d" % i) for i in range(20)])
    with queue.consumer() as consumer:
        message = consumer.receive(1, wait=SOON)[0]
        assert message.visible_again - message.due < seconds(8)
        queue.alter(shards=1)
        count = 1
        while count < 20:
            count += len(consumer.receive(100, wait=SOON))
    for changes in (
        {"time_shard": seconds(60)}, {"max_shards": 9}, {"open_shards": 2}, {"colour": 1}, {"shards": 65},
        {"visibility": seconds(1)}, {"max_attempts": 1},
    ):  # fmt: skip
        with pytest.raises(cqueue.ConfigError):
            queue.alter(**changes)
    assert (queue.config.visibility, queue.config.shards) == (seconds(7), 1)


def test_settings_of_a_newer_version_are_kept(threads_client, name):
    """A change by this version keeps the settings that a newer one stored, of queues and of logs.

    `exist_ok` compares what this version knows: who asks for the same settings gets the queue.
    """
    client, driver = threads_client, threads_client._driver
    queue, log = client.create_queue(name, SHORT), client.create_log(name)
    for read, change in ((ReadQueue(name), ChangeQueue), (ReadLog(name), ChangeLog)):
        row = driver.ask(read)
        newer = json.dumps(json.loads(row.config) | {"from_the_future": [1]})
        assert driver.ask(change(row._replace(config=newer), row.version))
    queue.alter(shards=9)
    log.alter(partitions=32)
    stored = [json.loads(driver.ask(read(name)).config) for read in (ReadQueue, ReadLog)]
    assert [each["from_the_future"] for each in stored] == [[1], [1]]
    assert (stored[0]["shards"], stored[1]["partitions"]) == (9, 32)
    wanted = cqueue.QueueConfig(visibility=SHORT.visibility, shards=9)
    assert client.create_queue(name, wanted, exist_ok=True).config == wanted
    assert client.create_log(name, LogConfig(partitions=32), exist_ok=True).config.partitions == 32
    client.delete_log(name)


@pytest.mark.parametrize(
    "values",
    [
        {"shards": 0}, {"shards": 65}, {"shards": 2.0}, {"shards": True}, {"max_shards": 1001},
        {"shards": 9, "max_shards": 8}, {"open_shards": 0}, {"open_shards": 65}, {"max_attempts": 1},
        {"max_attempts": -1}, {"visibility": seconds(1.999)}, {"visibility": timedelta(hours=12, seconds=1)},
        {"visibility": 30}, {"lease": seconds(0.5)}, {"time_shard": seconds(0.5)}, {"time_shard": seconds(7)},
        {"time_shard": timedelta(minutes=90)}, {"time_shard": timedelta(days=31)},
        {"visibility": timedelta(seconds=2, microseconds=1)},
    ],
    ids=str,
)  # fmt: skip
def test_configurations_have_limits(values):
    """A configuration out of range cannot be made; the error names the setting."""
    with pytest.raises(cqueue.ConfigError, match=next(iter(values))):
        cqueue.QueueConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"shards": 1000, "max_shards": 1000}, {"max_attempts": 0}, {"visibility": timedelta(hours=12)},
        {"time_shard": seconds(1)}, {"time_shard": timedelta(hours=5)}, {"time_shard": timedelta(days=30)},
    ],
    ids=str,
)  # fmt: skip
def test_extreme_configurations_work(client, name, values):
    """At the ends of each range a message still comes through."""
    queue = client.create_queue(name, cqueue.QueueConfig(**values))
    queue.send(b"x")
    assert drain(queue, 1) == [b"x"]


def test_pause_and_resume(queue):
    """A paused queue takes sends and gives nothing; resumed, it gives all."""
    queue.pause()
    assert queue.paused
    queue.send(b"x")
    with queue.consumer() as consumer:
        assert consumer.receive(wait=ms(50)) == []
        queue.resume()
        assert not queue.paused
        assert [message.body for message in consumer.receive(wait=SOON)] == [b"x"]


def test_a_held_message_can_be_settled_while_paused(queue):
    """A pause stops deliveries, not what is under way."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        queue.pause()
        message.ack()
    assert queue.find(message.id) is None


def test_purge_leaves_an_empty_queue_that_works(queue):
    """All messages go, the delayed and the held ones too; what is sent afterwards comes."""
    for delay in (None, timedelta(days=1), timedelta(days=3000)):
        queue.send(b"x", delay=delay)
    queue.send(bytes(INLINE_BODY + 1))
    with queue.consumer() as consumer:
        consumer.receive(1, wait=SOON)
        assert queue.purge() == 4
    assert queue.stats(exact=True).live == 0
    queue.send(b"new")
    assert drain(queue, 1) == [b"new"]


# ── Sending ──


def test_bodies_up_to_a_mebibyte(queue):
    """Any bytes, from none to 1 MiB, come back as they were; bytearray and memoryview are copied."""
    bodies = [b"", b"\x00", *map(random.randbytes, (INLINE_BODY, INLINE_BODY + 1, MIB))]
    result = queue.send_many([cqueue.Message(body) for body in [*bodies, bytearray(b"a"), memoryview(b"m")]])
    assert result.failed == []
    got = drain(queue, 7)
    assert sorted(got) == sorted([*bodies, b"a", b"m"])
    assert {type(body) for body in got} == {bytes}


def test_a_body_over_a_mebibyte_is_refused(memory_queue):
    """BodyTooLarge, and nothing is sent."""
    with pytest.raises(cqueue.BodyTooLarge):
        memory_queue.send(bytes(MIB + 1))
    assert memory_queue.stats(exact=True).live == 0


@pytest.mark.parametrize("body", ["text", None, 1])
def test_a_body_is_bytes(memory_queue, body):
    """Text is not encoded by guess: BadInput."""
    with pytest.raises(cqueue.BadInput, match="bytes"):
        memory_queue.send(body)


def test_headers_up_to_their_limits(queue):
    """64 headers, 16 KiB of names and values in UTF-8, come back as they were."""
    many = {f"name-{i:02}": "value ü" for i in range(64)}
    large = {"k": "x" * (16 * KIB - 1)}
    ids = queue.send_many(
        [cqueue.Message(b"many", headers=many), cqueue.Message(b"large", headers=large)]
    ).ids
    assert [queue.find(id_).headers for id_ in ids] == [many, large]
    queue.send(b"none", headers={})
    with queue.consumer() as consumer:
        got = {}
        while len(got) < 3:
            got |= {message.body: message.headers for message in consumer.receive(wait=SOON)}
    assert got == {b"many": many, b"large": large, b"none": {}}


@pytest.mark.parametrize(
    ("headers", "error", "why"),
    [
        ({str(i): "" for i in range(65)}, cqueue.HeadersTooLarge, "65 headers"),
        ({"k": "x" * (16 * KIB)}, cqueue.HeadersTooLarge, "16,385 bytes"),
        ({"k": "ü" * (8 * KIB)}, cqueue.HeadersTooLarge, "16,385 bytes"),
        ({"k": 1}, cqueue.BadInput, "the value of a header is text, not int"),
        ({1: "v"}, cqueue.BadInput, "the name of a header is text, not int"),
        ({"k": None}, cqueue.BadInput, "the value of a header is text, not NoneType"),
    ],
    ids=["count", "bytes", "bytes of UTF-8", "number", "number as name", "none"],
)
def test_headers_have_limits(memory_queue, headers, error, why):
    """More than 64 or 16 KiB: HeadersTooLarge; anything but text: BadInput."""
    with pytest.raises(error, match=why):
        memory_queue.send(b"x", headers=headers)


@pytest.mark.parametrize("text", ["", "x" * 1001, "caf\udce9", "\ud800"])
def test_short_texts_have_limits(memory_queue, text):
    """1 to 1,000 characters that an encoding has; one that is none fails alone, before anything is sent."""
    bad = [cqueue.Message(b"bad", **{field: text}) for field in ("codec", "task", "key", "trigger")]
    bad += [cqueue.Message(b"bad", source=text, due=datetime.now(UTC))]
    result = memory_queue.send_many([*bad, cqueue.Message(b"good")])
    assert [type(error) for _, error in result.failed] == [cqueue.BadInput] * len(bad)
    assert [found.body for found in memory_queue.peek()] == [b"good"]
    with pytest.raises(cqueue.BadInput):
        cqueue.Unique(key=text)


@pytest.mark.parametrize("priority", [-1, 10, True, 1.0, "1", None])
def test_priorities_have_limits(memory_queue, priority):
    """A whole number from 0 to 9, else PriorityOutOfRange."""
    with pytest.raises(cqueue.PriorityOutOfRange):
        memory_queue.send(b"x", priority=priority)


@pytest.mark.parametrize("delay", [timedelta(days=3651), -ms(1)])
def test_delays_have_limits(memory_queue, delay):
    """0 to 10 years, else DelayOutOfRange."""
    with pytest.raises(cqueue.DelayOutOfRange):
        memory_queue.send(b"x", delay=delay)


def test_delay_and_due_fit_together(memory_queue):
    """One of both; a due time needs a zone and lies at most 10 years ahead; a past one means now."""
    now = datetime.now(UTC)
    with pytest.raises(cqueue.BadInput, match="not both"):
        memory_queue.send(b"x", delay=seconds(1), due=now)
    with pytest.raises(cqueue.BadInput, match="time zone"):
        memory_queue.send(b"x", due=now.replace(tzinfo=None))
    with pytest.raises(cqueue.DelayOutOfRange):
        memory_queue.send(b"x", due=now + timedelta(days=3660))
    with pytest.raises(cqueue.BadInput, match="timedelta"):
        memory_queue.send(b"x", delay=5)
    memory_queue.send(b"past", due=datetime(1999, 1, 1, tzinfo=UTC))
    assert drain(memory_queue, 1) == [b"past"]


@pytest.mark.parametrize("ttl", [timedelta(), timedelta(days=3651), 5])
def test_times_to_live_have_limits(memory_queue, ttl):
    """1 ms to 10 years, else BadInput."""
    with pytest.raises(cqueue.BadInput, match="ttl"):
        memory_queue.send(b"x", ttl=ttl)


def test_a_batch_has_at_most_ten_thousand_entries(memory_queue):
    """BatchTooLarge before anything is sent; 10,000 are taken, in order and each with its id."""
    entries = [cqueue.Message(b"%d" % i) for i in range(10_001)]
    with pytest.raises(cqueue.BatchTooLarge):
        memory_queue.send_many(entries)
    assert memory_queue.stats(exact=True).live == 0
    result = memory_queue.send_many(entries[:10_000])
    assert len(set(result.ids)) == 10_000
    assert memory_queue.find(result.ids[7_777]).body == b"7777"
    assert memory_queue.send_many([]).ids == []


def test_each_bad_entry_fails_alone(queue):
    """`failed` names the index and the error of each; the others are stored."""
    entries = [
        (cqueue.Message(b"a"), None),
        (cqueue.Message(bytes(MIB + 1)), cqueue.BodyTooLarge),
        (cqueue.Message("b"), cqueue.BadInput),
        (cqueue.Message(b"c", delay=-ms(1)), cqueue.DelayOutOfRange),
        (cqueue.Message(b"d", headers={"k": "x" * MIB}), cqueue.HeadersTooLarge),
        (cqueue.Message(b"e", priority=-1), cqueue.PriorityOutOfRange),
        (cqueue.Message(b"f", ttl=ms(0)), cqueue.BadInput),
        (cqueue.Message(b"g"), None),
    ]
    result = queue.send_many([message for message, _ in entries])
    failed = [(index, error) for index, (_, error) in enumerate(entries) if error]
    assert [(index, type(error)) for index, error in result.failed] == failed
    assert [index for index, id_ in enumerate(result.ids) if id_ is None] == [index for index, _ in failed]
    assert sorted(drain(queue, 2)) == [b"a", b"g"]


def test_text_that_is_no_unicode_fails_alone(memory_queue):
    """A header that cannot be encoded is bad input, and of one entry only."""
    entries = [cqueue.Message(b"good"), cqueue.Message(b"bad", headers={"k": "\ud800"})]
    assert [index for index, _ in memory_queue.send_many(entries).failed] == [1]


def test_an_entry_that_is_no_message_fails_alone(memory_queue):
    """Bare bytes in `send_many`, the likeliest slip, are bad input."""
    assert [index for index, _ in memory_queue.send_many([cqueue.Message(b"good"), b"bad"]).failed] == [1]


# ── Order, delays, time to live ──


@pytest.mark.slow
def test_a_delayed_message_comes_when_it_is_due(movable):
    """Not before its time, at any length of delay; `due` of the message says when."""
    queue = movable.client.create_queue("mail")
    for days in (0, 1, 3000):
        queue.send(b"%d" % days, delay=timedelta(days=days, minutes=5))
    with queue.consumer() as consumer:
        passed = timedelta()
        for days in (0, 1, 3000):
            assert consumer.receive() == []
            due = timedelta(days=days, minutes=5, seconds=1)
            movable.pass_(due - passed)
            passed = due
            (message,) = consumer.receive(wait=SOON)
            assert message.body == b"%d" % days
            assert message.due > message.sent_at + timedelta(days=days)
            message.ack()
        assert consumer.receive() == []


def test_a_short_delay_on_the_wall_clock(queue):
    """A long poll that has begun before the message is due ends with it."""
    queue.send(b"x", delay=ms(300))
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
    assert datetime.now(UTC) >= message.due - ms(100)  # another machine's clock may have said so
    assert message.due - message.sent_at >= ms(200)  # the clock is asked twice


def test_urgent_messages_come_first_among_those_that_are_due(movable):
    """In one wide row by priority, then by time; being urgent brings no delayed one ahead of its time."""
    config = cqueue.QueueConfig(shards=1, time_shard=timedelta(days=1))
    queue = movable.client.create_queue("mail", config)
    queue.send_many([
        cqueue.Message(b"low"), cqueue.Message(b"urgent but later", priority=0, delay=seconds(5)),
        cqueue.Message(b"lowest", priority=9), cqueue.Message(b"middle", priority=5),
    ])  # fmt: skip
    queue.send(b"low, second")
    bodies = []
    with queue.consumer() as consumer:
        bodies += _take_one(consumer), _take_one(consumer)
        movable.pass_(seconds(6))
        bodies += [_take_one(consumer) for _ in range(3)]
    assert bodies == [b"low", b"low, second", b"urgent but later", b"middle", b"lowest"]


def _take_one(consumer):
    (message,) = consumer.receive(1, wait=SOON)
    message.ack()
    return message.body


def test_all_priorities_arrive(queue):
    """Ten priorities, with delays and without: each message comes once."""
    messages = [
        cqueue.Message(b"%d/%d" % (priority, delay), priority=priority, delay=ms(delay))
        for priority in range(10)
        for delay in (0, 50, 1200)
    ]
    queue.send_many(messages)
    assert sorted(drain(queue, 30)) == sorted(message.body for message in messages)


def test_a_message_past_its_time_to_live_is_not_delivered(movable):
    """It is deleted by who would have received it; one without ttl stays."""
    queue = movable.client.create_queue("mail")
    expiring, staying = queue.send(b"expiring", ttl=seconds(3)), queue.send(b"staying")
    movable.pass_(seconds(4))
    assert drain(queue, 1) == [b"staying"]
    assert queue.find(expiring) is None
    assert queue.find(staying) is None
    assert queue.stats(exact=True).live == 0


def test_within_its_time_to_live_a_message_is_delivered(queue):
    """And acked as any other."""
    queue.send(b"x", ttl=timedelta(days=3650))
    assert drain(queue, 1) == [b"x"]


def test_an_expired_message_is_not_found(movable):
    """None once it is expired, as the docstring says, whether or not somebody has received it."""
    queue = movable.client.create_queue("mail")
    id_ = queue.send(b"x", ttl=seconds(3))
    movable.pass_(seconds(4))
    assert queue.find(id_) is None


# ── Receiving ──


@pytest.mark.parametrize("count", [0, 1001, -1, 1.0])
def test_a_receive_takes_1_to_1000_messages(memory_queue, count):
    """Else BatchTooLarge."""
    with memory_queue.consumer() as consumer, pytest.raises(cqueue.BatchTooLarge):
        consumer.receive(count)


def test_a_receive_gives_no_more_than_asked_for(queue):
    """`max_messages` is an upper bound, and nothing is held beyond it."""
    queue.send_many([cqueue.Message(b"%d" % i) for i in range(50)])
    with queue.consumer() as consumer, queue.consumer() as other:
        first = consumer.receive(7, wait=SOON)
        assert len(first) == 7
        rest = []
        while len(rest) < 43:
            rest += other.receive(1000, wait=SOON)
    assert len({message.body for message in [*first, *rest]}) == 50


def test_no_message_is_held_twice(queue):
    """Two consumers that alternate share the messages between them."""
    queue.alter(visibility=timedelta(hours=1))
    queue.send_many([cqueue.Message(b"%d" % i) for i in range(300)])
    held = []
    with queue.consumer() as one, queue.consumer() as two:
        while len(held) < 300:
            for consumer in (one, two):
                held += consumer.receive(20, wait=ms(20))
        assert one.receive() == two.receive() == []
        assert len({message.id for message in held}) == 300
        one.ack(held)


def test_a_long_poll_waits_and_gives_up(queue):
    """With nothing to give it returns an empty list when its wait is over, and not before."""
    with queue.consumer() as consumer:
        began = time.monotonic()
        assert consumer.receive(wait=ms(200)) == []
        assert 0.2 <= time.monotonic() - began < 30  # and it does not wait for a message for ever


def test_a_closed_consumer(queue):
    """Closing gives back what is held, at once; receiving afterwards is refused, closing again is not."""
    queue.alter(visibility=timedelta(hours=1))
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
    with pytest.raises(cqueue.Closed):
        consumer.receive()
    consumer.close()
    with queue.consumer() as other:
        (again,) = other.receive(wait=SOON)
    assert (again.id, again.attempt) == (message.id, 2)


def test_poll_intervals_have_limits(memory_queue):
    """1 ms to 1 min, the shorter one first."""
    for shortest, longest in ((ms(0), seconds(1)), (seconds(2), seconds(1)), (seconds(1), seconds(61))):
        with pytest.raises(cqueue.BadInput, match="poll"):
            memory_queue.consumer(poll_interval=shortest, max_poll_interval=longest)


# ── What a holder does ──


def test_ack_is_idempotent(queue):
    """Acking twice, alone and in a list, does no harm; a mixed or empty list neither."""
    queue.send_many([cqueue.Message(b"a"), cqueue.Message(b"b")])
    with queue.consumer() as consumer:
        held = []
        while len(held) < 2:
            held += consumer.receive(wait=SOON)
        held[0].ack()
        held[0].ack()
        consumer.ack(held)
        consumer.ack([])
    assert [queue.find(message.id) for message in held] == [None, None]
    assert queue.stats(exact=True).live == 0


def test_ack_async_gives_what_ack_would(threads_client, name):
    """A future that ends when the acks are stored."""
    queue = threads_client.create_queue(name, SHORT)
    queue.send(b"a")
    with queue.consumer() as consumer:
        assert consumer.ack_async(consumer.receive(wait=SOON)).result(10) is None
    assert queue.stats(exact=True).live == 0


def test_what_is_acked_is_not_held_any_more(queue):
    """nack, snooze, extend and dead of an acked message are LeaseLost: nothing comes back to life."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.ack()
        for call in (
            message.nack,
            lambda: message.snooze(seconds(1)),
            lambda: message.extend(seconds(5)),
            lambda: message.dead("why"),
        ):
            with pytest.raises(cqueue.LeaseLost):
                call()
        assert consumer.receive() == []


def test_nack_gives_back_at_once_or_later(movable):
    """The attempt counts; with a delay the message stays away for it."""
    queue = movable.client.create_queue("mail")
    queue.send(b"x")
    with queue.consumer() as consumer:
        consumer.receive(wait=SOON)[0].nack()
        (second,) = consumer.receive(wait=SOON)
        assert second.attempt == 2
        second.nack(timedelta(hours=3))
        assert queue.stats().waiting == 1
        movable.pass_(timedelta(hours=2, minutes=59))
        assert consumer.receive() == []
        movable.pass_(timedelta(minutes=2))
        (third,) = consumer.receive(wait=SOON)
        assert (third.attempt, third.id) == (3, second.id)


def test_a_snooze_uses_no_attempt(movable):
    """However often."""
    queue = movable.client.create_queue("mail", cqueue.QueueConfig(max_attempts=2))
    queue.send(b"x")
    with queue.consumer() as consumer:
        for _ in range(6):
            (message,) = consumer.receive(wait=SOON)
            assert message.attempt == 1
            message.snooze(seconds(60))
            movable.pass_(seconds(61))


def test_one_of_several_can_be_given_back(queue):
    """Messages received together are settled each on its own, in any order."""
    queue.send_many([cqueue.Message(b"%d" % i) for i in range(9)])
    with queue.consumer() as consumer:
        held = []
        while len(held) < 9:
            held += consumer.receive(wait=SOON)
        consumer.nack(held[0:3], delay=timedelta(hours=1))
        consumer.ack(held[3:6])
        consumer.snooze(held[6], timedelta(hours=1))
        consumer.extend(held[7:], seconds(30))
        held[7].dead("why")
        held[8].ack()
        counts = queue.stats(exact=True)
    assert (counts.live, counts.waiting, counts.claimed) == (4, 4, 0)


def test_a_delay_of_a_nack_has_limits(memory_queue):
    """As that of a send."""
    memory_queue.send(b"x")
    with memory_queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        with pytest.raises(cqueue.DelayOutOfRange):
            message.nack(-seconds(1))
        with pytest.raises(cqueue.BadInput):
            message.extend(seconds(1.9))
        with pytest.raises(cqueue.BadInput):
            message.extend(timedelta(hours=13))
        message.ack()


def test_a_message_not_settled_in_time_comes_again(movable):
    """After visibility + ε somebody else gets it, with a higher fence; the first holder has lost it."""
    queue = movable.client.create_queue("mail", SHORT)
    queue.send(b"x")
    with queue.consumer() as one, queue.consumer() as two:
        (first,) = one.receive(wait=SOON)
        assert two.receive() == []
        movable.pass_(seconds(2.6))
        (second,) = two.receive(wait=SOON)
        assert (second.id, second.attempt) == (first.id, 2)
        assert second.fence > first.fence
        for call in (first.nack, lambda: first.extend(seconds(5)), lambda: first.dead("why")):
            with pytest.raises(cqueue.LeaseLost):
                call()
        second.ack()


@pytest.mark.slow
def test_a_lost_lease_on_the_wall_clock(queue):
    """The same with real time, where a timeout is decided by the database."""
    queue.send(b"x")
    with queue.consumer() as one, queue.consumer() as two:
        (first,) = one.receive(wait=SOON)
        (second,) = two.receive(wait=SOON)
        assert (second.id, second.attempt) == (first.id, 2)
        with pytest.raises(cqueue.LeaseLost):
            first.nack()
        second.ack()


def test_a_late_ack_still_deletes(movable):
    """An ack after the timeout means "done", so the message goes, for everybody."""
    queue = movable.client.create_queue("mail", SHORT)
    queue.send(b"x")
    with queue.consumer() as one, queue.consumer() as two:
        (first,) = one.receive(wait=SOON)
        movable.pass_(seconds(3))
        two.receive(wait=SOON)
        first.ack()
        assert queue.find(first.id) is None
        movable.pass_(seconds(3))
        assert one.receive() == two.receive() == []


def test_extend_keeps_a_message(movable):
    """As long as asked for, for all that were received with it; never shorter than before."""
    queue = movable.client.create_queue("mail", SHORT)
    queue.send(b"x")
    with queue.consumer() as one, queue.consumer() as two:
        (message,) = one.receive(wait=SOON)
        message.extend(seconds(60))
        until = message.visible_again
        message.extend(seconds(2))
        assert message.visible_again == until
        movable.pass_(seconds(59))
        assert two.receive() == []
        movable.pass_(seconds(2))
        assert two.receive(wait=SOON)[0].attempt == 2


def test_what_may_have_killed_its_holder_comes_alone(movable):
    """Messages whose holder let them expire come one at a time, until each is settled."""
    queue = movable.client.create_queue("mail", cqueue.QueueConfig(shards=1, visibility=seconds(2)))
    queue.send_many([cqueue.Message(b"%d" % i) for i in range(5)])
    with queue.consumer() as one, queue.consumer() as two:
        assert len(one.receive(wait=SOON)) == 5
        movable.pass_(seconds(3))
        for _ in range(5):
            (message,) = two.receive(wait=SOON)
            assert message.attempt == 2
            assert two.receive() == []
            message.ack()


# ── Dead letters ──


def test_dead_moves_a_message(queue, client):
    """To `<queue>.dead`, whole, with headers that say why, whence, and after how many attempts."""
    body = random.randbytes(INLINE_BODY + 1)
    id_ = queue.send(body, priority=4, headers={"k": "v"})
    with queue.consumer() as consumer:
        consumer.receive(wait=SOON)[0].dead("it is " + "very " * 1000 + "wrong")
    assert queue.find(id_) is None
    dead_letters = client.queue(queue.dead_letter_name)
    with dead_letters.consumer() as consumer:
        (dead,) = consumer.receive(wait=SOON)
        with pytest.raises(cqueue.BadInput, match="dead-letter queue itself"):
            dead.dead("again")
        dead.ack()
    assert (dead.body, dead.priority, dead.headers["k"]) == (body, 4, "v")
    assert dead.headers["cqueue-dead-reason"].startswith("it is very very")
    assert dead.headers["cqueue-dead-queue"] == queue.name
    assert dead.headers["cqueue-dead-attempts"] == "1"
    assert dead.headers["cqueue-dead-id"] == id_
    assert dead_letters.stats(exact=True).live == 0


def test_after_the_last_attempt_a_message_is_dead(queue, client):
    """max_attempts deliveries and no more, whether they end in a nack or a timeout."""
    queue.alter(max_attempts=3)
    queue.send(b"x")
    with queue.consumer() as consumer:
        for attempt in (1, 2, 3):
            (message,) = consumer.receive(wait=SOON)
            assert message.attempt == attempt
            message.nack()
        assert consumer.receive() == []
    (dead,) = client.queue(queue.dead_letter_name).peek()
    assert (dead.body, dead.headers["cqueue-dead-attempts"]) == (b"x", "3")
    assert queue.stats(exact=True).live == 0


def test_timeouts_count_as_attempts(movable):
    """A message that is never settled ends in the dead-letter queue."""
    queue = movable.client.create_queue("mail", cqueue.QueueConfig(max_attempts=2, visibility=seconds(2)))
    queue.send(b"x")
    with queue.consumer() as consumer:
        for _ in range(2):
            assert len(consumer.receive(wait=SOON)) == 1
            movable.pass_(seconds(3))
        assert consumer.receive() == []
    assert [dead.body for dead in movable.client.queue("mail.dead").peek()] == [b"x"]


def test_without_max_attempts_nothing_dies(movable):
    """0 means for ever."""
    queue = movable.client.create_queue("mail", cqueue.QueueConfig(max_attempts=0))
    queue.send(b"x")
    with queue.consumer() as consumer:
        for attempt in range(1, 30):
            (message,) = consumer.receive(wait=SOON)
            assert message.attempt == attempt
            message.nack()


def test_dead_letters_can_be_sent_back(queue, client):
    """Receive them from the dead-letter queue, send them to the queue, ack them."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        consumer.receive(wait=SOON)[0].dead("why")
    with client.queue(queue.dead_letter_name).consumer() as consumer:
        (dead,) = consumer.receive(wait=SOON)
        queue.send(dead.body, priority=dead.priority)
        dead.ack()
    assert drain(queue, 1) == [b"x"]


def test_a_dead_letter_queue_cannot_be_deleted_alone(movable):
    """Its queue could not bury any more: receiving would fail for good."""
    movable.client.create_queue("mail")
    with pytest.raises(cqueue.BadInput, match="dead-letter"):
        movable.client.delete_queue("mail.dead")


# ── Looking ──


def test_find(queue):
    """By id, with body, headers, priority and times, wherever it stands; None once it is acked."""
    id_ = queue.send(bytes(100_000), priority=7, headers={"k": "v"}, delay=timedelta(days=900))
    found = queue.find(id_)
    assert (found.id, found.body, found.headers, found.priority) == (id_, bytes(100_000), {"k": "v"}, 7)
    assert found.due - found.sent_at > timedelta(days=900) - SOON  # the delay counts from the call on
    assert queue.find(str(id_)) == found
    queue.purge()
    assert queue.find(id_) is None


def test_ids_of_other_queues_and_garbage(client, queue, name):
    """BadInput for another queue's id, InvalidMessageId for what is none."""
    other = client.create_queue(f"{name}-other").send(b"x")
    with pytest.raises(cqueue.BadInput, match="not one of queue"):
        queue.find(other)
    mine = queue.send(b"x")
    for garbage in ("", "x", "ä", "a" * 400, mine + "A", mine[1:], mine.lower()):
        with pytest.raises(cqueue.InvalidMessageId):
            queue.find(garbage)


def test_a_short_id_is_for_the_command_line(memory_queue):
    """An id that a table shows is none for a program, and the error says why."""
    with pytest.raises(cqueue.InvalidMessageId, match="only the command line takes short ones"):
        memory_queue.find("73vjgefe")


def test_a_message_id_is_text_that_survives_a_round_trip(memory_queue):
    """As text through files and URLs: it says the same place. No random text is one by accident."""
    id_ = memory_queue.send(b"x", priority=9, delay=timedelta(days=3650))
    again = cqueue.MessageId(str(id_))
    assert again == id_
    assert again.locate() == id_.locate()
    assert again.locate().priority == 9
    assert set(id_) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    rng = random.Random(7)
    for _ in range(5000):
        text = urlsafe_b64encode(rng.randbytes(rng.randrange(70))).decode().rstrip("=")
        with pytest.raises(cqueue.InvalidMessageId):
            cqueue.MessageId(text).locate()


def test_peek(queue):
    """The first messages in order of time shard and priority, with their state, receiving none."""
    queue.send(b"now")
    queue.send(b"later", delay=timedelta(hours=2))
    queue.send(b"much later", delay=timedelta(days=2000))
    assert [(m.body, m.state) for m in queue.peek()] == [
        (b"now", "ready"), (b"later", "delayed"), (b"much later", "delayed"),
    ]  # fmt: skip
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        assert queue.peek(1)[0].state == "claimed"
        message.nack(timedelta(hours=1))
        assert queue.peek(1)[0].state == "waiting"
    for limit in (0, 10_001):
        with pytest.raises(cqueue.BadInput):
            queue.peek(limit)


def test_stats(queue):
    """Counts of every state, exactly and as estimates."""
    queue.send_many([cqueue.Message(b"x") for _ in range(5)])
    queue.send(b"later", delay=timedelta(hours=2))
    with queue.consumer() as consumer:
        held = []
        while len(held) < 5:
            held += consumer.receive(5, wait=SOON)
        held[0].ack()
        consumer.nack(held[1:3], timedelta(hours=1))
        ready = queue.send(b"ready")
        exact, cheap = queue.stats(exact=True), queue.stats()
        assert (exact.live, exact.claimed, exact.waiting) == (6, 2, 2)
        assert (exact.ready, exact.delayed, exact.future_wide_rows) == (1, 1, 1)
        assert exact.oldest == queue.find(ready).due
        assert cheap.waiting == 2
        assert cheap.claimed >= 2
        assert (cheap.ready, cheap.delayed, cheap.oldest) == (1, 1, exact.oldest)
        assert cheap.live == cheap.ready + cheap.delayed + cheap.claimed + cheap.waiting
        assert (cheap.exact, cheap.at_least, exact.exact) == (False, frozenset(), True)
        held[3].dead("no")
        assert (queue.stats().dead, queue.stats(exact=True).dead) == (1, 1)
        assert cheap.wide_rows == exact.wide_rows >= 2


# ── Clients ──


def test_memory_stores_by_name():
    """`memory://name` is one store for all of a process; `memory://` is nobody else's."""
    name = secrets.token_hex(4)
    with cqueue.connect(f"memory://{name}") as one, cqueue.connect(f"memory://{name}") as two:
        one.create_queue("mail").send(b"x")
        assert drain(two.queue("mail"), 1) == [b"x"]
    with cqueue.connect("memory://") as other, pytest.raises(cqueue.QueueNotFound):
        other.queue("mail")


@pytest.mark.parametrize(
    "url", ["postgres://x", "cassandra://", "cassandra://h/Shop", "cassandra://h/k?speed=9"]
)
def test_a_url_that_cannot_be_read(url):
    """ConfigError before anything is connected."""
    with pytest.raises(cqueue.ConfigError):
        cqueue.connect(url)


def test_a_send_wakes_a_consumer_of_the_same_process(queue):
    """A consumer that has backed off to its longest interval need not sleep it to the end."""
    from threading import Timer

    with queue.consumer(poll_interval=seconds(30), max_poll_interval=seconds(60)) as consumer:
        timer = Timer(0.1, queue.send, [b"x"])
        timer.start()
        try:
            (message,) = consumer.receive(wait=seconds(20))
        finally:
            timer.join()
        message.ack()


def test_a_closed_client_says_so():
    """Closed, not an outage: nobody should retry it."""
    client = cqueue.connect("memory://")
    queue = client.create_queue("mail")
    client.close()
    with pytest.raises(cqueue.Closed):
        queue.send(b"x")


# ── Wrong types, stale configurations ──


@pytest.mark.parametrize(
    "entry",
    [
        cqueue.Message(b"", due="tomorrow"),
        cqueue.Message(b"", delay=5),
        cqueue.Message(b"", headers=[("a", "b")]),
        cqueue.Message(b"", ttl=5),
        cqueue.Message("text"),
    ],
)
def test_a_wrong_type_fails_alone(memory_queue, entry):
    """It is bad input of that entry; the others are sent."""
    result = memory_queue.send_many([cqueue.Message(b"good"), entry])
    assert [(index, isinstance(error, cqueue.BadInput)) for index, error in result.failed] == [(1, True)]
    assert result.ids[0]


def test_wrong_types_are_bad_input(memory_queue):
    """Wherever a duration, a number or a configuration is asked for."""
    with memory_queue.consumer() as consumer, pytest.raises(cqueue.BadInput):
        consumer.receive(wait=5)
    for wrong in (
        lambda: memory_queue.consumer(poll_interval=1),
        lambda: memory_queue.peek("3"),
    ):
        with pytest.raises(cqueue.BadInput):
            wrong()
    with cqueue.connect("memory://") as client:
        with pytest.raises(cqueue.ConfigError):
            client.create_queue("q", {"shards": 4})
        with pytest.raises(cqueue.InvalidQueueName):
            client.queue(5)


@pytest.mark.parametrize("read", [ReadQueue, ListQueues])
def test_a_configuration_read_during_a_change_does_not_stay(read):
    """A pause that falls between a read and its answer is obeyed all the same."""
    from cqueue.client import Client
    from tests.faulty_store import FaultyStore

    meddling = []

    def meddle(operation, do):
        result = do()
        if meddling and isinstance(operation, read):
            meddling.pop()()
        return result

    store = FaultyStore(around=meddle)
    admin, client = Client(store), Client(store)
    admin.create_queue("mail")

    def pause_and_poll():
        admin.queue("mail").pause()
        client._catalog._poll()

    client._catalog._poll()
    meddling.append(pause_and_poll)
    if read is ListQueues:
        client.queues()
    assert client.queue("mail").paused
    assert not meddling


def test_visibility_leaves_room_for_the_clocks():
    """Four times the deployment's skew at least, when a queue is made and when it is altered."""
    from cqueue.client import Client
    from cqueue.store.memory import DEPLOYMENT, MemoryStore

    store = MemoryStore()
    store._deployment = DEPLOYMENT._replace(skew_ms=1000)
    client = Client(store)
    with pytest.raises(cqueue.ConfigError, match="4000 ms"):
        client.create_queue("mail", cqueue.QueueConfig(visibility=timedelta(seconds=3)))
    queue = client.create_queue("mail")
    with pytest.raises(cqueue.ConfigError, match="4000 ms"):
        queue.alter(visibility=timedelta(seconds=3))


def test_a_reason_that_no_encoding_has_buries_all_the_same(client, queue):
    """A dead letter's reason may come from anywhere; what cannot be stored of it is written out."""
    queue.send(b"x")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=SOON)
        message.dead("bad name: \ud800", {"trace": "in \udfff"})
    (letter,) = client.queue(queue.dead_letter_name).peek()
    assert letter.headers["cqueue-dead-reason"] == r"bad name: \ud800"
    assert letter.headers["trace"] == "in ?"


def test_send_many_async_gives_what_send_many_would(threads_client, name):
    """Results and errors, through a future."""
    queue = threads_client.create_queue(name, SHORT)
    several = [queue.send_many_async([cqueue.Message(b"%d" % n)] * 3) for n in range(4)]
    assert [len(one.result(10).ids) for one in several] == [3] * 4
    mixed = queue.send_many_async([cqueue.Message(b"good"), cqueue.Message(b"bad", priority=99)]).result(10)
    assert [(index, type(error)) for index, error in mixed.failed] == [(1, cqueue.PriorityOutOfRange)]
    with pytest.raises(cqueue.BatchTooLarge):
        queue.send_many_async([cqueue.Message(b"")] * 10_001).result(10)
    with pytest.raises(cqueue.BadInput, match="several messages"):
        queue.send_many_async(cqueue.Message(b"one")).result(10)
    assert queue.stats(exact=True).live == 13


def test_a_closed_client_sends_nothing_more(name):
    """What was under way is stored before it closes."""
    client = cqueue.connect("memory://")
    queue = client.create_queue(name)
    several = [queue.send_many_async([cqueue.Message(b"m")]) for _ in range(20)]
    client.close()
    assert [one.done() and not one.result().failed for one in several] == [True] * 20
    with pytest.raises(cqueue.Closed):
        queue.send_many_async([cqueue.Message(b"late")])


def test_a_close_gives_up_acks_that_have_not_begun_in_time(monkeypatch):
    """Of a thousand each would take all of its time while Cassandra does not answer: more than an hour."""
    store, begun, go_on = FaultyStore(), threading.Semaphore(0), threading.Event()
    client = Client(store)
    queue = client.create_queue("q")
    queue.send_many([cqueue.Message(b"m")] * 5)
    consumer = queue.consumer()
    messages = consumer.receive(5, wait=SOON)

    def hang(operation):
        if isinstance(operation, DeleteMessages):
            begun.release()
            go_on.wait()

    store.trouble = hang
    acks = [consumer.ack_async(message) for message in messages]
    assert all(begun.acquire(timeout=60) for _ in range(2))
    monkeypatch.setattr(client._driver, "deadline_s", 0.05)
    closing = threading.Thread(target=client.close)
    closing.start()
    for ack in acks[2:]:
        with pytest.raises(cqueue.Closed):
            ack.result(60)
    go_on.set()
    closing.join(60)
    assert [ack.result(60) for ack in acks[:2]] == [None, None]


@pytest.mark.parametrize("is_away", [True, False])
def test_a_close_gives_up_queued_sends_only_if_cassandra_answers_nothing(monkeypatch, is_away):
    """A slow cluster stores all of them; of one that is away, each pair would take 10 s of the close."""
    store, begun, asked, go_on = (
        FaultyStore(),
        threading.Semaphore(0),
        threading.Semaphore(0),
        threading.Event(),
    )
    client = Client(store)
    queue = client.create_queue("q")

    def hang(operation):
        if isinstance(operation, InsertMessages):
            begun.release()
            go_on.wait()

    def answered_s(_driver):
        asked.release()
        return -math.inf if is_away else math.inf

    store.trouble = hang
    sends = [queue.send_many_async([cqueue.Message(b"m")]) for _ in range(5)]
    assert all(begun.acquire(timeout=60) for _ in range(2))
    monkeypatch.setattr(
        type(client._driver), "answered_s", property(answered_s, lambda *_: None), raising=False
    )
    monkeypatch.setattr(client._driver, "deadline_s", 0.05)
    closing = threading.Thread(target=client.close)
    closing.start()
    assert asked.acquire(timeout=60)
    assert is_away or asked.acquire(timeout=60)
    client._driver.deadline_s = 60.0
    errors = [send.exception(60) for send in sends[2:]] if is_away else []
    go_on.set()
    closing.join(60)
    assert all(isinstance(error, cqueue.NotDone) for error in errors)
    assert not any(send.exception(60) or send.result().failed for send in sends[: 2 if is_away else 5])


def test_an_ack_that_is_done_may_close_the_client():
    """On the thread that acks, whose own call has not quite ended then."""
    client = cqueue.connect("memory://")
    queue, closed = client.create_queue("q"), threading.Event()
    queue.send(b"m")
    (message,) = queue.consumer().receive(wait=SOON)
    client._driver.deadline_s = 600.0
    queue.consumer().ack_async(message).add_done_callback(lambda _: (client.close(), closed.set()))
    assert closed.wait(60)


def test_a_client_that_is_older_than_the_format_stops(name, monkeypatch):
    """It would misread what others store; what it holds can still be acked."""
    monkeypatch.setattr("cqueue.runtime.catalog.MAX_AGE_S", 0.0)
    store = MemoryStore()
    with Client(store) as client:
        queue = client.create_queue(name)
        queue.send(b"held")
        with queue.consumer() as consumer:
            (held,) = consumer.receive(1)
            store._deployment = store._deployment._replace(format=store._deployment.format + 1)
            with pytest.raises(cqueue.SchemaMismatch, match="upgrade cqueue"):
                queue.send(b"late")
            with pytest.raises(cqueue.SchemaMismatch, match="upgrade cqueue"):
                consumer.receive(1)
            held.ack()
