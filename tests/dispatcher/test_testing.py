"""`app.testing()`: an application of module level in memory, with a clock that a test moves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

import cqueue
from cqueue.errors import BadArguments, BadInput, Closed
from cqueue.testing import Endless

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)

# As in a program: at module level, on a cluster that is not there.
app = cqueue.App("cassandra://127.0.0.1:1/nowhere?local_dc=dc1", retry=cqueue.Retry(MINUTE, max_attempts=3))
ran: list[object] = []
fails: list[Exception] = []
clean_fails: list[Exception] = []


@app.task(queue="hooks")
def send_hook(url: str, body: str = "{}", *, tries: int = 1, **more: object) -> None:  # noqa: ARG001
    ran.append(url)
    if fails:
        raise fails.pop(0)


@app.task(queue="mail")
async def mail(to: str) -> str:
    await asyncio.sleep(0)
    ran.append(to)
    return f"sent to {to}"


@app.periodic("*/10 * * * *", queue="cron")
def clean(fired_at: datetime) -> None:
    ran.append((fired_at, cqueue.current_context().firing.manual))
    if clean_fails:
        raise clean_fails.pop(0)


def program() -> None:
    """The application, and code that imports it and knows of no test."""
    send_hook.enqueue("http://a", tries=2)
    mail.options(delay=HOUR).enqueue("ann")


@pytest.fixture(autouse=True)
def _clean():
    for each in (ran, fails, clean_fails):
        each.clear()


@pytest.fixture
def t():
    with app.testing(now=NOON) as t:
        yield t


# ── Where it happens ──


def test_the_program_enqueues_to_a_private_store():
    """Nothing connects; each block begins empty, and the application is the same afterwards as before."""
    for _ in range(2):
        with app.testing() as t:
            program()
            assert [job.task for job in t.enqueued()] == [send_hook.name, mail.name]
    assert app._link.client is None
    assert not app._link.is_lent


def test_an_exception_in_the_block_leaves_the_application_as_it_was():

    def test() -> None:
        with app.testing():
            program()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        test()
    assert not app._link.is_lent
    with app.testing() as t:
        assert not t.enqueued()


def test_the_driver_is_not_even_imported():
    """Half a second that tests need not wait for."""
    code = """
import sys, cqueue
app = cqueue.App("cassandra://127.0.0.1:1/nowhere")
@app.task
def work(): ...
with app.testing() as t:
    work.enqueue()
    assert len(t.drain().succeeded) == 1
