"""`cqueue.spark.jobs.redrive`: no dead letter is lost, and none comes back twice."""

import time
from datetime import timedelta

import pyarrow as pa
import pytest

import cqueue
from cqueue.errors import BadInput, QueueNotFound
from cqueue.message import MessageId
from cqueue.protocol.send import INLINE_BODY
from cqueue.sending import redriving
from cqueue.settings import load
from cqueue.spark import session
from cqueue.spark.jobs import redrive
from cqueue.spark.jobs.redrive import Redrive, Redriver
from cqueue.spark.jobs.target import take_derived
from cqueue.store.operations import DeleteBodies

SOON = timedelta(seconds=30)
HOUR_US = 3_600_000_000


@pytest.fixture
def queue(client, new_name):
    """30 messages of which 20 died: 12 of a timeout, 8 of a bad address."""
    made = client.create_queue(new_name("q"), cqueue.QueueConfig(shards=1))
    sent = [
        cqueue.Message(
            str(n).encode() * (1 if n else 6000), key=f"k{n}", task="mail", codec="text", priority=n % 3,
            headers={"n": str(n)},
        )
        for n in range(20)
    ]  # fmt: skip
    assert not made.send_many(sent).failed
    with made.consumer() as consumer:
        for message in received(consumer, 20):
            message.dead("Timeout: 30 s" if int(message.headers["n"]) < 12 else "no such address")
    return made


def received(consumer, count):
    found = []
    while len(found) < count:
        got = consumer.receive(count - len(found), wait=SOON)
        assert got, f"only {len(found)} came"
        found += got
    return found


def bodies(queue):
    return sorted(one.headers["n"] for one in queue.peek(1000))


def test_those_that_a_predicate_picks_come_back(spark, client, queue, url):
    """As they were, without what the burial added; the others stay."""
    summary = redrive.run(spark, Redrive(queue=queue.name, url=url, where="reason like 'Timeout%'"))
    assert (summary.read, summary.written, summary.skipped) == (20, 12, 8)
    assert summary.details["failed"] == {}
    assert bodies(client.queue(queue.dead_letter_name)) == sorted(str(n) for n in range(12, 20))
    with queue.consumer() as consumer:
        found = received(consumer, 12)
        assert {int(one.headers["n"]): one.body for one in found} == {
            n: str(n).encode() * (1 if n else 6000) for n in range(12)
        }
        one = found[0]
        assert (one.key, one.task, one.codec) == (f"k{one.headers['n']}", "mail", "text")
        assert one.priority == int(one.headers["n"]) % 3
        assert set(one.headers) == {"n", "cqueue-redrives"}
        consumer.ack(found)
        assert consumer.receive(10) == []


def test_a_rate_and_a_limit_of_redrives(spark, queue, url):
    """One task sends, and keeps the rate; a letter over the limit stays and is told."""
    began = time.monotonic()
    job = Redrive(queue=queue.name, url=url, rate=20, max_redrives=1)
    assert redrive.run(spark, job).written == 20
    assert time.monotonic() - began >= 18 / 20
    with queue.consumer() as consumer:
        for message in received(consumer, 20):
            message.dead("again")
    summary = redrive.run(spark, job)
    assert (summary.written, sum(summary.details["failed"].values())) == (0, 20)
    assert all(text.startswith("RedriveLimit: ") for text in summary.details["failed"])
    picked = Redrive(queue=queue.name, url=url, where="redrives < 1")
    assert redrive.run(spark, picked).read == 20
    assert len(queue.dead_letters.list()) == 20


@pytest.mark.parametrize("limits", [{"rate": 0}, {"max_redrives": 0}])
def test_a_limit_out_of_its_range_is_bad_input(limits):
    with pytest.raises(cqueue.BadInput):
        Redrive(queue="q", **limits)


def test_a_run_that_breaks_between_sending_and_deleting(spark, client, queue, url, monkeypatch):
    """Letters are in both queues for a while, never in none; the next run copies none, not even acked."""
    settings, dead = load(url), client.queue(queue.dead_letter_name)
    side = session.session(settings)
    take_derived(queue)
    half = [one.id for one in dead.peek(9)]
    task = Redriver(settings, queue.name, queue.name, side.driver.clock.now_us(), 12 * HOUR_US)
    monkeypatch.setattr(redriving, "delete", lambda _driver, _dead, _found: {})  # it dies before
    assert [one.error for one in task.redrive(side, half)] == [None] * 9
    monkeypatch.undo()
    assert len(dead.peek(100)) == 20
    with queue.consumer() as consumer:
        consumer.ack(received(consumer, 5))
        summary = redrive.run(spark, Redrive(queue=queue.name, url=url))
        assert summary.written == 20
        assert dead.peek(100) == []
        rest = received(consumer, 15)
        consumer.ack(rest)
        assert len({one.headers["n"] for one in rest}) == 15
        assert consumer.receive(10, wait=timedelta(seconds=1)) == []


