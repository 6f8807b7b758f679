"""Results and histories across processes: handlers in real daemons, asked from here, on a real Cassandra."""

import signal
from datetime import timedelta

import pytest

import cqueue
from tests.acceptance.daemons import Site

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(300)]

SOON = timedelta(seconds=60)


@pytest.fixture
def site(tmp_path, keyspace):
    site = Site(tmp_path, keyspace.url, history=timedelta(hours=1))
    yield site
    site.close()


def told(site, queue, count, **filters):
    """The queue's history, once it has at least `count` events."""
    return site.wait(lambda: len(found := site.client.queue(queue).history(**filters)) >= count and found)


def test_results_come_from_another_process_and_from_each_message(site):
    """Of hundreds at once, none is mixed up with another; a failure comes as one, with its class and text."""
    double = site.app.tasks["double"]
    daemon = site.start("--processes", 2, "--queues", "quick", "--threads", 4)
    handles = [double.enqueue(number) for number in range(200)]
    sent = double.enqueue_many(double.message(number) for number in range(200, 400))
    handles += [double.handle(id_) for id_ in sent.ids]
    assert [handle.result(SOON) for handle in handles] == [{"twice": 2 * number} for number in range(400)]
    broken = double.options(ttl=timedelta(minutes=5)).enqueue(-1)
    queue = site.client.queue("quick")
    site.wait(lambda: broken.state() in {"waiting", "failed"})
    for message in site.client.queue("quick").peek():
        assert message.id == broken  # of those that are done none is left
    assert daemon.lines("message_retried")
    events = told(site, "quick", 400, limit=1000)
    assert {event.message_id for event in events if event.state == "succeeded"} == set(handles)
    assert {event.worker for event in events} <= {row.worker for row in _workers(site)}
    assert queue.history(handles[7])[0].state == "succeeded"


def test_a_result_of_a_killed_worker_comes_from_the_next_one_and_the_history_says_who_had_it(site):
    """Kill -9 while the handler runs: the first worker is named as running, the second one as done."""
    held = site.app.tasks["held"]
    first = site.start("--queues", "slow", "--threads", 2)
    handle = held.enqueue(17)
    (event,) = told(site, "slow", 1, message_id=handle)
    assert event.state == "running"
    assert str(first.pid) in event.worker
    assert handle.state() == "claimed"
    with pytest.raises(cqueue.ResultTimeout):
        handle.result(timedelta(seconds=0.2))
    first.signal(signal.SIGKILL)
    second = site.start("--queues", "slow", "--threads", 2)
    assert handle.result(SOON) == 17
    running, done = told(site, "slow", 2, message_id=handle)
    assert (running.state, done.state) == ("running", "succeeded")
    assert str(second.pid) in done.worker
    assert running.fence < done.fence
    assert (running.attempt, done.attempt) == (1, 2)
    assert running.at < done.began_at <= done.at


def test_a_schedule_has_a_history(site):
    """When each of its firings ran, and how it ended: one event a second, of the time that was fired."""
    message = site.app.tasks["tick"].message()
    site.start("--queues", "ticks", "--threads", 2)
    queue = site.client.queue("ticks")
    every_second = cqueue.Cron("* * * * * *", misfire="all")
    queue.schedules.add("tick", every_second, message.body, task=message.task, codec=message.codec)
    site.wait(lambda: len(site.journal("tick")) >= 5)
    queue.schedules.remove("tick")
    events = told(site, "ticks", 5, schedule="tick")
    fired = sorted({row[3] for row in site.journal("tick")})  # after the events: each of them is there
    assert {event.state for event in events} <= {"succeeded", "cancelled", "skipped"}
    ran = [event for event in events if event.state == "succeeded"]
    assert [int(event.fired_at.timestamp()) for event in ran] == fired[: len(ran)]
    assert all(event.began_at <= event.at for event in ran)


def _workers(site):
    from cqueue.store.control import ReadWorkers

    return site.client._driver.ask(ReadWorkers())