print("cassandra" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_a_client_of_ones_own_is_given_back():
    """The sandbox neither sends to the client nor closes it."""
    with cqueue.connect("memory://") as client, cqueue.App(client) as own:
        task = own.task(lambda: None, queue="q", name="work")
        own.setup()
        with own.testing() as t:
            task.enqueue()
            assert own.client is not client
            assert len(t.enqueued(task)) == 1
        assert own.client is client
        assert client.queue("q").stats(exact=True).live == 0
        task.enqueue()
        assert client.queue("q").stats(exact=True).live == 1


def test_one_application_is_in_one_block_at_a_time(t):
    """The error says so, and the open block goes on."""
    with pytest.raises(BadInput, match="in a testing block already"), app.testing():
        pytest.fail("not reached")
    with pytest.raises(BadInput, match="entered before"), t:
        pytest.fail("not reached")
    program()
    assert len(t.enqueued()) == 2


def test_two_applications_do_not_meet(t):
    other = cqueue.App("cassandra://127.0.0.1:1/nowhere")
    task = other.task(lambda: ran.append("other"), queue="hooks", name=send_hook.name)
    with other.testing(now=NOON) as u:
        task.enqueue()
        assert not t.enqueued()
        u.drain()
    assert ran == ["other"]


def test_after_the_block_it_says_that_it_is_over():
    with app.testing() as t:
        pass
    for call in (t.enqueued, t.dead, t.drain, lambda: t.advance(HOUR), lambda: t.fire(clean)):
        with pytest.raises(Closed, match=r"with app.testing\(\) as t"):
            call()


def test_a_program_may_close_its_application():
    """Workers are other processes: what the program has enqueued still runs, and what that enqueues."""
    own = cqueue.App("cassandra://127.0.0.1:1/nowhere")
    second = own.task(lambda: ran.append("second"), name="second")
    first = own.task(lambda: second.enqueue() and None, name="first")
    with own.testing() as t:
        with own:
            first.enqueue()
        t.drain(reraise=True)
    assert ran == ["second"]
    assert not own._link.is_closed


def test_threads_of_the_program_enqueue_there_too(t):
    threads = [threading.Thread(target=program) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(t.enqueued(send_hook)) == len(t.enqueued(mail)) == 8


def test_tasks_that_are_defined_in_the_block_have_their_queues():
    """Modules may be imported there, even by a handler."""
    own = cqueue.App("cassandra://127.0.0.1:1/nowhere")
    with own.testing() as t:

        @own.task(queue="first")
        def first() -> None:
            ran.append("first")

            @own.task(queue="second")
            def second() -> None:
                ran.append("second")

            second.enqueue()

        first.enqueue()
        t.drain(reraise=True)
    assert ran == ["first", "second"]


@pytest.mark.usefixtures("t")
def test_an_unknown_queue_stays_unknown():
    with pytest.raises(cqueue.QueueNotFound):
        app.send("elsewhere", cqueue.Message(b""))


# ── What waits ──


def test_enqueued_finds_jobs_by_their_arguments(t):
    """However they were given; defaults and further keywords count as arguments."""
    send_hook.enqueue("http://a", tries=2, shop=7)
    send_hook.enqueue(url="http://b")
    assert [job.args["url"] for job in t.enqueued(send_hook)] == ["http://a", "http://b"]
    assert t.enqueued(send_hook)[0].args == {"url": "http://a", "body": "{}", "tries": 2, "shop": 7}
    for subset, count in (
        ({"url": "http://a"}, 1),
        ({"tries": 2, "shop": 7}, 1),
        ({"body": "{}"}, 2),
        ({"url": "http://a", "tries": 1}, 0),
        ({"other": 1}, 0),
    ):
        assert len(t.enqueued(send_hook, **subset)) == count
    assert not t.enqueued(mail)


def test_a_mistyped_argument_is_an_error(t):
    """Where nothing is expected a test would pass by it."""
    with pytest.raises(BadArguments, match=r"has no parameter 'too'; it has to"):
        t.enqueued(mail, too="ann")
    with pytest.raises(BadInput, match="is not a task"):
        t.enqueued("mail")


def test_a_job_says_how_it_was_sent(t):
    """A test cannot change a job."""
    id_ = mail.options(priority=3, headers={"k": "v"}, key="order-7", delay=HOUR).enqueue("ann")
    (job,) = t.enqueued(mail)
    assert (job.task, job.queue, job.id, job.attempt) == (mail.name, "mail", id_, 1)
    assert (job.priority, job.headers, job.key) == (3, {"k": "v"}, "order-7")
    assert job.due == t.now + HOUR
    assert "mail(to='ann')" in repr(job)
    with pytest.raises(AttributeError):
        job.due = NOON


def test_jobs_come_in_the_order_of_their_due_times(t):
    mail.options(due=NOON + HOUR).enqueue("third")
    for name in ("fourth", "fifth", "sixth"):
        mail.options(due=NOON + 2 * HOUR).enqueue(name)
    mail.enqueue("first")
    mail.enqueue("second")
    names = ["first", "second", "third", "fourth", "fifth", "sixth"]
    assert [job.args["to"] for job in t.enqueued()] == names
    t.advance(2 * HOUR)
    assert [name for name in ran if isinstance(name, str)] == names


def test_what_is_held_expired_or_a_schedules_own_is_not_enqueued(t):
    mail.options(ttl=MINUTE).enqueue("late")
    mail.enqueue("held")
    assert len(t.enqueued()) == 2
    with app.client.queue("mail").consumer() as consumer:
        held = consumer.receive(2)
        assert not t.enqueued()
        held[0].nack()
        assert [job.attempt for job in t.enqueued()] == [2]
    t._clock.move_to(t._clock.now_us() + 61_000_000)
    assert [job.args["to"] for job in t.enqueued()] == ["held"]


def test_large_bodies_and_other_messages_are_shown(t):
    """Also those of tasks that are not known, with the arguments as far as they can be read."""
    mail.enqueue("x" * 50_000)
    app.send("mail", cqueue.Message(b'{"args": [], "kwargs": {"a": 1}}', task="other", codec="json"))
    app.send("mail", cqueue.Message(b"\xff"))
    large, other, raw = t.enqueued()
    assert large.args["to"] == "x" * 50_000
    assert (other.task, other.args) == ("other", {"a": 1})
    assert (raw.task, raw.args, raw.body) == (None, {}, b"\xff")
    assert len(repr(large)) < 300


# ── Running ──


def test_500_then_200(t):
    """The story of every web hook, without a sleep."""
    fails.append(ConnectionError("500"))
    send_hook.enqueue("http://a")
    (first,) = t.drain()
    assert (first.outcome, first.delay, first.attempt) == ("retried", MINUTE, 1)
    assert isinstance(first.error, ConnectionError)
    assert [job.attempt for job in t.enqueued(send_hook)] == [2]
    assert not t.drain()
    assert not t.advance(MINUTE - SECOND)
    (second,) = t.advance(SECOND)
    assert (second.outcome, second.attempt, second.error) == ("succeeded", 2, None)
    assert not t.enqueued()
    assert not t.dead()


def test_drain_runs_what_is_due_and_what_comes_of_it(t):
    """On the path of the dispatcher: coroutines too, and messages that tasks enqueue. The rest stays."""
    program()
    mail.enqueue("bob")
    runs = t.drain()
    assert [(run.task, run.outcome) for run in runs] == [
        (send_hook.name, "succeeded"),
        (mail.name, "succeeded"),
    ]
    assert runs.succeeded == list(runs)
    assert runs.failed == runs.retried == runs.dead == []
    assert runs[0].args["tries"] == 2
    assert [run.result for run in runs] == [None, "sent to bob"]
    assert [job.args["to"] for job in t.enqueued()] == ["ann"]


def test_the_most_urgent_is_run_first_then_the_oldest(t):
    """The same in each run of a test."""
    for number in range(20):
        mail.options(priority=number % 2).enqueue(str(number))
    t.drain()
    assert ran == [str(number) for number in [*range(0, 20, 2), *range(1, 20, 2)]]


def test_many_sent_at_once_are_all_due(t):
    """Their ids reach a little into the future."""
    result = mail.enqueue_many([mail.message(str(number)) for number in range(100)])
    result = send_hook.enqueue_many(
        [send_hook.options(key=str(number)).message(str(number)) for number in range(200)]
    )
    assert not result.failed
    t.drain()
    assert ran == [str(number) for number in (*range(200), *range(100))]


def test_an_error_can_be_raised(t):
    """After its message has been settled."""
    fails.append(ConnectionError("500"))
    send_hook.enqueue("http://a")
    with pytest.raises(ConnectionError, match="500"):
        t.drain(reraise=True)
    assert [job.attempt for job in t.enqueued(send_hook)] == [2]


def test_dead_letters_say_why(t):
    """Each with its arguments, reason and traceback, and what it was sent with."""
    fails.extend(ConnectionError(str(number)) for number in range(3))
    id_ = send_hook.options(headers={"k": "v"}, key="hook").enqueue("http://a")
    runs = t.advance(HOUR)
    assert [run.outcome for run in runs.of(send_hook)] == ["retried", "retried", "dead"]
    assert runs.dead[0].reason == "attempt 3 of 3: ConnectionError: 2"
    assert str(runs.dead[0].error) == "2"
    (letter,) = t.dead()
    assert t.dead(send_hook, url="http://a") == [letter]
    assert not t.dead(mail)
    assert (letter.queue, letter.attempts, letter.reason) == ("hooks", 3, runs.dead[0].reason)
    assert (letter.headers, letter.key, letter.id) == ({"k": "v"}, "hook", id_)
    assert letter.died_at == NOON + 2 * MINUTE
    assert letter.traceback.startswith("Traceback")
    assert "in send_hook" in letter.traceback
    assert "inline.py" not in letter.traceback


def test_dead_letters_come_in_the_order_of_their_sends(t):
    fails.extend(ConnectionError(str(number)) for number in range(60))
    for number in range(20):
        send_hook.enqueue(str(number))
    t.advance(HOUR)
    assert [letter.args["url"] for letter in t.dead()] == [str(number) for number in range(20)]


def test_a_task_that_enqueues_itself_ends_the_call():
    own = cqueue.App()

    @own.task
    def again() -> None:
        again.enqueue()

    with own.testing() as t:
        again.enqueue()
        with pytest.raises(Endless, match="more than 10 messages"):
            t.drain(max_runs=10)


def test_a_task_cannot_drain_its_own_block():
    """The task's own message is held; the error is the run's."""
    own = cqueue.App()
    with own.testing() as t:
        task = own.task(lambda: t.drain() and None, name="task")
        task.enqueue()
        with pytest.raises(BadInput, match="are being run already"):
            t.drain(reraise=True)


def test_a_task_that_fails_at_once_for_ever_ends_the_call():
    own = cqueue.App()

    @own.task(retry=cqueue.Retry(timedelta()))
    def fail() -> None:
        raise LookupError

    with own.testing() as t:
        own.client.queue("default").alter(max_attempts=0)
        fail.enqueue()
        with pytest.raises(Endless):
            t.drain(max_runs=10)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (SystemExit(1), SystemExit),
        (asyncio.CancelledError(), asyncio.CancelledError),
        (cqueue.Interrupted(), TimeoutError),  # as at the time limit
    ],
    ids=repr,
)
def test_a_task_that_exits_has_failed(error, shown):
    """An exit, or an interrupt, fails the task, as on a worker, and does not end the test."""
    own = cqueue.App()

    @own.task
    async def leave() -> None:
        raise error

    with own.testing() as t:
        leave.enqueue()
        (run,) = t.drain()
    assert (run.outcome, type(run.error)) == ("retried", shown)


