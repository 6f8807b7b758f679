"""Results of tasks: kept where a task asks, stored before the ack, and waited for by a handle."""

import pickle
import secrets
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

import cqueue
from cqueue.client import Client
from cqueue.errors import Refused, Unavailable
from cqueue.store.control import KeepResult, ReadResult
from tests.fix_dispatcher import until

SOON = timedelta(seconds=20)
MINUTE = timedelta(minutes=1)
NOW = timedelta()


@pytest.fixture
def app(client):
    return cqueue.App(client, queue=f"q-{secrets.token_hex(4)}", retry=cqueue.Retry(max_attempts=1))


@pytest.fixture
def events():
    return []


@pytest.fixture
def run(app, events):
    """Runs everything that is due."""

    def drain():
        said = lambda name, fields: events.append((name, dict(fields)))  # noqa: E731
        with app.dispatcher(on_event=said, threads=2, consumers=1) as dispatcher:
            assert dispatcher.drain(SOON)

    return drain


def keeping(app, function, **options):
    options.setdefault("result_ttl", MINUTE)
    return app.task(name=secrets.token_hex(4), **options)(function)


# ── Values ──

VALUES = [
    None,
    False,
    17,
    "text",
    (1, [2.5, {"a": None}]),
    {"at": datetime(2031, 1, 1, tzinfo=UTC), "sum": Decimal("1.50")},
    b"\x00\xff",
    "x" * 200_000,
]


def test_a_result_is_what_the_task_returned(app, run):
    """Of an equal type, as arguments are; False is a value as any other, and the message is done."""
    task = keeping(app, lambda number: VALUES[number])
    app.setup()
    handles = [task.enqueue(number) for number in range(len(VALUES))]
    run()
    found = [handle.result(NOW) for handle in handles]
    assert found == VALUES
    assert list(map(type, found)) == list(map(type, VALUES))
    assert {handle.state() for handle in handles} == {"succeeded"}
    assert app.client.queue(app.tasks[task.name].queue).stats(exact=True).live == 0


def test_a_coroutine_has_a_result(app, run):
    async def double(number: int) -> int:
        return 2 * number

    task = keeping(app, double, codec="msgpack")
    app.setup()
    handle = task.enqueue(21)
    run()
    assert handle.result(SOON) == 42


def test_a_result_is_waited_for(app, run):
    """The one that waits gets it soon after the handler has returned, not a poll of seconds later."""
    task = keeping(app, lambda: time.sleep(0.3) or "late")
    app.setup()
    handle = task.enqueue()
    worker = threading.Thread(target=run)
    worker.start()
    assert handle.result(SOON) == "late"
    worker.join()


def test_of_two_runs_the_last_result_counts(app, run, client):
    task = keeping(app, lambda: "first")
    app.setup()
    handle = task.enqueue()
    run()
    row = client._driver.ask(ReadResult(handle))
    client._driver.ask(KeepResult(row._replace(value=b'"second"', at=row.at + 1), 60))
    assert handle.result(NOW) == "second"


@pytest.mark.usefixtures("work")
def test_an_ack_that_is_repeated_sets_no_result_back(shop, troubled, clock):
    """What died while its first worker was cut off stays failed when that one can ack at last."""
    runs = []

    def twice():
        runs.append(None)
        if len(runs) == 2:
            raise ValueError
        troubled.trouble = lambda operation: (
            None if isinstance(operation, KeepResult) else Unavailable("cut off")
        )
        return "done"

    other = Client(troubled.store)
    other._driver.clock = clock
    apps = [cqueue.App(one, queue="work", retry=cqueue.Retry(max_attempts=2)) for one in (shop, other)]
    for app in apps:
        app.task(name="twice", result_ttl=MINUTE)(twice)
    handle = apps[1].tasks["twice"].enqueue()
    with other, apps[0].dispatcher(threads=1, consumers=1) as first:
        until(lambda: handle.state() == "succeeded")
        clock.advance(5)
        with apps[1].dispatcher(threads=1, consumers=1):
            until(lambda: handle.state() == "failed")
        troubled.trouble = lambda _: None
        until(lambda: first.stats().total.acked == 1)
        assert handle.state() == "failed"
        assert [letter.original_id for letter in other.queue("work").dead_letters.list()] == [handle]


