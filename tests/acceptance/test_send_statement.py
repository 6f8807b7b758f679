"""A message goes with rows of the application's own, in one logged batch that its own session executes."""

# ruff: noqa: S608 - the keyspace's name is made here

import secrets
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.query import BatchStatement

import cqueue
from tests.unit import markdown_pages as markdown

pytestmark = [pytest.mark.cassandra, pytest.mark.feature]

WAIT = timedelta(seconds=20)


@pytest.fixture(scope="module")
def orders(new_keyspace, connection):
    """A table of the application's, in its own keyspace."""
    name = new_keyspace(schema=False).name
    connection.session.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    connection.session.execute(f"CREATE TABLE {name}.orders (id text PRIMARY KEY, state text)")
    return f"{name}.orders"


@pytest.fixture
def pay(orders, connection):
    """A function that writes an order and executes the statements of sends, and all orders."""
    session = connection.session
    insert = session.prepare(f"INSERT INTO {orders} (id, state) VALUES (?, 'paid')")

    def write(order, *sends):
        batch = BatchStatement(consistency_level=ConsistencyLevel.LOCAL_QUORUM)
        batch.add(insert, [order])
        for send in sends:
            batch.add(session.prepare(send.cql), send.values)
        session.execute(batch)

    return write


@pytest.fixture
def queue(cassandra_client):
    config = cqueue.QueueConfig(derived_sends=True, visibility=timedelta(seconds=60))
    return cassandra_client.create_queue(f"paid-{secrets.token_hex(4)}", config)


def test_a_message_is_sent_with_the_row_that_it_is_about(queue, pay, orders, connection):
    """A consumer that waits has it at once, and an ack ends it, though the batch is executed once more."""
    options = {"headers": {"k": "v"}, "priority": 3, "ttl": timedelta(hours=1), "task": "t", "codec": "json"}
    sends = [queue.send_statement(cqueue.Message(body, **options)) for body in (b"17 is paid", bytes(20_000))]
    assert queue.stats(exact=True).ready == 0
    with queue.consumer() as consumer:
        assert consumer.receive() == []
        pay("17", *sends)
        for send in sends:
            send.notify()
        got = []
        while len(got) < 2:
            got += consumer.receive(10, wait=WAIT)
        assert {(m.id, m.body) for m in got} == {(sends[0].id, b"17 is paid"), (sends[1].id, bytes(20_000))}
        assert {(m.headers["k"], m.priority, m.task, m.codec) for m in got} == {("v", 3, "t", "json")}
        consumer.ack(got)
        pay("17", *sends)
        assert consumer.receive() == []
    assert queue.peek() == []
    assert connection.session.execute(f"SELECT state FROM {orders} WHERE id = '17'").one() == ("paid",)


def test_a_batch_that_is_executed_late_is_found(queue, pay):
    """Also one that Cassandra replays from its batch log: consumers look for messages behind what is due."""
    send = queue.send_statement(cqueue.Message(b"x", due=datetime.now(UTC) - timedelta(hours=12), source="x"))
    with queue.consumer() as consumer:
        assert consumer.receive() == []
        pay("18", send)
        (message,) = consumer.receive(wait=WAIT)
        assert (message.id, message.body) == (send.id, b"x")
        message.ack()


def test_a_task_is_called_once_its_batch_is_done(queue, keyspace, pay):
    """The application's middleware sees its message, as that of `enqueue`."""

    class Tenant(cqueue.Middleware):
        def before_send(self, _queue, message):
            return replace(message, headers={"tenant": "t7"})

    app = cqueue.App(keyspace.url, queue=queue.name, middleware=[Tenant()])

    @app.task
    def tell(partner, event):
        """It is received here, and called by nobody."""

    with closing(app), queue.consumer() as consumer:
        with pytest.raises(cqueue.BadArguments):
            tell.statement("https://partner.example")
        pay("19", tell.statement("https://partner.example", event="paid=19"))
        (message,) = consumer.receive(wait=WAIT)
        assert (message.task, message.headers) == (tell.name, {"tenant": "t7"})
        assert app.resolve(message) is not None
        message.ack()


def test_the_page_is_right(queue, orders, connection):
    """It pays order 17 of a table of the same shape."""
    page = markdown.ROOT / "docs" / "how-to" / "send.md"
    (block,) = [block for block in markdown.blocks(page, "python") if "send_statement" in block.text]
    text, names = block.text.replace("shop.orders", orders), {"queue": queue, "session": connection.session}
    exec(text, {"cqueue": cqueue, **names})  # noqa: S102 - that is the test
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=WAIT)
        assert message.body == b"order 17 is paid"
        message.ack()


def test_a_batch_that_is_refused_sends_nothing(queue, pay):
    send = queue.send_statement(cqueue.Message(b"y"))
    with pytest.raises(InvalidRequest, match="longer than maximum"):
        pay("k" * 70_000, send)
    assert (queue.find(send.id), queue.peek()) == (None, [])