def test_a_task_of_a_newer_version_waits_for_it(t):
    """The message waits an hour without using an attempt, as in a dispatcher; then it fails."""
    app.send("mail", cqueue.Message(b"{}", task="newer", codec="json"))
    (job,) = t.enqueued()
    runs = [run for run in t.advance(HOUR - SECOND) if run.task == "newer"]
    assert {(run.outcome, run.attempt) for run in runs} == {("snoozed", 1)}
    assert [waiting.id for waiting in t.enqueued()] == [job.id]
    runs = [run for run in t.advance(HOUR) if run.task == "newer"]
    assert runs[-1].outcome == "dead"
    assert [letter.task for letter in t.dead()] == ["newer"]


def test_what_others_put_among_the_dead_letters_is_shown(t):
    """With as much as is known of it."""
    app.send("mail.dead", cqueue.Message(b"?", headers={"k": "v"}))
    (letter,) = t.dead()
    assert (letter.queue, letter.reason, letter.headers, letter.body) == ("mail", "", {"k": "v"}, b"?")


def test_an_interrupted_test_leaves_all_as_it_was():
    """An exception that ends a test is no failure of the task: it passes through."""
    own = cqueue.App()

    @own.task
    def stop() -> None:
        raise KeyboardInterrupt

    def test() -> None:
        with own.testing() as t:
            stop.enqueue()
            t.drain()

    with pytest.raises(KeyboardInterrupt):
        test()
    assert not own._link.is_lent


