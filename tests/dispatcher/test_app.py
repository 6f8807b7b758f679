"""The application: connecting late, making queues, middleware, and running tasks inline."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
import tenacity

import cqueue
from cqueue import client as clients
from cqueue.dispatcher.application.app import provision

MINUTE = timedelta(minutes=1)


@pytest.fixture
def app():
    with cqueue.App("memory://") as app:
        yield app


def send(to: str, subject: str = "hi") -> None:
    """A task."""


# ── Connecting ──


@pytest.fixture
def connections(monkeypatch):
    """URLs that were connected to; each is a store in memory."""
    urls = []

    def connect(url, *, lazy):
        assert not lazy
        urls.append(url)
        return cqueue.Client(clients._memory_store(""))

    monkeypatch.setattr(clients, "connect", connect)
    return urls


def test_nothing_is_connected_before_it_is_needed(connections):
    """Modules with tasks are imported by tests and by workers that fork."""
    with cqueue.App("cassandra://db/shop") as app:
        task = app.task(send)
        task("a@b")
        task.message("a@b")
        assert connections == []
        app.setup()
        task.enqueue("a@b")
        assert connections == ["cassandra://db/shop"]


def test_without_a_url_the_environment_decides(monkeypatch):
    """`CQUEUE_URL`, as with `connect`."""
    monkeypatch.setenv("CQUEUE_URL", "memory://of-the-environment")
    with cqueue.App() as app, cqueue.connect("memory://of-the-environment") as other:
        app.client.create_queue("mail")
        assert "mail" in other.queues()


def test_threads_connect_once(connections):
    app = cqueue.App("cassandra://db/shop")
    start, seen = threading.Barrier(8), []

    def ask():
        start.wait()
        seen.append(app.client)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, seen))) == len(connections) == 1
    app.close()


def test_the_name_of_a_queue_is_not_a_url():
    """The application says so when it is made; it may hold a password, so it is not quoted."""
    with pytest.raises(cqueue.ConfigError, match="did you mean queue=") as caught:
        cqueue.App("work")
    assert "work" not in str(caught.value)


def test_a_client_that_was_given_stays_open():
    """The caller who gave the client closes it."""
    with cqueue.connect("memory://") as client:
        with cqueue.App(client) as app:
            assert app.client is client
        client.create_queue("mail")


def test_a_closed_application_says_so(app):
    """A closed application raises `Closed`, also if it never was connected."""
    app.client.create_queue("mail")
    app.task(queue="mail")(send)
    client = app.client
    app.close()
    app.close()
    with pytest.raises(cqueue.Closed, match="make another App"):
        app.setup()
    with pytest.raises(cqueue.Closed):
        client.create_queue("other")


def test_anything_else_is_no_target():
    with pytest.raises(cqueue.BadInput, match="a URL or a Client"):
        cqueue.App(b"memory://")


@pytest.mark.parametrize(
    "wrong",
    [{"queue": 5}, {"queue": "no name"}, {"retry": 5}, {"codec": 5}, {"codec": "xml"}, {"spool": "/spool"}],
    ids=repr,
)
def test_what_tasks_take_from_the_application_is_checked_where_it_stands(wrong):
    """Otherwise the first task would be refused, in another module, by a name that its author never wrote."""
    with pytest.raises(cqueue.BadInput):
        cqueue.App("memory://", **wrong)


# ── Queues ──


def test_setup_makes_missing_queues_with_enough_attempts(app):
    """A new queue allows what its most patient task may use, and no less than the default; others stay."""
    app.client.create_queue("old", cqueue.QueueConfig(max_attempts=7, shards=2))
    policies = {
        ("mail", "a"): cqueue.Retry(max_attempts=20),
        ("mail", "b"): cqueue.Retry(stop=tenacity.stop_after_attempt(30)),
        ("slow", "c"): cqueue.Retry(max_attempts=2),
        ("old", "d"): cqueue.Retry(max_attempts=7),
    }
    for (queue, name), policy in policies.items():
        app.task(queue=queue, name=name, retry=policy)(send)
    for _ in range(2):
        queues = app.setup()
        assert {queue.name: queue.config.max_attempts for queue in queues} == {
            "mail": 30,
            "slow": 5,
            "old": 7,
        }
    assert app.client.queue("old").config.shards == 2
    assert not app.client.queue("mail").config.derived_sends


def test_a_queue_with_too_few_attempts_is_an_error_with_the_remedy(app):
    """Raising it is a decision for all who use the queue; which command does it is said for each."""
    for queue in ("mail", "audit"):
        app.client.create_queue(queue)
        app.task(queue=queue, name=queue, retry=cqueue.Retry(max_attempts=20))(send)
    with pytest.raises(cqueue.ConfigError) as caught:
        app.setup()
    assert "cqueue queue alter mail --max-attempts 20" in str(caught.value)
    assert "cqueue queue alter audit --max-attempts 20" in str(caught.value)
    for queue in ("mail", "audit"):
        app.client.queue(queue).alter(max_attempts=20)
    assert len(app.setup()) == 2


def test_a_queue_without_a_limit_is_enough(app):
    app.client.create_queue("mail", cqueue.QueueConfig(max_attempts=0))
    app.task(queue="mail", retry=cqueue.Retry(max_attempts=20))(send)
    assert [queue.name for queue in app.setup()] == ["mail"]


def test_two_processes_may_set_up_at_once(app):
    """The process that comes second finds the queue."""
    app.task(queue="mail", retry=cqueue.Retry(max_attempts=20))(send)

    class Slow:
        """A client that learns that the queue is missing just before somebody else makes it."""

        def __init__(self):
            self.asked = 0

        def queue(self, name):
            self.asked += 1
            if self.asked == 1:
                app.setup()
                raise cqueue.QueueNotFound(name)
            return app.client.queue(name)

        def create_queue(self, name, config):
            return app.client.create_queue(name, config)

    assert [queue.name for queue in provision(Slow(), app._registry.queues())] == ["mail"]


# ── Middleware ──


class Recorder(cqueue.Middleware):
    """Writes down what it is told, and marks what is sent."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def note(self, what, *more):
        self.notes.append((self.name, what, *more))

    def before_send(self, queue, message):
        self.note("before_send", queue)
        return cqueue.Message(
            message.body, task=message.task, headers={**(message.headers or {}), self.name: "was here"}
        )

    def after_send(self, queue, message, message_id):
        self.note("after_send", message.headers is not None, isinstance(message_id, cqueue.MessageId))

    def before_run(self, message, context):
        self.note("before_run", message.headers.get("outer"), context.attempt)

    def after_run(self, message, context, answer, error):
        self.note("after_run", answer, type(error))

    def before_ack(self, messages):
        self.note("before_ack", len(messages))

    def after_ack(self, messages):
        self.note("after_ack", len(messages))