def test_a_result_expires(app, run, client):
    task = keeping(app, lambda: 1, result_ttl=timedelta(seconds=1))
    app.setup()
    handle = task.enqueue()
    run()
    until(lambda: client._driver.ask(ReadResult(handle)) is None)
    with pytest.raises(cqueue.NoResult, match="expired"):
        handle.result(NOW)
    assert handle.state() == "gone"


# ── What has no value ──


def test_a_reason_that_no_encoding_has_is_stored_escaped(app, run):
    """A file name may be the reason; Cassandra refuses half a surrogate pair."""
    task = keeping(app, lambda: cqueue.Cancel("caf\udce9 is gone"))
    app.setup()
    handle = task.enqueue()
    run()
    with pytest.raises(cqueue.NoResult, match=r"caf\\udce9 is gone"):
        handle.result(NOW)


def test_a_failed_task_tells_why(app, run):
    """The class and the text of what it raised, also once the dead letter is dropped."""

    def fail() -> None:
        raise KeyError("colour")

    task = keeping(app, fail)
    app.setup()
    handle = task.enqueue()
    run()
    with pytest.raises(cqueue.TaskFailed, match="colour") as failed:
        handle.result(SOON)
    assert failed.value.error == "KeyError"
    assert "colour" in failed.value.reason
    queue = app.client.queue(task.queue)
    queue.dead_letters.drop(everything=True)
    assert handle.state() == "failed"
    assert queue.result(handle).error == "KeyError"


def test_a_message_that_was_buried_by_others_has_failed(app):
    """A claim buries a message whose consumers die; the dead letter says so to the one who waits."""
    task = keeping(app, lambda: 1)
    (queue,) = app.setup()
    handle = task.enqueue()
    with queue.consumer() as consumer:
        (message,) = consumer.receive(1, wait=SOON)
        message.dead("killed twice")
    assert handle.state() == "failed"
    with pytest.raises(cqueue.TaskFailed, match="killed twice"):
        handle.result(NOW)


def test_a_value_that_cannot_be_encoded_is_told_and_the_message_is_done(app, run, events):
    """An event of level error; the handler did its work, so the message does not come again."""
    task = keeping(app, lambda: {"password": {"a": object()}})
    (queue,) = app.setup()
    handle = task.enqueue()
    run()
    assert queue.stats(exact=True).live == 0
    (told,) = [fields for name, fields in events if name == "result_not_kept"]
    assert "object" in told["error"]
    assert "password" not in str(told)
    with pytest.raises(cqueue.NoResult, match=r"not kept: a value in the result is a builtins\.object"):
        handle.result(NOW)
    assert handle.state() == "succeeded"


def test_a_value_that_is_too_large_is_told(app, run, events):
    task = keeping(app, lambda: "x" * 1_100_000)
    app.setup()
    handle = task.enqueue()
    run()
    assert [name for name, _ in events if name == "result_not_kept"]
    with pytest.raises(cqueue.NoResult, match="at most 1,048,576"):
        handle.result(NOW)


def test_a_task_that_cancels_its_message_has_no_result(app, run):
    task = keeping(app, lambda: cqueue.Cancel("not needed"))
    app.setup()
    handle = task.enqueue()
    run()
    assert handle.state() == "cancelled"
    with pytest.raises(cqueue.NoResult, match="not needed"):
        handle.result(NOW)


# ── While it is not there ──