def test_coroutines_share_a_loop_and_run_inside_another_one():
    """A client of one run serves the next, and asynchronous tests can drain."""
    loops = []
    own = cqueue.App()

    @own.task
    async def work() -> None:
        loops.append(asyncio.get_running_loop())

    async def test() -> None:
        with own.testing() as t:
            for _ in range(3):
                work.enqueue()
                t.drain(reraise=True)

    asyncio.run(test())
    assert len(loops) == 3
    assert len(set(map(id, loops))) == 1


def test_a_source_is_enqueued_once(t):
    """One message is stored, as on Cassandra, also if it was sent with a time that has passed."""
    app.client.queue("mail").alter(derived_sends=True)
    for due in (NOON - HOUR, NOON - HOUR, NOON):
        mail.options(source="welcome ann", due=due).enqueue("ann")
    assert len(t.enqueued(mail)) == 2
    t.drain()
    mail.options(source="welcome ann", due=NOON).enqueue("ann")
    t.drain()
    assert ran == ["ann", "ann"]


def test_middleware_and_context_are_those_of_a_dispatcher():
    """With the attempt's number, and the block's time."""
    seen = []

    class Notes(cqueue.Middleware):
        def before_run(self, message, context):
            seen.append((message.task, context.attempt, context.max_attempts, context.now))

        def after_run(self, message, context, answer, error):
            seen.append(type(error))

    own = cqueue.App(middleware=[Notes()])
    task = own.task(lambda: 1 / 0, name="task", retry=cqueue.Retry(HOUR, max_attempts=2))
    with own.testing(now=NOON) as t:
        task.enqueue()
        t.advance(HOUR)
    assert seen == [
        ("task", 1, 2, NOON),
        ZeroDivisionError,
        ("task", 2, 2, NOON + HOUR),
        ZeroDivisionError,
    ]