@pytest.fixture
def notes():
    return []


@pytest.fixture
def watched(notes):
    with cqueue.App("memory://", middleware=[Recorder("outer", notes), Recorder("inner", notes)]) as app:
        yield app


@pytest.fixture
def t(app):
    with app.testing() as t:
        yield t


def test_middleware_stands_around_sends_and_runs(watched, notes):
    """The `before_` hooks in order, the `after_` ones in the opposite one; what one changes the next sees."""
    task = watched.task(queue="mail")(send)
    with watched.testing() as t:
        task.enqueue("a@b")
        t.drain()
    assert notes == [
        ("outer", "before_send", "mail"),
        ("inner", "before_send", "mail"),
        ("inner", "after_send", True, True),
        ("outer", "after_send", True, True),
        ("outer", "before_run", "was here", 1),
        ("inner", "before_run", "was here", 1),
        ("inner", "after_run", None, type(None)),
        ("outer", "after_run", None, type(None)),
        ("outer", "before_ack", 1),
        ("inner", "before_ack", 1),
        ("inner", "after_ack", 1),
        ("outer", "after_ack", 1),
    ]


def test_middleware_sees_the_error_of_a_run(watched, notes):
    @watched.task
    def fail() -> None:
        raise LookupError

    with watched.testing() as t:
        fail.enqueue()
        notes.clear()
        t.drain()
    assert ("outer", "after_run", None, LookupError) in notes
    assert not any("ack" in what for _, what, *_ in notes)