def test_what_cannot_be_sent_stays(client, queue, url):
    """A letter leaves only when its message is stored; what failed is counted by its error."""
    settings, dead = load(url), client.queue(queue.dead_letter_name)
    now_us = session.session(settings).driver.clock.now_us()
    task = Redriver(settings, queue.name, queue.name, now_us, 12 * HOUR_US)
    batch = pa.RecordBatch.from_pydict({"id": [one.id for one in dead.peek(100)]})
    (refused,) = next(task(iter([batch]))).to_pylist()  # the queue takes no derived ids yet
    assert (refused["letters"], len(dead.peek(100))) == (20, 20)
    assert refused["error"].startswith("BadInput: ")
    take_derived(queue)
    assert next(task(iter([batch]))).to_pylist() == [{"error": None, "letters": 20}]
    assert next(task(iter([batch]))).to_pylist() == []  # they are gone
    assert queue.stats(exact=True).live == 20


def test_a_letter_whose_body_is_lost_stays(spark, client, queue, url):
    """It is not the message that it was; the others come back."""
    id_ = queue.send(bytes(INLINE_BODY + 1), headers={"n": "lost"})
    queue.send(bytes(INLINE_BODY + 1), headers={"n": "lost later"})
    with queue.consumer() as consumer:
        found = received(consumer, 2)
        wide_row, _, key = MessageId(id_).locate()
        session.session(load(url)).driver.ask(DeleteBodies(wide_row, (key,)))
        for message in found:
            message.dead("Timeout: 30 s")
    dead = client.queue(queue.dead_letter_name)
    whole = next(letter for letter in dead.peek(100) if len(letter.body) > INLINE_BODY)
    wide_row, _, key = MessageId(whole.id).locate()
    session.session(load(url)).driver.ask(DeleteBodies(wide_row, (key,)))
    summary = redrive.run(spark, Redrive(queue=queue.name, url=url))
    assert summary.written == 20
    assert summary.details["failed"] == {
        "NotDone: its body is lost": 1,
        "NotDone: its body cannot be read": 1,
    }
    assert sorted(bodies(client.queue(queue.dead_letter_name))) == ["lost", "lost later"]


def test_a_letter_that_is_held_stays(spark, client, queue, url):
    """Somebody is working on it."""
    with client.queue(queue.dead_letter_name).consumer() as consumer:
        (held,) = received(consumer, 1)
        summary = redrive.run(spark, Redrive(queue=queue.name, url=url))
        assert (summary.written, summary.details["held"]) == (19, 1)
        assert held.headers["n"] not in bodies(queue)


def test_a_dry_run_and_a_limit(spark, client, queue, url):
    job = Redrive(queue=queue.name, url=url, where="attempts = 1", limit=3)
    assert redrive.run(spark, job, dry_run=True).written == 3
    assert queue.stats(exact=True).live == 0
    assert redrive.run(spark, job).written == 3
    assert len(bodies(client.queue(queue.dead_letter_name))) == 17


def test_to_another_queue(spark, client, queue, url, new_name):
    other = client.create_queue(new_name("other"))
    summary = redrive.run(spark, Redrive(queue=queue.name, url=url, to=other.name, where="priority = 0"))
    assert summary.written == len(bodies(other)) == 7


def test_what_cannot_be_is_refused(spark, queue, url):
    with pytest.raises(QueueNotFound):
        redrive.run(spark, Redrive(queue="nowhere", url=url))
    with pytest.raises(BadInput, match="cannot be used"):
        redrive.run(spark, Redrive(queue=queue.name, url=url, where="nobody = 1"))
    with pytest.raises(BadInput, match="dead-letter queue"):
        Redrive(queue=queue.dead_letter_name)
    with pytest.raises(BadInput, match="limit"):
        Redrive(queue="q", limit=0)
