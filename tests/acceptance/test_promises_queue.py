"""What a queue promises about order, time to live, cost and shards, on a real Cassandra.

`docs/reference/proof.md` names these tests beside the promises.
"""

# ruff: noqa: S608 - the CQL is put together from names of this module

import random
import threading
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.bench.counting import CountingStore
from cqueue.client import Client, open_cassandra
from cqueue.testing.clock import ManualClock
from tests.fix_dispatcher import until

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(120)]

ONE_ROW = {"shards": 1, "time_shard": timedelta(days=1)}
"""One wide row for everything that a test sends: between wide rows there is no order."""
SOON = timedelta(seconds=20)


@pytest.fixture(scope="module")
def keyspace(new_keyspace):
    """A keyspace in which a test need not wait long for what was sent."""
    return new_keyspace(settle_ms=300, skew_ms=200)


@pytest.fixture
def rows(keyspace, connection):
    """A function: the messages of a queue as Cassandra has them, as rows of `shard` and `priority`."""
    cql = f"SELECT queue, shard, priority, kind FROM {keyspace.name}.messages"

    def look(name):
        found = connection.session.execute(cql)
        return [row for row in found if row.kind == 3 and row.queue.startswith(f"{name}@")]

    return look


# ── Order ──


def test_the_most_urgent_message_comes_first(client):
    """Whatever was sent first, over six claims of ten priorities; within a priority, the oldest first."""
    queue = client.create_queue("urgent", cqueue.QueueConfig(**ONE_ROW))
    priorities = [*range(10)] * 3
    random.Random(7).shuffle(priorities)
    sent = queue.send_many([cqueue.Message(b"%d" % one, priority=one) for one in priorities])
    assert not sent.failed
    received = []
    with queue.consumer() as consumer:
        for _ in range(6):
            messages = consumer.receive(5, wait=SOON)
            received += [(message.priority, message.id) for message in messages]
            consumer.ack(messages)
    order = dict(zip(sent.ids, zip(priorities, range(30), strict=True), strict=True))
    assert [order[id_] for _, id_ in received] == sorted(order.values())
    assert [priority for priority, _ in received] == sorted(priorities)


def test_a_message_that_can_wait_does_not_wait_for_ever(client):
    """One claim in ten begins with a lower priority, so more urgent messages starve none."""
    queue = client.create_queue("starved", cqueue.QueueConfig(**ONE_ROW))
    assert not queue.send_many(
        [cqueue.Message(b"can wait", priority=9), *[cqueue.Message(b"now")] * 40]
    ).failed
    bodies = []
    with queue.consumer() as consumer:
        while b"can wait" not in bodies:
            messages = consumer.receive(1, wait=SOON)
            bodies += [message.body for message in messages]
            consumer.ack(messages)
    assert 1 < len(bodies) <= 10


# ── Time to live ──


def test_a_message_whose_time_to_live_is_over_is_deleted_and_not_delivered(keyspace, client, rows):
    """It was sent 90 minutes ago, to live for an hour; its neighbours, which may live for longer, come."""
    with cqueue.connect(keyspace.url) as earlier:
        earlier._driver.clock = ManualClock(datetime.now(UTC) - timedelta(minutes=90))
        old = earlier.create_queue("perishable", cqueue.QueueConfig(**ONE_ROW))
        ttls = {b"over": timedelta(hours=1), b"not yet": timedelta(hours=2), b"never": None}
        assert not old.send_many([cqueue.Message(body, ttl=ttl) for body, ttl in ttls.items()]).failed
    assert rows("perishable")
    queue = client.queue("perishable")
    received = []
    with queue.consumer() as consumer:
        while len(received) < 2:
            messages = consumer.receive(10, wait=SOON)
            received += [message.body for message in messages]
            consumer.ack(messages)
        assert consumer.receive(10) == []
    assert sorted(received) == [b"never", b"not yet"]
    assert rows("perishable") == [], "its row stands, though nobody is to receive it"
    assert queue.dead_letters.list() == [], "a message that has expired has not failed"


# ── Cost ──


