"""The history of a queue: what workers told of its messages, by message, key, worker and schedule."""

import json
import secrets
import threading
import time
from concurrent import futures
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.client import Client
from cqueue.dispatcher.execution import history_writer
from cqueue.errors import OutcomeUnknown, Refused, Unavailable
from cqueue.history import PARTITIONS, PREFIX, TOPIC, Told, partition_of
from cqueue.runtime.rendezvous import own_name
from cqueue.store.log_operations import (
    AppendRecords,
    ChangeLog,
    CreateLog,
    DropRecords,
    ListLogs,
    RemoveLog,
)
from cqueue.testing import MemoryClient
from tests.faulty_store import FaultyStore
from tests.fix_dispatcher import until
from tests.fix_store import brief_store
from tests.subscriptions.subscribing import Clocked, client_on

SOON = timedelta(seconds=20)
DAY = timedelta(days=1)
TOLD_S = 20.0
"""Seconds until an event can be read, at most: half a second to the append, W + ε until that is stable."""


@pytest.fixture
def memory_client():
    with Client(brief_store(), on_close=lambda: None) as client:
        yield client


@pytest.fixture(scope="module")
def cassandra_client(new_keyspace):
    with cqueue.connect(new_keyspace(settle_ms=1500, skew_ms=200).url) as client:
        yield client


@pytest.fixture
def queue(client):
    return client.create_queue(f"q-{secrets.token_hex(4)}", cqueue.QueueConfig(history=DAY))


@pytest.fixture
def app(client, queue):
    return cqueue.App(client, queue=queue.name, retry=cqueue.Retry(max_attempts=2, wait=lambda _: 0.1))


def task(app, function, **options):
    made = app.task(name=secrets.token_hex(4), **options)(function)
    app.setup()
    return made


def test_the_history_of_a_message_that_was_made_due_sooner_is_found():
    """A message that is rescheduled keeps its id, which holds the time at which it was to be due."""
    store = Clocked()
    with client_on(store) as client:
        queue = client.create_queue("q", cqueue.QueueConfig(history=DAY, time_shard=timedelta(hours=1)))
        id_ = queue.send(b"", delay=timedelta(minutes=50))
        assert queue.reschedule(id_, timedelta()) == id_
        at_ms = store.time_us // 1000
        queue._history.append("w", [Told(at_ms, "succeeded", id_, None, None, 1, 1, at_ms)])
        store.pass_time(seconds=5)
        assert states(queue.history(message_id=id_)) == ["succeeded"]


def run(app):
    """Run what is due."""
    with app.dispatcher(threads=2, consumers=1) as dispatcher:
        assert dispatcher.drain(SOON)


def told(queue, count, **filters):
    """The history, once it has at least `count` events."""
    deadline_s = time.monotonic() + TOLD_S
    while len(found := queue.history(**filters)) < count:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)
    return found


def states(events):
    return [event.state for event in events]


# ── What is told ──


def test_a_message_that_was_done_is_told_with_worker_and_times(app, queue):
    """When it was sent, began and ended, by which worker under which fence."""
    work = task(app, lambda: time.sleep(0.05)).options(key="colour")
    id_ = work.enqueue()
    run(app)
    (event,) = told(queue, 1)
    assert (event.state, event.message_id, event.task, event.key) == ("succeeded", id_, work.name, "colour")
    assert (event.worker, event.attempt) == (own_name(), 1)
    assert event.fence >= 1
    assert event.sent_at <= event.began_at <= event.at - timedelta(milliseconds=40)
    assert abs(event.at - queue.now) < timedelta(minutes=1)
    assert (event.error, event.reason, event.traceback, event.next_at, event.schedule) == (None,) * 5


def test_each_failure_is_told_with_its_error(app, queue):
    """With class, text and traceback, and when it is tried again, in the order of time."""

    def fail() -> None:
        raise KeyError("colour")

    id_ = task(app, fail).enqueue()
    with app.dispatcher(threads=2, consumers=1):
        failed, dead = told(queue, 2, message_id=id_)
    assert (failed.state, failed.attempt, dead.state, dead.attempt) == ("retried", 1, "dead", 2)
    for event in (failed, dead):
        assert event.error == "KeyError"
        assert "colour" in event.reason
        assert "in fail" in event.traceback
    assert failed.at < failed.next_at <= dead.at
    assert failed.fence < dead.fence


