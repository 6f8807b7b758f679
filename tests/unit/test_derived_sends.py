"""Sends under derived ids: the same source and due time are one message, however often it is sent."""

from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue import ids
from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.errors import OutcomeUnknown
from cqueue.message import to_datetime
from cqueue.protocol import registry
from cqueue.protocol.send import INLINE_BODY, Outgoing, ProducerState, send
from cqueue.store.memory import MemoryStore
from cqueue.store.operations import DeleteMessages, InsertBodies, InsertMessages, RegisterShard
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import ManualClock
from tests.simulation.hand import NOON_US, Table

SOON = timedelta(seconds=60)


@pytest.fixture
def client():
    with cqueue.connect("memory://") as client:
        yield client


@pytest.fixture
def queue(client):
    return client.create_queue("q", QueueConfig(derived_sends=True))


def once(body=b"x", source="order-17", due=None):
    return cqueue.Message(body, due=due or datetime.now(UTC), source=source)


def test_a_source_sent_twice_is_delivered_once(client, queue):
    """A repeat after a crash, by another process, stores no second copy, not even after the ack."""
    message = once()
    first = queue.send_many([message, message])
    (again,) = client.queue("q").send_many([message]).ids
    assert first.ids == [again, again]
    with queue.consumer() as consumer:
        (received,) = consumer.receive(10, wait=SOON)
        received.ack()
        assert queue.send_many([message]).ids == [again]
        assert queue.stats(exact=True).live == 0
        assert consumer.receive(10) == []


def test_sources_are_told_apart(queue):
    """Another source, and text beside the same bytes, are other messages."""
    due = datetime.now(UTC)
    sent = queue.send_many([once(source=source, due=due) for source in ("a", "b", b"a")])
    assert len(set(sent.ids)) == 3


def test_a_queue_takes_sources_only_when_it_looks_for_them(client):
    """Without `derived_sends` consumers would not look where such messages stand; altered, they do."""
    queue = client.create_queue("plain")
    with queue.consumer() as consumer:
        consumer.receive()
        ((_, error),) = queue.send_many([once()]).failed
        assert isinstance(error, cqueue.BadInput)
        assert "cqueue queue alter plain --derived-sends" in str(error)
        queue.alter(derived_sends=True)
        queue.send_many([once()])
        (received,) = consumer.receive(10, wait=SOON)
        received.ack()
    with pytest.raises(cqueue.ConfigError, match="stays true"):
        queue.alter(derived_sends=False)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (cqueue.Message(b"x", source="s"), cqueue.BadInput),
        (cqueue.Message(b"x", source="s", delay=timedelta(1)), cqueue.BadInput),
        (once(source=""), cqueue.BadInput),
        (once(source=17), cqueue.BadInput),
        (once(due=datetime.now(UTC) - timedelta(days=1)), cqueue.DelayOutOfRange),
        (once(due=datetime.now(UTC) + timedelta(days=4000)), cqueue.DelayOutOfRange),
        (cqueue.Message(b"x", task=""), cqueue.BadInput),
        (cqueue.Message(b"x", key="k" * 1001), cqueue.BadInput),
    ],
)
def test_what_cannot_be_derived_is_refused(queue, message, error):
    """A wrong entry fails alone, before anything is written."""
    result = queue.send_many([message, cqueue.Message(b"good")])
    assert result.ids[1] is not None
    ((place, raised),) = result.failed
    assert place == 0
    assert type(raised) is error


def test_task_key_and_codec_come_with_the_message(queue):
    """What belongs to a message beside its body arrives as it was sent."""
    queue.send_many([cqueue.Message(b"{}", task="mail", key="user-7", codec="json")])
    with queue.consumer() as consumer:
        (received,) = consumer.receive(10, wait=SOON)
        assert (received.task, received.key, received.codec, received.trigger) == (
            "mail",
            "user-7",
            "json",
            None,
        )


def outgoing(due_us):
    return Outgoing(b"m", 0, due_us, None, None, source=b"source")


def test_a_late_answer_is_no_reason_to_send_under_another_id():
    """An open wide row waits for what lands late: the send counts long after W, and nothing is deleted."""
    table = Table(derived_sends=True)

    def slow(operation):
        if type(operation) is InsertMessages:
            table.pass_time(60_000_000)

    (flush,) = table.run(send(table.spec, ProducerState(), [outgoing(NOON_US)]), slow)
    assert flush.error is None
    assert flush.wide_row == registry.open_row(table.spec, NOON_US, b"source")
    assert [row.id for row in flush.rows] == [ids.derived(NOON_US, b"source")]
    assert not any(type(operation) is DeleteMessages for operation in table.log)