def test_many_and_other_messages_pass_it_too(watched, notes):
    """The middleware sees every message that the application sends; only stored messages are reported."""
    task = watched.task(queue="mail")(send)
    watched.setup()
    result = task.enqueue_many([task.message("a"), task.message("b")])
    watched.send("mail", cqueue.Message(b"{}"))
    watched.send_many("mail", [cqueue.Message(b"{}")])
    told = [note for note in notes if note[:2] == ("outer", "after_send")]
    assert len(result.ids) == 2
    assert len(told) == 4


class Refusing(cqueue.Middleware):
    def before_send(self, queue, message):
        raise PermissionError("not today")


def test_a_before_hook_that_fails_stops_the_send():
    with cqueue.App("memory://", middleware=[Refusing()]) as app:
        task = app.task(queue="mail")(send)
        app.setup()
        with pytest.raises(PermissionError):
            task.enqueue("a@b")
        with pytest.raises(PermissionError):
            task.enqueue_many([task.message("a@b")])
        assert app.client.queue("mail").stats(exact=True).live == 0


class Forgetful(cqueue.Middleware):
    def before_send(self, queue, message):
        """Look at the message, and return nothing."""


def test_a_hook_before_a_send_that_returns_nothing_is_named():
    app = cqueue.App("memory://", middleware=[Forgetful()])
    task = app.task(queue="mail")(send)
    with app.testing():
        for call in (task.enqueue, task.statement):
            with pytest.raises(
                cqueue.BadInput, match=r"Forgetful.before_send returned None; .* returns the message"
            ):
                call("a@b")


class Breaking(cqueue.Middleware):
    def after_send(self, queue, message, message_id):
        raise RuntimeError("broken")

    def after_run(self, message, context, answer, error):
        raise RuntimeError("broken")

    def before_ack(self, messages):
        raise RuntimeError("broken")

    def after_ack(self, messages):
        raise RuntimeError("broken")


def test_hooks_about_what_has_happened_change_nothing(caplog):
    """The sender gets its id and the message is acked, whatever they raise; it is logged."""
    app = cqueue.App("memory://", middleware=[Breaking()])
    task = app.task(queue="mail")(send)
    with app.testing() as t:
        assert isinstance(task.enqueue("a@b"), cqueue.MessageId)
        assert len(t.drain().succeeded) == 1
        assert app.client.queue("mail").stats(exact=True).live == 0
    for hook in ("after_send", "after_run", "before_ack", "after_ack"):
        assert hook in caplog.text


def test_an_unknown_outcome_reaches_the_caller(app, monkeypatch):
    """With the ids of what may be stored."""
    task = app.task(queue="mail")(send)
    app.setup()
    unknown = cqueue.SendUnknown("as if", ["id"])

    class Result:
        ids, failed = [None], [(0, unknown)]

    monkeypatch.setattr(cqueue.Queue, "send_many", lambda _self, _messages: Result())
    with pytest.raises(cqueue.SendUnknown) as caught:
        task.enqueue("a@b")
    assert caught.value is unknown


# ── Running inline ──


def test_tasks_run_with_what_was_enqueued(app, t):
    """Plain ones and coroutines, also what they enqueue, until nothing is due; delayed ones stay."""
    ran = []

    @app.task(queue="mail")
    def first(to: str, *, at: datetime) -> None:
        ran.append((to, at))
        second.enqueue({to})

    @app.task(queue="a-queue-before")
    async def second(people: set[str]) -> None:
        ran.append(people)

    app.setup()
    at = datetime(2031, 1, 1, tzinfo=UTC)
    id_ = first.enqueue("a@b", at=at)
    first.options(delay=MINUTE).enqueue("later", at=at)
    runs = t.drain()
    assert ran == [("a@b", at), {"a@b"}]
    assert [(run.task, run.attempt, run.outcome, run.error) for run in runs] == [
        (first.name, 1, "succeeded", None),
        (second.name, 1, "succeeded", None),
    ]
    assert runs[0].id == id_
    assert app.client.queue("mail").stats(exact=True).delayed == 1


