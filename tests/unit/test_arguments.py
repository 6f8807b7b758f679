"""Arguments of a wrong type: an error of the library, before anything is written.

`test_annotations.py` tries those of queues, logs and spools by their annotations; here are the others.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

import cqueue
from cqueue.errors import BadInput

OTHER = [5, 1.5, True, b"x", [5], {"a": 5}, timedelta(1), print]
"""What is neither text nor a mapping of texts, nor several ids, messages, topics or functions."""


@pytest.fixture
def client():
    with cqueue.connect("memory://") as client:
        client.create_queue("q", cqueue.QueueConfig(max_attempts=2))
        client.create_log("l")
        yield client


@pytest.fixture
def queue(client):
    return client.queue("q")


@pytest.fixture
def app(client):
    return cqueue.App(client, queue="q")


def listen(_):
    """Take a record."""


@pytest.mark.parametrize("wrong", OTHER, ids=repr)
def test_names_are_texts(client, app, wrong):
    """Names are looked up in dictionaries, which refuse a list with an error of their own."""
    for call in (
        lambda name: cqueue.DelayQueue(client, name),
        lambda name: app.send(name, cqueue.Message(b"")),
        lambda name: cqueue.App(client).task(codec=name)(listen),
    ):
        with pytest.raises(BadInput):
            call(wrong)
    assert client.queues() == ["q", "q.dead"]


@pytest.mark.parametrize("wrong", OTHER, ids=repr)
def test_an_address_is_a_text(wrong):
    with pytest.raises(BadInput):
        cqueue.connect(wrong)


@pytest.mark.parametrize("wrong", [*OTHER, "text", {5: "a"}], ids=repr)
def test_headers_of_a_dead_letter_are_texts(queue, wrong):
    """Otherwise the message would stay with its consumer until its timeout."""
    queue.send(b"poison")
    with queue.consumer() as consumer:
        (message,) = consumer.receive(wait=timedelta(seconds=10))
        with pytest.raises(BadInput):
            message.dead("no", headers=wrong)
        message.dead("no", headers={"half \udcff": "half \udcff"})
    (letter,) = queue.dead_letters.list()
    assert letter.headers["half \\udcff"] == "half ?"


@pytest.mark.parametrize("wrong", OTHER, ids=repr)
def test_arguments_that_take_several(app, queue, wrong):
    task = app.task(name="t")(listen)
    for call in (
        task.enqueue_many,
        lambda several: app.dispatcher(queues=several),
        lambda several: cqueue.App(middleware=several),
        lambda several: app.dispatcher(middleware=several),
        lambda several: cqueue.Dispatcher(queue, listen, middleware=several),
        lambda several: cqueue.feed(queue, topics=several if several != {"a": 5} else 5),
    ):
        with pytest.raises(BadInput):
            call(wrong)
    with pytest.raises(BadInput):
        app.send_many("q", 5)


def test_middleware_may_come_from_a_generator(client):
    class Hooks(cqueue.Middleware):
        def __init__(self):
            self.called = []

        def before_send(self, _queue, message):
            self.called.append("before")
            return message

        def after_send(self, *_):
            self.called.append("after")

    hooks = Hooks()
    cqueue.App(client, queue="q", middleware=(each for each in [hooks])).send("q", cqueue.Message(b""))
    assert hooks.called == ["before", "after"]


def test_one_topic_of_a_feed_is_no_text(queue):
    """Its letters would be taken for topics, and records passed over. The queue is not altered."""
    with pytest.raises(BadInput, match="several texts"):
        cqueue.feed(queue, topics="orders")
    with pytest.raises(BadInput):
        cqueue.feed(queue, message=5)
    assert not queue.config.derived_sends


@pytest.mark.parametrize(
    "wrong",
    [{"topics": "orders"}, {"topics": 5}, {"topics": []}, {"wait": 5}, {"on_event": 5}, {"listeners": 5}],
    ids=repr,
)
def test_wrong_arguments_make_no_subscription(client, wrong):
    with pytest.raises(BadInput):
        client.subscribe("l", **{"name": "s", "listeners": [listen], **wrong})
    assert client.subscriptions("l") == []


def test_listeners_may_come_from_a_generator(client):
    client.subscribe("l", name="s", listeners=(each for each in [listen]))
    with pytest.raises(BadInput):
        client.subscribe("l", name="s", listeners=(each for each in []))


@pytest.mark.parametrize("wrong", [{"wait": 5}, {"stop": 5}, {"rules": 5}, {"rules": None}], ids=repr)
def test_a_retry_takes_what_it_says(wrong):
    with pytest.raises(cqueue.ConfigError):
        cqueue.Retry(**wrong)


def test_a_pushs_headers_are_texts():
    with pytest.raises(BadInput):
        cqueue.HttpPush("http://partner.example", headers={"a": 5})


def test_a_delay_of_none_is_left_out(queue):
    """0 looks like one, and would pass where 5 does not."""
    with pytest.raises(BadInput):
        queue.send(b"", delay=0)


def test_a_dispatcher_tells_its_events_to_a_function(queue):
    with pytest.raises(cqueue.ConfigError):
        cqueue.Dispatcher(queue, listen, on_event=5)


@pytest.mark.parametrize("wrong", OTHER, ids=repr)
def test_schedules_take_what_messages_take(queue, wrong):
    schedules, hourly = queue.schedules, cqueue.Repeating(timedelta(hours=1))
    for name in ("task", "codec", "message_key", "headers"):
        with pytest.raises(BadInput):
            schedules.add("k", hourly, **{name: wrong})
    for call in (schedules.get, schedules.pause, schedules.resume, schedules.run_now, schedules.remove):
        with pytest.raises(BadInput):
            call(wrong)
    with pytest.raises(BadInput):
        schedules.add("k", hourly, priority="5")
    assert schedules.list() == []


@pytest.mark.parametrize("wrong", ["memory://", *OTHER], ids=repr)
def test_what_takes_a_client_takes_nothing_else(wrong):
    web, metrics = pytest.importorskip("cqueue.web"), pytest.importorskip("cqueue.log.metrics")
    for call in (
        lambda client: cqueue.DelayQueue(client, "q"),
        lambda client: web.application(client, access=web.Access()),
        metrics.LagCollector,
    ):
        with pytest.raises(BadInput, match="takes a Client"):
            call(wrong)


def test_logs_of_a_collector_are_several(client):
    """The letters of one name would be taken for logs, and nothing be shown."""
    metrics = pytest.importorskip("cqueue.log.metrics")
    for wrong in ("orders", 5, [5]):
        with pytest.raises(BadInput):
            metrics.LagCollector(client, logs=wrong)


@pytest.mark.parametrize("wrong", OTHER, ids=repr)
def test_whom_a_dashboard_lets_in(client, wrong):
    web, secret = pytest.importorskip("cqueue.web"), "s" * 16
    for call in (
        lambda: web.Token(wrong, secret),
        lambda: web.Token("ops", wrong),
        lambda: web.Token("ops", secret, roles=wrong),
        lambda: web.Token("ops", secret, roles={"bodies"}),
        lambda: web.Password(wrong, web.hashed(secret)),
        lambda: web.Password("ops", wrong),
        lambda: web.Access(tokens=wrong),
        lambda: web.Access(passwords=wrong),
        lambda: web.Access(roles=wrong),
        lambda: web.application(client, access=wrong),
    ):
        with pytest.raises(BadInput):
            call()


@pytest.mark.parametrize("wrong", [b"x", 5, None, [5]], ids=repr)
def test_a_spool_takes_a_path(wrong):
    spools = pytest.importorskip("cqueue.spool")
    with pytest.raises(BadInput, match="takes the path of its directory"):
        spools.Spool(wrong)


def test_a_long_text_is_not_quoted_whole(client, queue, app):
    """An error is a line of a log or a terminal; the text may be a whole file."""
    long = "n" * 5000
    for call in (
        client.queue,
        client.create_queue,
        client.log,
        queue.find,
        queue.schedules.get,
        lambda name: queue.schedules.add(name, cqueue.Repeating(timedelta(hours=1))),
        lambda key: queue.send(b"", key=key),
        lambda token: queue.list(token=token),
        lambda delay: queue.send(b"", delay=delay),
        lambda start: client.log("l").follow(start=start),
        lambda name: app.task(name=name)(listen),
    ):
        with pytest.raises(BadInput, match=r"n{100}… \(5,00. characters\)") as caught:
            call(long)
        assert len(str(caught.value)) < 400
