"""A marked secret goes through a message's whole life, and stands in no log line, repr or exception.

Bodies, arguments and headers are the application's, and so is the text of what its handlers raise. A person
who reads the logs need not have the right to read the messages.
"""

import io
import logging
import traceback
from datetime import timedelta
from unittest import mock

import pytest
import structlog

import cqueue
from cqueue import quarantine
from cqueue.client import Client
from cqueue.dispatcher.application.payload import encode
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.dispatcher.service import logs
from cqueue.errors import OutcomeUnknown, Unavailable
from cqueue.runtime.logs import TRACEBACKS
from cqueue.spool import Spool
from cqueue.spool.forwarder import Forwarder
from cqueue.store.operations import InsertMessages, ReadMessages
from cqueue.store.quarantine import Damage
from tests.fix_dispatcher import SOON, until
from tests.fix_store import brief_store

SECRET = "hush-4929-1111"
MARK = SECRET.encode()
NOW = timedelta()


class Written:
    """What all loggers of the process have written, and what a test adds by hand."""

    def __init__(self, stream):
        self.stream = stream

    def add(self, *things):
        """Add the reprs of things, and of exceptions the texts of their whole chains as well."""
        for thing in things:
            self.stream.write(f"{thing!r} {thing}\n")
            if isinstance(thing, BaseException):
                # Frames show the source lines of this file; only the exceptions' texts count.
                chain = traceback.TracebackException.from_exception(thing, limit=0)
                self.stream.write("".join(chain.format()))

    def raised(self, kind, call, *args, **options):
        with pytest.raises(kind) as caught:
            call(*args, **options)
        self.add(caught.value)

    def check(self, *events):
        """Find these events, and the secret nowhere."""
        text = self.stream.getvalue()
        for event in events:
            assert event in text, f"{event} was to be logged"
        for form in (SECRET, MARK.hex(), repr(MARK)[2:-1]):
            where = text.find(form)
            assert where < 0, text[max(0, where - 300) : where + 100]


@pytest.fixture(params=["json", "console", "plain"])
def written(request):
    """All lines of all loggers, at DEBUG and with every traceback: as a daemon writes them in either form, or
    as a program does that has configured only the standard library.
    """
    root = logging.getLogger()
    names = (None, "cqueue", logs.DRIVER, TRACEBACKS)
    before, levels = root.handlers[:], {name: logging.getLogger(name).level for name in names}
    stream = io.StringIO()
    if request.param == "plain":
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s %(exc_info)s"))
        root.handlers[:] = [handler]
        logging.getLogger("cqueue").setLevel(logging.DEBUG)
        logging.getLogger(TRACEBACKS).setLevel(logging.DEBUG)
    else:
        logs.configure(logs.Format(request.param), verbose=True, stream=stream)
    root.setLevel(logging.DEBUG)
    yield Written(stream)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()
    root.handlers[:] = before
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class Faulty:
    """A store whose operations a test may refuse."""

    def __init__(self):
        self.memory = brief_store()
        self.refuse = lambda _operation: None

    def __getattr__(self, name):
        return getattr(self.memory, name)

    def execute(self, operation):
        return self._do(operation, lambda: self.memory.execute(operation))

    def together(self, operations):
        return [self.refuse(each) or self.memory.together((each,))[0] for each in operations]

    def _do(self, operation, call):
        if (error := self.refuse(operation)) is not None:
            raise error
        return call()


@pytest.fixture
def store():
    return Faulty()


@pytest.fixture
def client(store):
    with Client(store) as client:
        client.create_queue("mail", cqueue.QueueConfig(max_attempts=2))
        yield client


def run(app, *queues, **options):
    options = {"ack_interval": timedelta(milliseconds=5), **options}
    with Dispatcher(list(queues), app, **options) as dispatcher:
        assert dispatcher.drain(SOON)


def fail(*_args, **_more):
    """Fail as handlers do: with a text that quotes what they were given, for a cause that does too."""
    try:
        {}[SECRET]
    except KeyError as exc:
        raise ValueError(f"card {SECRET} is refused") from exc


async def fail_async(*_args, **_more):
    fail()