def test_what_a_task_decides_is_told(app, queue):
    """Its snooze with the next time, its cancellation with the reason."""
    answers = [cqueue.Snooze(timedelta(hours=1)), cqueue.Cancel("not needed")]
    work = task(app, lambda which: answers[which])
    snoozed, cancelled = work.enqueue(0), work.enqueue(1)
    run(app)
    told(queue, 2)
    (event,) = queue.history(snoozed)
    assert (event.state, event.next_at - event.at) == ("snoozed", timedelta(hours=1))
    (event,) = queue.history(cancelled)
    assert (event.state, event.reason) == ("cancelled", "not needed")


def test_a_long_run_is_told_while_it_runs(app, queue, monkeypatch):
    """So that the history says who had a message whose worker was killed."""
    monkeypatch.setattr(history_writer, "LONG_S", 0.2)
    goes_on = threading.Event()
    work = task(app, goes_on.wait)
    id_ = work.enqueue()
    with app.dispatcher(threads=2, consumers=1) as dispatcher:
        (event,) = told(queue, 1, message_id=id_)
        assert (event.state, event.at, event.worker) == ("running", event.began_at, own_name())
        goes_on.set()
        assert dispatcher.drain(SOON)
    assert states(told(queue, 2, message_id=id_)) == ["running", "succeeded"]


def test_what_was_cancelled_while_its_handler_failed_is_told_as_lost(app, queue):
    """It does not come again as the handler's decision says, though others of its claim are still held."""
    goes_on = threading.Event()

    def run_or_fail(which: int) -> None:
        if which == 1:
            assert goes_on.wait(TOLD_S)
        else:
            assert queue.cancel(sent[0])
            raise ValueError("no")

    work = task(app, run_or_fail)
    sent = work.enqueue_many([work.message(0), work.message(1)]).ids
    with app.dispatcher(threads=2, consumers=1) as dispatcher:
        assert states(told(queue, 2, message_id=sent[0])) == ["retried", "lost"]
        goes_on.set()
        assert dispatcher.drain(SOON)


def test_firings_are_told_by_schedule(app, queue):
    """When each ran and how it ended; a time that its schedule skips is told, too."""

    @app.periodic(cqueue.Repeating(timedelta(seconds=1)), key="tick", name=secrets.token_hex(4))
    def tick() -> None: ...

    app.setup()
    with app.dispatcher(threads=2, consumers=1):
        events = told(queue, 2, schedule="tick")
    assert set(states(events)) == {"succeeded"}
    times = [event.fired_at for event in events]
    assert times == sorted(set(times))
    assert all(event.fired_at <= event.at for event in events)
    assert queue.history(schedule="tock") == []


def test_a_skipped_firing_is_told_as_skipped(app, queue):
    late = queue.schedules.add(
        "late",
        cqueue.Cron("* * * * * *", misfire="skip", grace=timedelta(milliseconds=1)),
        b"{}",
        task=task(app, lambda: None).name,
        codec="json",
    )
    until(lambda: queue.now > late.next_at + timedelta(milliseconds=1))
    with app.dispatcher(threads=2, consumers=1):
        event = told(queue, 1, schedule="late")[0]
    assert event.state == "skipped"
    assert "later than its schedule allows" in event.reason


# ── What is asked for ──


def test_a_history_is_read_by_message_key_worker_and_time(app, queue):
    work = task(app, lambda: None)
    ids = [work.options(key=f"k{number % 2}").enqueue() for number in range(PARTITIONS + 1)]
    run(app)
    everything = told(queue, len(ids))
    assert [event.at for event in everything] == sorted(event.at for event in everything)
    assert {event.message_id for event in everything} == set(ids)
    assert {partition_of(id_) for id_ in ids} <= set(range(PARTITIONS))
    for id_ in ids:
        assert [event.message_id for event in queue.history(id_)] == [id_]
    assert {event.message_id for event in queue.history(key="k1")} == set(ids[1::2])
    assert queue.history(worker=own_name()) == everything
    assert queue.history(worker="another") == []
    assert queue.history(since=everything[3].at) == [one for one in everything if one.at >= everything[3].at]
    assert queue.history(since=queue.now + DAY) == []
    assert queue.history(limit=2) == everything[-2:]


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 10_001}, {"since": datetime(2031, 1, 1)}])  # noqa: DTZ001
def test_wrong_questions_are_refused(queue, wrong):
    with pytest.raises(cqueue.BadInput, match=next(iter(wrong))):
        queue.history(**wrong)
    with pytest.raises(cqueue.InvalidMessageId):
        queue.history("no id")