def test_an_error_is_raised_after_its_message_was_settled(app, t):
    """A test sees it, and the message is retried as it would be."""

    @app.task(retry=cqueue.Retry(MINUTE))
    def fail() -> None:
        raise LookupError("gone")

    app.setup()
    fail.enqueue()
    with pytest.raises(LookupError):
        t.drain(reraise=True)
    assert not t.drain()
    assert app.client.queue("default").stats().waiting == 1


def test_a_task_is_retried_until_it_is_dead(app, t):
    """The task's policy decides; the dead letter has the reason."""

    @app.task(retry=cqueue.Retry(timedelta(), max_attempts=3))
    def fail() -> None:
        raise LookupError("gone")

    app.setup()
    fail.enqueue()
    runs = t.drain()
    assert [run.attempt for run in runs] == [1, 2, 3]
    (letter,) = app.client.queue("default.dead").peek()
    assert letter.headers["cqueue-dead-reason"] == "attempt 3 of 3: LookupError: gone"
    assert "in fail" in letter.headers["cqueue-dead-traceback"]


@pytest.mark.parametrize(
    ("answer", "waiting", "dead"),
    [
        (None, 0, 0),
        (True, 0, 0),
        (cqueue.Cancel("no need"), 0, 0),
        (cqueue.Dead("nonsense"), 0, 1),
        (cqueue.Retry(MINUTE), 1, 0),
        (cqueue.Retry(), 1, 0),
        (cqueue.Snooze(MINUTE), 1, 0),
    ],
    ids=repr,
)
def test_answers_settle_the_message(app, t, answer, waiting, dead):
    """Each in its way."""

    @app.task
    def say() -> cqueue.Cancel | cqueue.Dead | cqueue.Retry | cqueue.Snooze | bool | None:
        return answer

    app.setup()
    say.enqueue()
    assert len(t.drain()) == 1
    stats = app.client.queue("default").stats(exact=True)
    assert (stats.waiting, stats.claimed, stats.ready) == (waiting, 0, 0)
    assert app.client.queue("default.dead").stats(exact=True).live == dead


def test_false_leaves_the_message_to_its_timeout(app, t):
    @app.task
    def leave() -> bool:
        return False

    app.setup()
    leave.enqueue()
    (run,) = t.drain()
    assert (run.outcome, run.delay) == ("left", timedelta(seconds=30))


def test_a_task_that_returns_a_value_has_done_its_work(app, t):
    """The task runs once, and its message is acked."""

    @app.task
    def count() -> int:
        return 5

    app.setup()
    count.enqueue()
    (run,) = t.drain()
    assert (run.outcome, run.result, run.error) == ("succeeded", 5, None)
    assert app.client.queue("default").stats(exact=True).live == 0


def test_an_action_without_its_brackets_does_not_pass_for_a_value(app, t):
    """`return Retry` is a slip, and the message is still there."""

    @app.task
    def again() -> type[cqueue.Retry]:
        return cqueue.Retry

    app.setup()
    again.enqueue()
    with pytest.raises(TypeError, match="the class Retry"):
        t.drain(reraise=True)
    assert app.client.queue("default").stats(exact=True).live == 1


def _enqueue_raw(app, t, **fields):
    app.setup()
    app.send("default", cqueue.Message(fields.pop("body", b"{}"), **fields))
    (run,) = t.drain()
    return run


def test_an_unknown_task_waits(app, t):
    """The next deployment may have it; no attempt is used."""
    app.task(name="send")(send)
    run = _enqueue_raw(app, t, task="snd")
    assert isinstance(run.error, cqueue.UnknownTask)
    assert (run.outcome, run.delay) == ("snoozed", timedelta(seconds=1))