class Hooks(Middleware):
    """Hooks that all fail, and say for which message."""

    def after_send(self, queue, message, message_id):
        raise RuntimeError(f"not told of {message.body!r}")

    def after_run(self, message, context, answer, error):
        raise RuntimeError(f"{message.body!r}: {error}")

    def before_ack(self, messages):
        raise RuntimeError(str([message.body for message in messages]))

    def after_ack(self, messages):
        raise RuntimeError(str([message.body for message in messages]))


# ── send ──


def test_sends_that_fail_or_are_refused(written, client, store):
    queue = client.queue("mail")
    headers = {"card": SECRET}
    message = cqueue.Message(MARK, headers=headers)
    written.add(message, queue.send_many([message]), queue.send(MARK, headers=headers))
    for bad in (
        {"headers": {"card": MARK}},
        {"headers": {SECRET: 1}},
        {"headers": {"card": SECRET + "\udc80"}},
        {"headers": {"card": SECRET * 10_000}},
        {"headers": [SECRET]},
        {"priority": 99, "headers": headers},
    ):
        written.raised(cqueue.BadInput, queue.send, MARK, **bad)
    written.raised(cqueue.BadInput, queue.send, SECRET)
    written.raised(cqueue.BadInput, queue.send, MARK * 100_000)
    for kind in (Unavailable, OutcomeUnknown):
        store.refuse = lambda op, kind=kind: kind("no answer") if isinstance(op, InsertMessages) else None
        written.raised(cqueue.CqueueError, queue.send, MARK, headers=headers)
        result = queue.send_many([message])
        written.add(result, *(error for _, error in result.failed))
    written.check()


def test_arguments_that_are_refused(written, client):
    app = cqueue.App(client)
    task = app.task(lambda card: card, name="pay", queue="mail")
    for args, options in (
        ((SECRET, SECRET), {}),
        ((object(),), {}),
        (({4929: SECRET},), {}),
        (([[SECRET, {SECRET}, fail]],), {}),
        ((SECRET,), {"other": SECRET}),
    ):
        written.raised(cqueue.BadArguments, task.enqueue, *args, **options)
    written.add(task, task.message(SECRET), task.options(headers={"card": SECRET}), encode)
    written.check()


# ── run ──


@pytest.mark.parametrize("function", [fail, fail_async])
def test_retries_death_and_redrive(written, client, function):
    app = cqueue.App(client, retry=cqueue.Retry(NOW))
    app.task(name="pay", queue="mail")(function)
    task = app.tasks["pay"].options(headers={"card": SECRET}, key="k")
    task.enqueue(SECRET, card=SECRET)
    queue = client.queue("mail")
    run(app, queue)
    letters = queue.dead_letters
    (letter,) = letters.list()
    assert SECRET in letter.reason  # the letter keeps both: rights guard it
    assert SECRET in letter.traceback
    written.add(letter, *queue.dead_letters, *client.queue("mail.dead").peek())
    written.add(letters.redrive(everything=True, dry_run=True), letters.redrive(everything=True))
    written.add(*queue.peek())
    run(app, queue)
    run(lambda *_: fail(), client.queue("mail.dead"), max_poll_interval=timedelta(seconds=1))
    written.check("message_retried", "message_dead")


def test_every_way_to_answer(written, client):
    """Rules without a reason take the error as theirs; waits and stops of an application fail as well."""
    policies = (
        cqueue.Retry(rules={ValueError: cqueue.Dead()}),
        cqueue.Retry(rules={ValueError: cqueue.Cancel()}),
        cqueue.Retry(rules={ValueError: cqueue.Snooze(timedelta(hours=1))}),
        cqueue.Retry(wait=fail, max_attempts=1),
        cqueue.Retry(NOW, stop=fail),
    )
    queue = client.queue("mail")
    for number, policy in enumerate(policies):
        app = cqueue.App(client)
        app.task(name=f"pay{number}", queue="mail", retry=policy)(fail)
        app.tasks[f"pay{number}"].enqueue(SECRET)
        with Dispatcher(queue, app) as dispatcher:
            until(lambda dispatcher=dispatcher: dispatcher.stats().total.started)
            assert dispatcher.drain(SOON)
    written.check("message_cancelled", "message_snoozed", "retry_stop_failed")