def test_records_of_another_form_are_passed_over(app, queue, client):
    log = client.log(PREFIX + queue.name)
    others = [b"[[1]]", b'[[1,"a",5,6]]', b"5", b'[[1,"a",5,null,null,6,7,8]]']
    for body in [b"\xff", b"[]", b"{}", *(b'{"worker":"w","events":%b}' % one for one in others)]:
        log.append("history", body)
    task(app, lambda: None).enqueue()
    run(app)
    assert states(told(queue, 1)) == ["succeeded"]


def test_an_event_that_a_newer_version_writes_is_read(queue, client):
    """Values that this version does not know stand at the end."""
    id_ = queue.send(b"x")
    values = [1_900_000_000_000, "succeeded", id_, None, None, 1, 2, 3, *[None] * 7, "new"]
    body = json.dumps({"worker": "w", "events": [values]}).encode()
    client.log(PREFIX + queue.name).append("history", body, partition=partition_of(id_))
    (event,) = told(queue, 1)
    assert (event.worker, event.at.year) == ("w", 2030)


# ── Whether there is one ──


def test_a_close_waits_for_a_thread_that_is_about_to_start(app, queue, monkeypatch):
    """It could not join one that has only been made, and the dispatcher would end without its clean-up."""
    start, closings = threading.Thread.start, []

    def start_late(thread):
        if thread.name == "cqueue-history":
            closings.append(pool.submit(dispatcher.engine.history.close, SOON.total_seconds()))
            futures.wait(closings, timeout=0.1)
        start(thread)

    work = task(app, lambda: None)
    with futures.ThreadPoolExecutor(1) as pool, app.dispatcher(threads=1, consumers=1) as dispatcher:
        monkeypatch.setattr(threading.Thread, "start", start_late)
        work.enqueue()
        assert dispatcher.drain(SOON)
        until(lambda: closings)
        closings[0].result(SOON.total_seconds())
    assert told(queue, 1)


def test_a_thread_that_cannot_be_started_is_started_by_a_later_event(app, queue, monkeypatch):
    """The first message is done without a complaint, and its event is told after all."""
    start, events = threading.Thread.start, []

    def refuse_once(thread):
        if thread.name == "cqueue-history":
            monkeypatch.setattr(threading.Thread, "start", start)
            raise RuntimeError("can't start new thread")
        start(thread)

    work = task(app, lambda: None)
    with app.dispatcher(threads=1, consumers=1, on_event=lambda name, _: events.append(name)) as dispatcher:
        monkeypatch.setattr(threading.Thread, "start", refuse_once)
        for _ in range(2):
            work.enqueue()
            assert dispatcher.drain(SOON)
    assert states(told(queue, 2)) == ["succeeded", "succeeded"]
    assert "dispatcher_error" not in events


def test_a_queue_without_a_history_has_no_log_and_no_thread(client):
    app = cqueue.App(client, queue=f"q-{secrets.token_hex(4)}")
    work = task(app, lambda: None)
    work.enqueue()
    with app.dispatcher() as dispatcher:
        assert dispatcher.drain(SOON)
        assert dispatcher.engine.history._batcher.pending == 0
        assert not dispatcher.engine.history._batcher._workers
    queue = client.queue(work.queue)
    assert queue.history() == []
    assert PREFIX + queue.name not in client.logs()


def test_a_history_is_turned_on_and_off_while_the_queue_runs(app, client, queue):
    """With another time to live for what is new; off, nothing is told any more, and what was told stays."""
    work = task(app, lambda: None)
    work.enqueue()
    run(app)
    told(queue, 1)
    queue.alter(history=2 * DAY)
    assert client.log(PREFIX + queue.name).config.ttl == 2 * DAY
    queue.alter(history=None)
    assert queue.config.history is None
    silent = work.enqueue()
    run(app)
    queue.alter(history=DAY)
    last = work.enqueue()
    run(app)
    assert len(told(queue, 2)) == 2
    assert silent not in {event.message_id for event in queue.history()}
    assert queue.history(last)