def test_a_handle_says_the_state_of_its_message(app):
    """A result that is not there yet is a typed error; a cancelled message has none."""
    task = keeping(app, lambda: 1)
    (queue,) = app.setup()
    handle = task.enqueue()
    assert handle.state() == "ready"
    assert task.options(delay=MINUTE).enqueue().state() == "delayed"
    with queue.consumer() as consumer:
        assert consumer.receive(1, wait=SOON)
        assert handle.state() == "claimed"
    began_s = time.monotonic()
    with pytest.raises(cqueue.ResultTimeout):
        handle.result(timedelta(milliseconds=300))
    assert 0.3 <= time.monotonic() - began_s < 30
    assert handle.cancel()
    assert not handle.cancel()
    assert handle.state() == "gone"
    with pytest.raises(cqueue.NoResult):
        handle.result(SOON)


def test_a_handle_is_an_id(app):
    """It is used wherever an id is, and is made again from one, in another process too."""
    task = keeping(app, lambda: 1)
    (queue,) = app.setup()
    handle = task.enqueue()
    assert isinstance(handle, str)
    assert {handle: 1}[str(handle)] == 1
    assert type(handle.id) is cqueue.MessageId
    assert queue.find(handle).id == handle
    assert type(pickle.loads(pickle.dumps(handle))) is cqueue.MessageId  # noqa: S301 - our own
    assert task.handle(str(handle)).state() == "ready"
    with pytest.raises(cqueue.InvalidMessageId):
        task.handle("no id")


def test_a_task_without_results_has_none(app, run, client):
    """It writes no row, and to ask for its result is a mistake; its state is still known."""
    task = keeping(app, lambda: 17, result_ttl=None)
    app.setup()
    handle = task.enqueue()
    assert handle.state() == "ready"
    run()
    assert client._driver.ask(ReadResult(handle)) is None
    assert handle.state() == "gone"
    with pytest.raises(cqueue.BadInput, match="result_ttl"):
        handle.result(NOW)


@pytest.mark.parametrize("wrong", [NOW, timedelta(milliseconds=999), timedelta(days=3651), 5])
def test_a_time_to_live_has_bounds(wrong):
    with pytest.raises(cqueue.BadInput, match="result_ttl"):
        cqueue.App("memory://").task(result_ttl=wrong)(print)


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta(days=3651), 5])
def test_a_timeout_has_bounds(app, wrong):
    task = keeping(app, lambda: 1)
    app.setup()
    with pytest.raises(cqueue.BadInput, match="timeout"):
        task.enqueue().result(wrong)


# ── Before the ack ──


class Unwilling:
    """A store that refuses results, as without a grant, until it is told to take them."""

    def __init__(self, store):
        self._store = store
        self.refuses = True
        self.refused = threading.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def together(self, operations):
        if self.refuses and any(isinstance(one, KeepResult) for one in operations):
            self.refused.set()
            return [Refused("no grant") for _ in operations]
        return self._store.together(operations)


def test_no_message_is_acked_before_its_result_is_stored(app, client, monkeypatch):
    """While results are refused, the message stays; tasks without results are acked meanwhile."""
    store = Unwilling(client._driver.store)
    monkeypatch.setattr(client._driver, "store", store)
    task, other = keeping(app, lambda: 17), keeping(app, lambda: None, result_ttl=None)
    (queue,) = app.setup()
    handle, plain = task.enqueue(), other.enqueue()
    with app.dispatcher(threads=2, consumers=1):
        assert store.refused.wait(20)
        until(lambda: plain.state() == "gone")
        assert queue.find(handle) is not None
        store.refuses = False
        assert handle.result(SOON) == 17
    assert queue.find(handle) is None


def test_results_in_a_testing_block():
    """Of tasks that a test drains, by the block's own store and clock."""
    app = cqueue.App("memory://")

    @app.task(result_ttl=MINUTE)
    def double(number: int) -> int:
        return 2 * number

    with app.testing() as t:
        handle = double.enqueue(4)
        assert handle.state() == "ready"
        t.drain()
        assert handle.result(NOW) == 8
        t.advance(timedelta(minutes=2))
        with pytest.raises(cqueue.NoResult):
            handle.result(NOW)
