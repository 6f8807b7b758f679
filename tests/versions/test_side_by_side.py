"""N-1 and N on one keyspace, at once: what a rolling upgrade does, and a roll-back.

Both versions are real processes with their own code. The keyspace has the schema of the newer one.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

import cqueue
from cqueue.schema import load_migrations
from cqueue.store.operations import ChangeQueue, ReadQueue
from tests.fix_dispatcher import until
from tests.versions.older import OLDER, ROOT, Client, unpack

pytestmark = [pytest.mark.cassandra, pytest.mark.acceptance, pytest.mark.timeout(240)]

ATTEMPTS = 3
WANTED = {"shards": 5, "max_attempts": 9, "live": 0}
FRESH = {"future": {"kept": [1, 2]}}
"""A setting that neither version knows."""


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    tree = tmp_path_factory.mktemp("older")
    if not unpack(tree):
        pytest.skip(f"commit {OLDER[:7]} is not in this tree's history: a full clone has it")
    return tree


@pytest.fixture(scope="module")
def keyspace(new_keyspace):
    """A keyspace of this module alone, as its schema is changed."""
    return new_keyspace()


@pytest.fixture
def versions(older, keyspace):
    """A client of each version; each says by itself which code it runs."""
    clients = [Client(older, keyspace.url), Client(ROOT, keyspace.url)]
    try:
        assert [one.ask(call="where").answer() for one in clients] == [
            str(tree / "cqueue" / "__init__.py") for tree in (older, ROOT)
        ]
        yield clients
    finally:
        for one in clients:
            one.close()


@pytest.fixture
def queue(keyspace):
    with cqueue.connect(keyspace.url) as client:
        yield client.create_queue("mail", cqueue.QueueConfig(max_attempts=ATTEMPTS, shards=2))
        client.delete_queue("mail")


@pytest.mark.usefixtures("queue")
def test_every_message_is_accounted_for_whoever_sends_and_whoever_takes_it(versions):
    """Both send, then both take from each other at once, with retries and dead letters.

    A message is acked once, however many of the two have had it; one that never succeeds is delivered as
    often as the queue says, and becomes a dead letter that either version can read.
    """
    count = 300
    sent = [
        one.ask(call="send", queue="mail", numbers=numbers).answer()
        for one, numbers in _halves(versions, count)
    ]
    assert sum(sent) == count
    for one in versions:
        one.ask(call="consume", queue="mail", idle_s=6)
    deliveries = [one.answer() for one in versions]
    assert all(deliveries), "each version has taken some"
    together = [tuple(delivery) for taken in deliveries for delivery in taken]
    wanted = {(number, 1, "ack") for number in range(count) if number % 10 not in {3, 7}}
    wanted |= {(number, 1, "nack") for number in range(count) if number % 10 == 7}
    wanted |= {(number, 2, "ack") for number in range(count) if number % 10 == 7}
    wanted |= {
        (n, attempt, "nack") for n in range(count) if n % 10 == 3 for attempt in range(1, ATTEMPTS + 1)
    }
    assert Counter(together) == Counter(wanted)  # each exactly once
    first, second = (one.ask(call="letters", queue="mail").answer() for one in versions)
    assert sorted(number for number, _ in [*first, *second]) == list(range(3, count, 10))
    assert [one.ask(call="look", queue="mail").answer()["live"] for one in versions] == [0, 0]


def _halves(clients, count):
    return zip(clients, (list(range(0, count, 2)), list(range(1, count, 2))), strict=True)


@pytest.mark.usefixtures("queue")
def test_what_one_sends_the_other_takes(versions):
    """In both directions: old producer and new consumer, new producer and old consumer."""
    for producer, consumer in (versions, versions[::-1]):
        producer.ask(call="send", queue="mail", numbers=[1, 2, 11]).answer()
        assert sorted(consumer.ask(call="consume", queue="mail", idle_s=2, least=3).answer()) == [
            [1, 1, "ack"], [2, 1, "ack"], [11, 1, "ack"],
        ]  # fmt: skip


@pytest.mark.usefixtures("queue")
def test_each_sees_what_the_other_altered(versions):
    """Both change settings in turn, and none undoes the other's change. A configuration is a second old."""
    for number, one in enumerate(versions):
        one.ask(call="alter", queue="mail", **[{"shards": 5}, {"max_attempts": 9}][number]).answer()
    for one in versions:
        until(lambda one=one: one.ask(call="look", queue="mail").answer() == WANTED, 60)


def test_this_version_keeps_what_a_newer_one_will_store(versions, queue):
    """As N-1 it will be asked to: N-1 of today erased such settings."""
    _store(queue, FRESH)
    versions[1].ask(call="alter", queue="mail", shards=5).answer()
    assert _stored(queue).items() >= {**FRESH, "shards": 5}.items()


def _stored(queue):
    return json.loads(queue._driver.ask(ReadQueue("mail")).config)


def _store(queue, more):
    row = queue._driver.ask(ReadQueue("mail"))
    config = json.dumps(json.loads(row.config) | more)
    assert queue._driver.ask(ChangeQueue(row._replace(config=config), row.version))


@pytest.mark.usefixtures("queue")
def test_an_older_client_connects_to_a_keyspace_with_a_newer_pre_migration(older, keyspace, connection):
    """Migrations that old code can live with are applied before the new code is rolled out.

    One that no version has yet is recorded as well: so it is whichever migrations the two share.
    """
    newest = load_migrations()[-1].number
    connection.session.execute(f"ALTER TABLE {keyspace.name}.deployment ADD from_the_future text", timeout=60)
    columns = "(name, number, phase, what, checksum, applied_at)"
    values = f"('cqueue', {newest + 1}, 'pre', 'from the future', 'x', toTimestamp(now()))"
    connection.session.execute(
        f"INSERT INTO {keyspace.name}.schema_migrations {columns} VALUES {values}"  # noqa: S608
    )
    for tree in (older, ROOT):
        client = Client(tree, keyspace.url)
        try:
            assert client.ask(call="send", queue="mail", numbers=[1]).answer() == 1
            assert client.ask(call="consume", queue="mail", idle_s=1, least=1).answer() == [[1, 1, "ack"]]
        finally:
            client.close()
