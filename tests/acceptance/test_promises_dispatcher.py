"""What a dispatcher promises about handlers, fencing tokens and missed times, on a real Cassandra.

`docs/reference/proof.md` names these tests beside the promises.
"""

import threading
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue import Cron, Repeating
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.errors import NotDone
from cqueue.testing.clock import ManualClock
from tests.fix_dispatcher import SOON, SOON_S, Gate, until

pytestmark = [pytest.mark.cassandra, pytest.mark.timeout(120)]

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def keyspace(new_keyspace):
    """A keyspace in which a test need not wait long for what was sent."""
    return new_keyspace(settle_ms=300, skew_ms=200)


# ── Handler classes ──


def test_a_handler_class_is_made_anew_for_each_message(client):
    """One with `handle`, one whose instances are called, one of coroutines: an instance sees one message."""
    queue = client.create_queue("classes")
    done, mutex = [], threading.Lock()

    class Handle:
        def __init__(self):
            self.bodies = []

        def handle(self, message, context):
            self.bodies.append(message.body)
            with mutex:
                done.append((context.task, self))

    class Called(Handle):
        handle = None

        def __call__(self, message, context):
            Handle.handle(self, message, context)

    class Coroutine(Handle):
        async def handle(self, message, context):
            Handle.handle(self, message, context)

    del Called.handle
    handlers = {"handle": Handle, "called": Called, "coroutine": Coroutine}
    messages = [cqueue.Message(b"%d" % at, task=task) for task in handlers for at in range(3)]
    assert not queue.send_many(messages).failed
    with Dispatcher(queue, handlers) as dispatcher:
        assert dispatcher.drain(SOON)
        assert dispatcher.stats().total.succeeded == 9
    assert sorted(task for task, _ in done) == sorted([*handlers] * 3)
    assert all(len(instance.bodies) == 1 for _, instance in done)
    assert queue.peek() == []


# ── Fencing tokens ──


class Cut:
    """The store of a process that is cut off from Cassandra as long as `cut` is set."""

    def __init__(self, store):
        self._store = store
        self.cut = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def execute(self, operation):
        if self.cut:
            raise NotDone("cut off")
        return self._store.execute(operation)

    def together(self, operations):
        if self.cut:
            return [NotDone("cut off")] * len(operations)
        return self._store.together(operations)


class Results:
    """`UPDATE … SET fence = ?, value = ? WHERE key = ? AND fence < ?`, and who was refused."""

    def __init__(self):
        self.stored, self.refused, self._mutex = (0, None), [], threading.Lock()

    def store(self, fence, value):
        with self._mutex:
            if fence <= self.stored[0]:
                self.refused.append((fence, value))
            else:
                self.stored = (fence, value)


def test_fences_tell_a_slow_holder_from_the_next_one(keyspace, client):
    """A dispatcher is cut off in the middle of a handler; another one takes over, and its result stands.

    The first one's handler ends last, and once Cassandra answers again `context.lost` says that it is late.
    """
    client.create_queue("fenced", cqueue.QueueConfig(visibility=timedelta(seconds=2)))
    app, results, slow = cqueue.App(client, queue="fenced"), Results(), Gate()

    def first_handler(message, context):
        slow(message, context)
        results.store(message.fence, "first")

    @app.task
    def second_handler():
        attempt = cqueue.current_context().attempt
        results.store(cqueue.current_message().fence, f"second, attempt {attempt}")

    with cqueue.connect(keyspace.url) as cut_off:
        cut_off._driver.store = store = Cut(cut_off._driver.store)
        with Dispatcher(cut_off.queue("fenced"), first_handler) as first:
            second_handler.enqueue()
            slow.wait_begun()
            store.cut = True
            with app.dispatcher() as second:
                until(lambda: second.stats().total.succeeded == 1)
            store.cut = False
            assert slow.contexts[0].lost.wait(SOON_S)
            slow.open.set()
            until(lambda: first.stats().total.succeeded == 1)
    assert results.stored[1] == "second, attempt 2"
    ((fence, value),) = results.refused
    assert (value, fence < results.stored[0]) == ("first", True)


# ── Missed times ──


def test_missed_times_are_fired_as_the_misfire_policy_says(keyspace, client):
    """After an outage of 90 minutes: `all` fires both hours, `latest` the later one, `skip` none.

    The schedules were made 90 minutes ago by a client of that time, and nobody has dispatched since.
    """
    began = datetime.now(UTC) - 1.5 * HOUR
    with cqueue.connect(keyspace.url) as earlier:
        earlier._driver.clock = ManualClock(began)
        schedules = earlier.create_queue("missed").schedules
        for policy in ("all", "latest", "skip"):
            schedules.add(policy, Repeating(HOUR, timedelta(0), misfire=policy), policy.encode())
        first_at = schedules.get("all").next_at
        schedules.add("grace", Repeating(HOUR, timedelta(0), misfire="all", grace=HOUR), b"grace")
        schedules.add("cron", Cron("* * * * *", misfire="latest"), b"cron")
    queue = client.queue("missed")
    fired, mutex = {}, threading.Lock()

    def handle(message, context):
        with mutex:
            fired.setdefault(message.body.decode(), []).append(context.firing.fired_at)

    def is_over():
        """All schedules have gone on to the time that is still ahead."""
        return all(one.next_at > queue.now for one in queue.schedules.list())

    with Dispatcher(queue, handle) as dispatcher:
        until(is_over)
        assert dispatcher.drain(SOON)
    assert fired["all"] == [first_at, first_at + HOUR]
    assert fired["latest"] == [first_at + HOUR]
    assert "skip" not in fired
    assert fired["grace"] == [first_at + HOUR]
    # One minute of 90, and perhaps the next if it began meanwhile.
    assert len(fired["cron"]) <= 2
    assert fired["cron"][0] > began + 1.5 * HOUR - timedelta(minutes=1)
    assert {one.key: one.next_at for one in queue.schedules.list()}["skip"] == first_at + 2 * HOUR