def test_an_application_says_how_long_unknown_tasks_wait():
    """The application's value is the default of its dispatchers; 0 retries at once."""
    with cqueue.App("memory://", unknown_task_wait=timedelta()) as app:
        app.task(name="send")(send)
        with app.testing() as t:
            assert _enqueue_raw(app, t, task="snd").outcome == "retried"
        assert app.dispatcher().options.unknown_task_wait == timedelta()
        assert app.dispatcher(unknown_task_wait=MINUTE).options.unknown_task_wait == MINUTE
    with pytest.raises(cqueue.BadInput, match="unknown_task_wait"):
        cqueue.App(unknown_task_wait=-MINUTE)


def test_a_firing_of_an_unknown_task_leaves_its_schedule_alone(app, t):
    app.task(name="send")(send)
    (queue,) = app.setup()
    queue.schedules.add("k", cqueue.RunOnce(timedelta()), task="snd")
    before = queue.schedules.store.read("k")
    (run,) = t.drain()
    assert run.outcome == "snoozed"
    assert queue.schedules.store.read("k") == before


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"body": b"{"}, "cannot be read as json"),
        ({"body": b'{"args": []}'}, "missing a required argument: 'to'"),
        ({"body": b'{"args": [1, 2, 3]}'}, "another version of the function"),
        ({"body": b'{"kwargs": {"too": 1}}'}, "unexpected keyword argument 'too'. Did you mean 'to'?"),
        ({"codec": "pickle"}, "cannot be read as pickle"),
    ],
)
def test_arguments_of_another_version_wait_whatever_the_policy(app, t, fields, why):
    """Such arguments are no failure of the task: neither its rules nor its limit count."""
    policy = cqueue.Retry(max_attempts=1, rules={Exception: cqueue.Cancel()})
    app.task(name="send", retry=policy)(send)
    run = _enqueue_raw(app, t, task="send", **fields)
    assert isinstance(run.error, cqueue.PayloadMismatch)
    assert (run.outcome, run.delay) == ("snoozed", timedelta(seconds=1))
    assert why in str(run.error)


def test_a_task_can_have_a_rule_of_its_own_for_them(app, t):
    policy = cqueue.Retry(rules={cqueue.PayloadMismatch: cqueue.Dead("no way")})
    app.task(name="send", retry=policy)(send)
    run = _enqueue_raw(app, t, task="send", body=b"{")
    assert (run.outcome, run.reason) == ("dead", "no way")


# ── The context ──


def test_a_task_can_ask_for_its_context_and_message(app, t):
    """On its thread and in its coroutine; afterwards there is none."""
    seen = []

    def look():
        context, message = cqueue.current_context(), cqueue.current_message()
        seen.append((context.task, context.queue, context.attempt, context.max_attempts, message.headers))

    @app.task(name="plain")
    def plain() -> None:
        look()

    @app.task(name="coroutine", retry=cqueue.Retry(max_attempts=3))
    async def coroutine() -> None:
        look()

    app.setup()
    for task in (plain, coroutine):
        task.options(headers={"k": "v"}).enqueue()
        t.drain(reraise=True)
    assert seen == [
        ("plain", "default", 1, 5, {"k": "v"}),
        ("coroutine", "default", 1, 3, {"k": "v"}),
    ]
    for ask in (cqueue.current_context, cqueue.current_message):
        with pytest.raises(cqueue.BadInput, match="no task is run by a dispatcher here"):
            ask()


def test_the_contexts_logger_says_which_run_it_is(app, t, caplog):
    caplog.set_level("INFO")

    @app.task(name="talk")
    def talk() -> None:
        cqueue.current_context().log.info("talked", words=3)

    app.setup()
    id_ = talk.enqueue()
    t.drain(reraise=True)
    assert "talked" in caplog.text
    assert id_ in caplog.text


# ── With a dispatcher ──