def test_a_history_goes_with_its_queue(client, queue):
    assert PREFIX + queue.name in client.logs()
    client.delete_queue(queue.name)
    assert PREFIX + queue.name not in client.logs()


@pytest.fixture
def faults():
    return FaultyStore(brief_store())


@pytest.fixture
def faulty_client(faults):
    with Client(faults) as client:
        yield client


def fail(faults, kind):
    faults.trouble = lambda operation: Unavailable("down") if isinstance(operation, kind) else None


def heal(faults):
    faults.trouble = lambda _: None


@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize("kind", [DropRecords, RemoveLog])
def test_a_deletion_that_broke_off_in_the_history_is_finished(faults, faulty_client, kind):
    """By another one. Until then no queue of that name is made, whose history would go with the old one."""
    client, config = faulty_client, cqueue.QueueConfig(history=DAY)
    client.create_queue("q", config)
    client.log(PREFIX + "q").append(TOPIC, b"{}")
    fail(faults, kind)
    with pytest.raises(OutcomeUnknown, match="history"):
        client.delete_queue("q")
    heal(faults)
    with pytest.raises(cqueue.QueueExists, match="being deleted"):
        client.create_queue("q", config, exist_ok=True)
    assert client.delete_queue("q") == 0
    assert faults.execute(ListLogs()) == []
    with pytest.raises(cqueue.QueueNotFound):
        client.delete_queue("q")
    client.create_queue("q", config)
    assert client.log(PREFIX + "q").config.ttl == DAY


@pytest.mark.usefixtures("brief_pauses")
def test_a_history_that_was_half_deleted_by_hand_is_made_anew(faults, faulty_client):
    """By the next program that creates the queue as it is."""
    client, config = faulty_client, cqueue.QueueConfig(history=DAY)
    client.create_queue("q", config)
    client.log(PREFIX + "q").append(TOPIC, b"{}")
    fail(faults, DropRecords)
    with pytest.raises(OutcomeUnknown):
        client.delete_log(PREFIX + "q")
    heal(faults)
    client.create_queue("q", config, exist_ok=True)
    log = client.log(PREFIX + "q")
    log.append(TOPIC, b"{}")
    assert (log.config.ttl, log.config.partitions) == (DAY, PARTITIONS)


@pytest.mark.usefixtures("brief_pauses")
def test_a_queue_that_is_stored_without_its_history_is_not_called_undone(faults, faulty_client):
    """Neither a new one nor one that was altered; a repeat makes the history."""
    client = faulty_client
    fail(faults, CreateLog)
    with pytest.raises(OutcomeUnknown, match="repeat"):
        client.create_queue("q", cqueue.QueueConfig(history=DAY))
    queue = client.queue("q")
    with pytest.raises(OutcomeUnknown, match="repeat"):
        queue.alter(history=2 * DAY)
    heal(faults)
    client.create_queue("q", cqueue.QueueConfig(history=2 * DAY), exist_ok=True)
    assert client.log(PREFIX + "q").config.ttl == 2 * DAY
    fail(faults, ChangeLog)
    with pytest.raises(OutcomeUnknown, match="repeat"):
        queue.alter(history=DAY)
    heal(faults)
    for ttl in (DAY, timedelta(days=7)):  # the latter is the default of logs
        queue.alter(history=ttl)
        assert client.log(PREFIX + "q").config.ttl == ttl


@pytest.mark.parametrize("wrong", [timedelta(0), timedelta(seconds=59), timedelta(days=3651), 5])
def test_the_time_to_live_has_bounds(wrong):
    with pytest.raises(cqueue.ConfigError, match="history"):
        cqueue.QueueConfig(history=wrong)


def test_a_name_that_is_too_long_for_a_history_is_refused_before_anything_is_made(client):
    name = "q" * 186
    with pytest.raises(cqueue.ConfigError, match="185"):
        client.create_queue(name, cqueue.QueueConfig(history=DAY))
    assert name not in client.queues()
    queue = client.create_queue(name)
    with pytest.raises(cqueue.ConfigError, match="185"):
        queue.alter(history=DAY)
    assert queue.config.history is None
    client.delete_queue(name)