# ── Time ──


def test_the_clock_stands_still_until_it_is_moved():
    """The clock begins at the current second, or where the test says."""
    with app.testing() as t:
        began = t.now
        assert abs(began - datetime.now(UTC)) < 5 * SECOND
        assert began.microsecond == 0
        program()
        t.drain()
        assert t.now == began
        t.advance(HOUR)
        assert t.now == began + HOUR
    with pytest.raises(BadInput, match="a datetime with a time zone"):
        app.testing(now=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is wrong
    with app.testing(now=NOON) as t:
        for bad in (-SECOND, 5, timedelta(days=9999)):
            with pytest.raises(BadInput, match="duration is"):
                t.advance(bad)


def test_advance_runs_each_at_its_time():
    """Delays, retries and schedules among each other, in the order of time, whatever their queues."""
    seen = []
    own = cqueue.App()

    @own.task(queue="a", retry=cqueue.Retry(timedelta(minutes=4)))
    def flaky() -> None:
        note("flaky")
        if cqueue.current_context().attempt < 3:
            raise ConnectionError

    @own.task(queue="b")
    def delayed() -> None:
        note("delayed")

    @own.periodic("*/3 * * * *", queue="c")
    def tick(fired_at: datetime) -> None:
        assert fired_at == cqueue.current_context().now
        note("tick")

    def note(what: str) -> None:
        seen.append((what, (cqueue.current_context().now - NOON) / MINUTE))

    with own.testing(now=NOON) as t:
        flaky.enqueue()
        delayed.options(delay=5 * MINUTE).enqueue()
        runs = t.advance(9 * MINUTE)
        assert [run.at for run in runs] == sorted(run.at for run in runs)
        assert t.now == NOON + 9 * MINUTE
    assert seen == [
        ("flaky", 0), ("tick", 3), ("flaky", 4), ("delayed", 5), ("tick", 6), ("flaky", 8), ("tick", 9),
    ]  # fmt: skip


def test_nothing_comes_before_its_time(t):
    """Every message comes at its time, also the retry of a delayed message."""
    fails.append(ConnectionError())
    mail.options(delay=HOUR).enqueue("ann")
    send_hook.options(delay=HOUR - SECOND).enqueue("http://a")
    for duration, hooks, mails in (
        (HOUR - SECOND, 1, 0),
        (SECOND, 0, 1),
        (MINUTE - 2 * SECOND, 0, 0),
        (SECOND, 1, 0),
    ):
        runs = t.advance(duration)
        assert (len(runs.of(send_hook)), len(runs.of(mail))) == (hooks, mails)


@pytest.mark.parametrize("seconds", [0.1, 0.25, 0.7, 1.1, 2.05])
def test_a_retry_comes_when_the_clock_is_moved_by_its_delay(seconds):
    """Retries are due at whole tenths of a second, to which the clock is moved as well."""
    delay = timedelta(seconds=seconds)
    own = cqueue.App(retry=cqueue.Retry(delay))
    task = own.task(lambda: 1 / 0, name="task")
    with own.testing() as t:
        for _ in range(3):
            t.advance(0.03 * SECOND)
            task.enqueue()
            t.drain()
            (job,) = t.enqueued()
            assert [run.attempt for run in t.advance(delay)] == [2]
            assert t.now >= job.due
            assert t.now.microsecond % 100_000 == 0
            own.client.queue("default").purge()


def test_a_message_that_nobody_settled_comes_again_after_its_timeout(t):
    """The message's consumer has vanished; the attempt counts."""
    mail.enqueue("ann")
    consumer = app.client.queue("mail").consumer()
    assert len(consumer.receive(1)) == 1
    assert not t.drain()
    assert not t.advance(29 * SECOND)
    (run,) = t.advance(SECOND)
    assert (run.task, run.attempt) == (mail.name, 2)
    consumer.close()


def test_a_message_whose_timeout_has_passed_is_enqueued_again(t):
    """Also before anybody has received it."""
    mail.enqueue("ann")
    app.client.queue("mail").consumer().receive(1)
    assert not t.enqueued()
    t._clock.move_to(t._clock.now_us() + 30_000_000)
    assert [job.attempt for job in t.enqueued()] == [2]


def test_a_message_that_was_left_comes_again_after_its_timeout():
    own = cqueue.App()
    task = own.task(lambda: False, name="leave")
    with own.testing() as t:
        task.enqueue()
        (run,) = t.drain()
        assert (run.outcome, run.delay) == ("left", 30 * SECOND)
        assert not t.advance(29 * SECOND)
        assert [run.attempt for run in t.advance(SECOND)] == [2]


def test_a_message_without_attempts_left_is_buried_unseen(t):
    """Its leases expired too often; it is a dead letter without a last run."""
    mail.enqueue("ann")
    for _ in range(5):
        consumer = app.client.queue("mail").consumer()
        assert len(consumer.receive(1)) == 1
        consumer._settler._leases.clear()  # as if its process were gone
        consumer.close()
        t._clock.move_to(t._clock.now_us() + 30_000_000)
    assert not [run for run in t.drain() if run.queue == "mail"]
    (letter,) = t.dead(mail)
    assert letter.reason == "not acked in 5 attempts"
    assert letter.traceback == ""


def test_a_paused_queue_gives_nothing(t):
    """A paused queue does not keep `drain` from its end."""
    app.client.queue("mail").pause()
    mail.enqueue("ann")
    assert not t.drain()
    t.advance(MINUTE)
    app.client.queue("mail").resume()
    assert [run.task for run in t.drain()] == [mail.name]


def test_a_day_of_hours_takes_a_moment():
    """Schedules run as often as they would."""
    own = cqueue.App()
    times = []

    @own.periodic("@hourly")
    def tick(fired_at: datetime) -> None:
        times.append(fired_at)

    with own.testing(now=NOON) as t:
        t.advance(timedelta(days=1))
    assert times == [NOON + number * HOUR for number in range(1, 24 + 1)]


# ── Schedules ──


def test_a_result_is_of_the_blocks_time():
    """As everything that is stored there."""
    own = cqueue.App()
    double = own.task(queue="work", result_ttl=timedelta(hours=1))(lambda value: 2 * value)
    with own.testing(now=NOON) as t:
        handle = double.enqueue(2)
        t.drain()
        assert own.client.queue("work").result(handle).at == NOON


def test_a_queue_keeps_its_history():
    """As with a dispatcher; what was told within one millisecond stays in the order in which it was told."""
    own = cqueue.App()

    @own.task(queue="work", retry=cqueue.Retry(timedelta(), max_attempts=3))
    def job() -> None:
        if cqueue.current_context().attempt == 2:
            handle.cancel()
        raise ValueError("no")

    with own.testing(now=NOON) as t:
        queue = own.client.queue("work")
        queue.alter(history=timedelta(days=1))
        handle = job.enqueue()
        t.drain()
        t.advance(10 * SECOND)
        events = queue.history(handle)
    assert [(one.state, one.attempt, one.error) for one in events] == [
        ("retried", 1, "ValueError"),
        ("retried", 2, "ValueError"),
        ("lost", 2, None),
    ]
    assert {one.at for one in events} == {NOON}


@pytest.mark.parametrize("gone", ["purge", "cancel"])
def test_a_schedule_goes_on_when_its_firing_is_gone(gone):
    """The next firing is lost with it, and the schedule goes on with the time after that."""
    own = cqueue.App()
    times = []

    @own.periodic("*/10 * * * *", queue="cron")
    def tick(fired_at: datetime) -> None:
        times.append(fired_at)

    with own.testing(now=NOON) as t:
        t.advance(15 * MINUTE)
        queue = own.client.queue("cron")
        if gone == "purge":
            queue.purge()
        else:
            assert queue.cancel(queue.peek()[0].id)
        t.advance(30 * MINUTE)
    assert times == [NOON + minutes * MINUTE for minutes in (10, 30, 40)]


def test_a_deadline_is_on_the_clock_of_the_block():
    """A long task that compares it with `now` has the time that its timeout gives it."""
    own = cqueue.App()

    @own.task(queue="work", timeout=MINUTE)
    def job() -> timedelta:
        context = cqueue.current_context()
        return context.deadline - context.now

    with own.testing(now=NOON) as t:
        job.enqueue()
        (run,) = t.drain()
    assert run.result == MINUTE


def test_what_a_test_changes_about_schedules_and_queues_stays():
    """As with a dispatcher that runs: only a start of one declares schedules, and checks queues."""
    own = cqueue.App(retry=cqueue.Retry(MINUTE, max_attempts=9))
    ran = []

    @own.periodic("*/10 * * * *", queue="cron", key="tick")
    def tick() -> None:
        ran.append("tick")

    with own.testing(now=NOON) as t:
        queue = own.client.queue("cron")
        queue.schedules.remove("tick")
        assert not t.advance(HOUR).succeeded
        queue.alter(max_attempts=2)
        assert not t.advance(HOUR)

        @own.periodic("*/30 * * * *", queue="other", name="late")
        def late() -> None:
            ran.append("late")

        queue.alter(max_attempts=9)
        t.advance(HOUR)
    assert sorted(ran) == ["late"] * 2 + ["tick"] * 6


@pytest.mark.parametrize("now", [datetime(1970, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)], ids=str)
def test_a_clock_begins_where_times_can_be_stored(now):
    """A time before or after that is refused as the block is made."""
    with pytest.raises(BadInput, match="a clock begins from 1971-01-01 to 3000-01-01"):
        app.testing(now=now)


@pytest.mark.parametrize("year", [1971, 3000])
def test_the_first_and_the_last_clock_work(year):
    """Messages and schedules come at their times."""
    with app.testing(now=datetime(year, 1, 1, tzinfo=UTC)) as t:
        mail.enqueue("ann")
        assert len(t.advance(HOUR).of(clean)) == 6
        assert ran.count("ann") == 1


def test_fire_runs_a_periodic_task_now(t):
    """With its firing; what it enqueues stays to be looked at, and its own times stay as they are."""
    run = t.fire(clean)
    assert ran == [(NOON, True)]
    assert (run.task, run.outcome, run.queue) == (clean.name, "succeeded", "cron")
    schedule = app.client.queue("cron").schedules.get(clean.name)
    assert (schedule.fired, schedule.next_at) == (0, NOON + 10 * MINUTE)
    t.advance(10 * MINUTE)
    assert ran[1:] == [(NOON + 10 * MINUTE, False)]


def test_fire_runs_nothing_beside_it(t):
    """Other due messages of the queue wait on, in their order and with all their attempts."""
    for number in range(3):
        clean.enqueue(fired_at=NOON + number * HOUR)
    clean_fails.append(LookupError("once"))
    run = t.fire(clean)
    assert isinstance(run.error, LookupError)
    assert run.outcome == "retried"
    assert len(ran) == 1
    assert [job.attempt for job in t.enqueued(clean)] == [1, 1, 1, 2]


def test_a_fired_task_finds_what_is_due_beside_it():
    """As beside any other run: those messages wait, and can be replaced and cancelled."""
    own = cqueue.App()
    seen: list[object] = []

    @own.task(queue="work")
    def job(number: int) -> None:
        seen.append(number)

    @own.periodic("0 3 * * *", queue="work")
    def tidy() -> None:
        seen.extend(job.args["number"] for job in t.enqueued(job))
        seen.append(handle.state())
        job.options(unique=cqueue.Unique(key="k", on_conflict="replace")).enqueue(3)
        seen.append(handle.cancel())

    with own.testing(now=NOON) as t:
        job.options(unique=cqueue.Unique(key="k")).enqueue(1)
        handle = job.enqueue(2)
        t.fire(tidy, reraise=True)
        t.drain()
    assert seen == [1, 2, "waiting", True, 3]


def test_fire_raises_if_it_is_asked_to(t):
    clean_fails.append(LookupError("once"))
    with pytest.raises(LookupError, match="once"):
        t.fire(clean, reraise=True)


def test_only_what_has_a_schedule_can_be_fired(t):
    with pytest.raises(BadInput, match=r"has no schedule in this application; define it with @app.periodic"):
        t.fire(mail)
    app.client.queue("cron").pause()
    with pytest.raises(BadInput, match="paused"):
        t.fire(clean)
    app.client.queue("cron").resume()