def test_a_dispatcher_runs_the_tasks(app):
    """Plain ones and coroutines, by their names, with their own policies, from all their queues."""
    seen = []

    @app.task(queue="mail", retry=cqueue.Retry(timedelta(), max_attempts=3))
    def fail(to: str) -> None:
        seen.append((to, cqueue.current_context().attempt))
        raise ValueError(to)

    @app.task(name="fetch")
    async def fetch(url: str) -> None:
        seen.append((url, cqueue.current_context().task))

    with app.dispatcher(threads=2) as dispatcher:
        assert isinstance(dispatcher, cqueue.Dispatcher)
        fail.enqueue("a@b")
        fetch.enqueue("url")
        assert dispatcher.drain(MINUTE)
    assert sorted(seen) == [("a@b", 1), ("a@b", 2), ("a@b", 3), ("url", "fetch")]
    (letter,) = app.client.queue("mail.dead").peek()
    assert letter.headers["cqueue-dead-reason"] == "attempt 3 of 3: ValueError: a@b"


def test_a_dispatcher_has_the_middleware_and_the_queues_asked_for(watched, notes):
    """The application's middleware comes first; queues of other tasks are left alone."""
    mail, audit = (watched.task(queue=name, name=name)(send) for name in ("mail", "audit"))
    more = []
    with watched.dispatcher("mail", middleware=[Recorder("more", more)]) as dispatcher:
        mail.enqueue("a@b")
        audit.enqueue("a@b")
        assert dispatcher.drain(MINUTE)
    assert ("outer", "before_run", "was here", 1) in notes
    assert ("more", "before_run", "was here", 1) in more
    assert watched.client.queue("mail").stats(exact=True).live == 0
    assert watched.client.queue("audit").stats(exact=True).ready == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"bad_option": 5},
        {"threads": 0},
        {"on_event": 5},
        {"middleware": [5]},
        {"queues": 5},
        {"queues": [["mail"]]},
        {"queues": ["mail", "nope"]},
        {"queues": ["mail", "mail"]},
    ],
    ids=repr,
)
def test_a_dispatcher_with_wrong_arguments_makes_no_queue(app, wrong):
    app.task(queue="mail")(send)
    with pytest.raises(cqueue.BadInput):
        app.dispatcher(**wrong)
    assert app.client.queues() == []


def test_a_dispatcher_starts_with_queues_that_are_right(app):
    """The queues are set up and checked before the start; without tasks there is an error."""
    with pytest.raises(cqueue.ConfigError):
        app.dispatcher()
    app.client.create_queue("mail")
    app.task(queue="mail", retry=cqueue.Retry(max_attempts=20))(send)
    with pytest.raises(cqueue.ConfigError, match="--max-attempts 20"):
        app.dispatcher()
    with pytest.raises(cqueue.ConfigError, match="--max-attempts 20"):
        app.dispatcher(["mail"])


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"task": "snd"}, "message_snoozed"),
        ({"task": "send", "body": b"{"}, "message_snoozed"),
        ({}, "message_retried"),
    ],
)
def test_a_dispatcher_loses_nothing_that_it_does_not_know(app, fields, event):
    """Unknown tasks and arguments wait for the next deployment; what names no task is retried."""
    app.task(name="send", retry=cqueue.Retry(max_attempts=1))(send)
    events = []
    dispatcher = app.dispatcher(on_event=lambda name, more: events.append((name, more.get("attempt"))))
    with dispatcher:
        app.send("default", cqueue.Message(fields.get("body", b"{}"), task=fields.get("task")))
        assert dispatcher.drain(MINUTE)
    assert (event, 1) in events
    assert app.client.queue("default").stats(exact=True).waiting == 1


def test_who_forgets_setup_is_told_to_call_it():
    """`create_queue` would make the queue without the attempts that its tasks want."""
    app = cqueue.App("memory://", queue="mail")
    task = app.task(lambda: None, name="send")
    with app, pytest.raises(cqueue.QueueNotFound, match=r"no queue 'mail' yet; app\.setup\(\) makes"):
        task.enqueue()