def test_a_stored_configuration_of_an_older_version_has_no_history():
    stored = json.loads(cqueue.QueueConfig().to_json())
    del stored["history_ms"]
    assert cqueue.QueueConfig.from_json(json.dumps(stored)).history is None
    kept = cqueue.QueueConfig(history=DAY)
    assert cqueue.QueueConfig.from_json(kept.to_json()) == kept


# ── It delays nothing ──


class Unwilling:
    """A store that refuses records of logs until it is told to take them."""

    def __init__(self, store):
        self._store = store
        self.refuses = True

    def __getattr__(self, name):
        return getattr(self._store, name)

    def execute(self, operation):
        if self.refuses and isinstance(operation, AppendRecords):
            raise Refused("no grant")
        return self._store.execute(operation)

    def together(self, operations):
        if self.refuses and any(isinstance(one, AppendRecords) for one in operations):
            return [Refused("no grant") for _ in operations]
        return self._store.together(operations)


def test_a_history_that_cannot_be_kept_delays_no_message(app, queue, client, monkeypatch):
    """It is told in the log, once, with the number of lost events, and goes on when it can."""
    monkeypatch.setattr(history_writer, "EVERY_S", 60.0)  # one append has all of the first ten
    monkeypatch.setattr(history_writer, "FULL", 10)
    store = Unwilling(client._driver.store)
    monkeypatch.setattr(client._driver, "store", store)
    events = []
    said = lambda name, fields: events.append((name, dict(fields)))  # noqa: E731
    work = task(app, lambda: None)
    lost = [work.enqueue() for _ in range(10)]
    with app.dispatcher(threads=1, consumers=1, on_event=said) as dispatcher:
        assert dispatcher.drain(SOON)
        assert not list(queue.ids())
        until(lambda: "queue_history_lost" in dict(events))
        lost_fields = dict(events)["queue_history_lost"]
        assert (lost_fields["queue"], lost_fields["events"]) == (queue.name, 10)
        store.refuses = False
        kept = work.enqueue()
        assert dispatcher.drain(SOON)
    assert states(told(queue, 1, message_id=kept)) == ["succeeded"]
    assert [name for name, _ in events].count("queue_history_lost") == 1
    assert "queue_history_resumed" in {name for name, _ in events}
    assert not any(queue.history(id_) for id_ in lost)


def test_the_oldest_events_are_dropped_when_too_many_wait(app, queue, monkeypatch):
    monkeypatch.setattr(history_writer, "MOST", 5)
    monkeypatch.setattr(history_writer, "EVERY_S", 60.0)
    monkeypatch.setattr(history_writer, "FULL", 1000)
    events = []
    work = task(app, lambda: None)
    ids = [work.enqueue() for _ in range(12)]
    said = lambda name, fields: events.append((name, dict(fields)))  # noqa: E731
    with app.dispatcher(threads=1, consumers=1, on_event=said) as dispatcher:  # threads do not count exactly
        assert dispatcher.drain(SOON)
    found = told(queue, 5)
    assert len(found) == 5
    assert {event.message_id for event in found} < set(ids)
    assert [fields["events"] for name, fields in events if name == "queue_history_lost"] == [7]


def test_times_are_in_utc(app, queue):
    task(app, lambda: None).enqueue()
    run(app)
    assert told(queue, 1)[0].at.tzinfo is UTC


def test_events_of_one_millisecond_stay_in_the_order_in_which_they_were_told():
    """Within an append, and from one append to the next."""
    with MemoryClient() as client:
        queue = client.create_queue("q", cqueue.QueueConfig(history=DAY))
        sent = queue.send(b"m")
        at_ms = client.clock.now_us() // 1000
        first, second, third, fourth = (
            Told(at_ms, "snoozed", sent, None, None, 1, fence, at_ms) for fence in (4, 3, 2, 1)
        )
        queue._history.append("w", [first, second])
        queue._history.append("w", [third, fourth])
        client.advance(timedelta(seconds=10))
        assert [event.fence for event in queue.history(sent)] == [4, 3, 2, 1]
        assert [event.fence for event in queue.history(limit=2)] == [2, 1]