@pytest.mark.parametrize(
    "body",
    [
        MARK,
        f'{{"args": ["{SECRET}", "{SECRET}"]}}'.encode(),
        *(
            f'{{"args": [{{"{tag}": "{SECRET}"}}]}}'.encode()
            for tag in ("$datetime", "$int", "$decimal", "$uuid", "$bytes", f"${SECRET}")
        ),
        f'{{"args": "{SECRET}"}}'.encode(),
        b"\xff" + MARK,
    ],
)
def test_bodies_that_are_no_arguments(written, client, body):
    app = cqueue.App(client, retry=cqueue.Retry(NOW))
    app.task(name="pay", queue="mail")(lambda card: card)
    client.queue("mail").send_many([cqueue.Message(body, task="pay")])
    run(app, client.queue("mail"), unknown_task_wait=NOW)
    written.check("message_retried")


def test_hooks_that_fail(written, client):
    app = cqueue.App(client, middleware=[Hooks()], retry=cqueue.Retry(NOW))
    app.task(name="pay", queue="mail")(lambda _card: None)
    app.tasks["pay"].enqueue(SECRET)
    run(app, client.queue("mail"), middleware=app.middleware)
    written.check("after_send_failed", "middleware_failed")


def test_a_dispatcher_whose_store_fails(written, client, store):
    """Receives and acks fail while the message is held."""
    queue = client.queue("mail")
    queue.send(MARK, headers={"card": SECRET})
    left = [3]

    def refuse(operation):
        if isinstance(operation, ReadMessages) and left[0]:
            left[0] -= 1
            return Unavailable("away")
        return None

    store.refuse = refuse
    run(written.add, queue)
    written.check("dispatcher_started")


# ── damage ──


def test_a_damaged_row(written, client, store):
    """Its key and the reason are logged once, and what it holds never is."""
    queue = client.queue("mail")
    id_ = queue.send(MARK, headers={"card": SECRET})
    location = id_.location if hasattr(id_, "location") else None
    damage = Damage("queues", "mail", ("mail",), "headers is no map")
    store.quarantine.report(damage)
    written.add(damage, location, quarantine, *store.quarantine.of("queues"))
    written.check("row_quarantined")


# ── spool ──


@pytest.mark.usefixtures("brisk_forwarding")
def test_a_spool_that_waits_is_damaged_and_goes_on(written, client, store, tmp_path):
    with mock.patch.object(Forwarder, "start"), Spool(tmp_path, segment_bytes=1 << 22) as spool:
        queue = client.queue("mail", spool=spool)
        written.add(spool, queue, queue.send(MARK, headers={"card": SECRET}))
        written.add(queue.send_many([cqueue.Message(MARK), cqueue.Message(MARK)]))
        written.raised(cqueue.BadInput, queue.send, MARK, headers={"card": MARK})
    (segment,) = tmp_path.rglob("*.seg*")
    data = bytearray(segment.read_bytes())
    data[data.index(MARK)] ^= 1
    segment.write_bytes(data)
    store.refuse = lambda op: Unavailable("away") if isinstance(op, InsertMessages) else None
    with Spool(tmp_path, segment_bytes=1 << 22) as spool, Client(store, on_close=lambda: None) as other:
        other.queue("mail", spool=spool)
        until(lambda: "spool_waits" in written.stream.getvalue())
        written.add(*spool.status())
        store.refuse = lambda _: None
        until(lambda: "spool_goes_on" in written.stream.getvalue())
        store.refuse = fail
        other.queue("mail", spool=spool).send(MARK)
        until(lambda: "spool_forward_failed" in written.stream.getvalue())
        store.refuse = lambda _: None
    written.check("spool_lost")


# ── logs ──


def test_a_listener_that_fails(written, client):
    log = client.create_log("events")
    written.add(log.append("pay", MARK, headers={"card": SECRET}), cqueue.Record("pay", MARK))
    with client.subscribe("events", name="s", listeners=[fail], max_attempts=2, wait=lambda _: 0.01):
        until(lambda: "record_dead" in written.stream.getvalue())
    written.add(*log.scan())
    written.raised(cqueue.BadInput, cqueue.HttpPush, f"htp://bob:{SECRET}@host/x?{SECRET}")
    written.check("listener_failed", "record_dead")


# ── schedules ──


def test_a_schedule(written, client):
    queue = client.queue("mail")
    made = queue.schedules.add("s", cqueue.Repeating(timedelta(hours=1)), MARK, headers={"card": SECRET})
    written.add(made, *queue.schedules.list())
    written.check()