@pytest.fixture
def writes(keyspace, connection):
    """A function: how many writes to `messages` Cassandra has applied, by its own count."""
    cql = (
        "SELECT count FROM system_views.local_write_latency "
        f"WHERE keyspace_name = '{keyspace.name}' AND table_name = 'messages'"
    )

    def count():
        hosts = connection.cluster.metadata.all_hosts()
        found = [connection.session.execute(cql, host=host).one() for host in hosts]
        return sum(int(row[0]) for row in found if row is not None)

    return count


@pytest.mark.parametrize("want", [1, 10, 100])
def test_a_claim_costs_exactly_one_conditional_mutation(keyspace, connection, writes, want):
    """Of any size. A wide row that nobody has claimed from costs one more: the lock is taken first.

    Cassandra counts them, where consumers write nothing else, as nothing is acked.
    """
    if len(connection.cluster.metadata.all_hosts()) > 1:
        pytest.skip("each replica counts: needs a cluster of one node")
    store, opened = open_cassandra(keyspace.settings)
    counting = CountingStore(store)
    with closing(opened), Client(counting, on_close=lambda: None) as client:
        queue = client.create_queue(f"costs-{want}", cqueue.QueueConfig(**ONE_ROW))
        assert not queue.send_many([cqueue.Message(b"x")] * 10 * want).failed
        consumer = queue.consumer()
        assert len(consumer.receive(want, wait=SOON)) == want
        first = counting.mutations
        stored, sent = writes(), counting.mutations
        for _ in range(9):
            assert len(consumer.receive(want, wait=SOON)) == want
        assert writes() - stored == counting.mutations - sent == 9
        assert first == 2
        consumer.close(give_back=False)


# ── Shards ──


def test_shards_are_raised_and_lowered_while_three_producers_send(keyspace, client, rows):
    """Nothing is lost or comes twice, and what is sent after a change goes to as many shards."""
    config = cqueue.QueueConfig(shards=1, time_shard=timedelta(days=1), visibility=timedelta(minutes=5))
    queue = client.create_queue("resharded", config)
    load = Load(keyspace.url, queue.name, producers=3)
    try:
        for shards in (8, 2):
            queue.alter(shards=shards)
            until(lambda shards=shards: load.seen(shards) >= 8 * shards)
    finally:
        sent = load.end()
    assert {row.shard for row in rows("resharded")} == set(range(8))
    with queue.consumer() as consumer:
        received = Counter()
        while len(received) < len(sent):
            messages = consumer.receive(1000, wait=SOON)
            assert messages, f"{len(sent) - len(received)} of {len(sent)} are missing"
            received.update(message.body for message in messages)
            consumer.ack(messages)
        assert consumer.receive(1000) == []
    assert received == Counter(sent)


class Load:
    """Producers with clients of their own, and one consumer, until it is told to end."""

    def __init__(self, url, name, producers):
        self.sent, self._url, self._name = [], url, name
        self._flushes, self._mutex, self._over = Counter(), threading.Lock(), threading.Event()
        self._errors = []
        self._threads = [threading.Thread(target=self._produce, args=(one,)) for one in range(producers)]
        for thread in self._threads:
            thread.start()

    def _produce(self, number):
        try:
            with cqueue.connect(self._url) as client:
                queue, sends = client.queue(self._name), 0
                while not self._over.is_set():
                    shards, sends = queue.config.shards, sends + 1
                    # A flush of 500 is all that one shard takes at a time.
                    bodies = [b"%d %d %d" % (number, sends, at) for at in range(500)]
                    result = queue.send_many([cqueue.Message(body) for body in bodies])
                    assert not result.failed
                    with self._mutex:
                        self.sent += bodies
                        self._flushes[shards] += 1
        except Exception as exc:  # noqa: BLE001 - told by `end`, on the thread of the test
            self._errors.append(exc)

    def seen(self, shards):
        """Return how many flushes were sent while the queue had this number of shards."""
        assert not self._errors
        with self._mutex:
            return self._flushes[shards]

    def end(self):
        """What was sent."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors
        return self.sent