def test_an_answer_after_gc_grace_is_unknown():
    """Its wide row may have been retired before the message landed: nobody may believe that it counts."""
    table = Table(derived_sends=True)

    def slow(operation):
        if type(operation) is InsertMessages:
            table.pass_time(table.spec.gc_grace_us)

    (flush,) = table.run(send(table.spec, ProducerState(), [outgoing(NOON_US)]), slow)
    assert isinstance(flush.error, OutcomeUnknown)
    assert sum(type(operation) is InsertMessages for operation in table.log) == 1, "and under no other id"
    assert not any(type(operation) is DeleteMessages for operation in table.log)


# ── statements of sends; tests/acceptance/test_send_statement.py executes them ──


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {"unique": cqueue.Unique(key="k")}, "no message with unique"),
        ({"keyed": True}, {"key": "k"}, "no message with a key"),
        ({}, {"priority": 10}, "priority is 10"),
        ({}, {}, "memory:// has no CQL"),
    ],
)
def test_a_statement_of_a_send_is_one_insert_and_no_more(queue, change, options, said):
    if change:
        queue.alter(**change)
    with pytest.raises(cqueue.BadInput, match=said):
        queue.send_statement(cqueue.Message(b"x", **options))


def test_a_queue_takes_statements_only_when_it_looks_for_them(client):
    with pytest.raises(cqueue.BadInput, match="derived_sends=True"):
        client.create_queue("plain").send_statement(cqueue.Message(b"x"))


@pytest.mark.parametrize("error", [cqueue.NotDone("no answer"), OutcomeUnknown("no answer")])
@pytest.mark.parametrize(("kind", "size"), [(RegisterShard, 1), (InsertBodies, INLINE_BODY + 1)])
def test_a_statement_is_not_made_before_what_has_to_be_stored_before(kind, size, error):
    """A message in a partition that nobody knows would not be found, and one without its body not handled."""
    store = FaultyStore(trouble=lambda op: error if isinstance(op, kind) else None)
    with Client(store) as client:
        queue = client.create_queue("q", QueueConfig(derived_sends=True))
        with pytest.raises(cqueue.NotDone):
            queue.send_statement(cqueue.Message(bytes(size)))


def test_a_statement_of_another_time_is_not_given_out(client_at, clock):
    """A message under an id from before a standstill might land in a partition that was dropped since."""
    client, store = client_at

    def stand_still(operation):
        if isinstance(operation, RegisterShard):
            clock.advance(3)

    store.trouble = stand_still
    with pytest.raises(cqueue.NotDone, match="stood still"):
        client.queue("q").send_statement(cqueue.Message(b"x"))


# ── a day of such messages ──

STEP_S = 300
"""As long as a wide row takes such messages."""


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def client_at(clock, monkeypatch):
    """A client on a store that counts what it is asked for."""
    monkeypatch.setattr("cqueue.client._clock_of", lambda _: clock)
    store = FaultyStore(MemoryStore(clock.now_us))
    with Client(store) as client:
        client.create_queue("q", QueueConfig(derived_sends=True))
        yield client, store


def of(clock, ago_s=0):
    """A message that was due `ago_s` seconds ago."""
    return once(source=f"{clock.us}-{ago_s}", due=to_datetime(clock.us // 1000 - 1000 * ago_s))


@pytest.fixture
def consumer(client_at, clock):
    """One that has worked for a day, with a message in each wide row."""
    queue = client_at[0].queue("q")
    with queue.consumer() as consumer:
        for _ in range(86_400 // STEP_S):
            queue.send_many([of(clock)])
            (message,) = consumer.receive(10)
            message.ack()
            clock.advance(STEP_S)
        yield consumer


def polled(consumer, clock, seconds):
    """What a poll every two seconds finds, until it finds something; how long that took."""
    for second in range(0, seconds, 2):
        if found := consumer.receive(10):
            return found, second
        clock.advance(2)
    return [], seconds


def test_the_rows_of_a_day_cost_an_idle_consumer_little(client_at, consumer, clock):
    """They are kept for late repeats. With a pass a minute and a look every two seconds at each, there were
    150 requests a second.
    """
    _, store = client_at
    polled(consumer, clock, 3600)  # passes over each row become rarer with its age
    before = store.asked
    assert polled(consumer, clock, 3600) == ([], 3600)
    assert (store.asked - before) / 3600 < 12


@pytest.mark.parametrize("hours", [1, 20])
def test_a_message_that_comes_hours_late_is_found(client_at, consumer, clock, hours):
    """Within a minute if its sender's hint arrives, else within five."""
    client, store = client_at
    message = of(clock, hours * 3600)
    client.queue("q").send_many([message])
    (found,), took_s = polled(consumer, clock, 3600)
    assert (found.body, took_s <= 62) == (b"x", True)
    found.ack()
    with Client(store, on_close=lambda: None) as silent:
        silent.queue("q").send_many([of(clock, hours * 3600 + 1)])
    (found,), took_s = polled(consumer, clock, 7200)
    assert took_s <= 302
    found.ack()
