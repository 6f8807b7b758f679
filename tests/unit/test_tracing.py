"""Spans by OpenTelemetry's conventions: from the send over each attempt to the dead letter, and beyond.

Tracing never fails a call, tells no content, and costs nothing where nobody asks for it.
"""

import asyncio
import configparser
import importlib
import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="tracing needs the extra `otel`")

from opentelemetry import propagate, trace
from opentelemetry.context import get_current
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import cqueue
from cqueue.config import QueueConfig
from cqueue.errors import OutcomeUnknown, Unavailable
from cqueue.log import LogConfig
from cqueue.runtime.driver import BlockingDriver
from cqueue.store.operations import InsertMessages
from cqueue.tracing import CqueueInstrumentor, instrument, uninstrument
from tests.fix_dispatcher import SOON, Gate, until

ROOT = Path(__file__).parents[2]
NOW = timedelta()
SECRET = "hush-4929-1111"
AT_ONCE = cqueue.Retry(delay=NOW)


class Spans:
    """A provider, and what was exported."""

    def __init__(self, sampler=sampling.ALWAYS_ON):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self):
        return self.exporter.get_finished_spans()

    def named(self, name):
        return [span for span in self.all() if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span


@pytest.fixture
def spans():
    return Spans()


@pytest.fixture
def traced(shop, spans):
    """The client, traced."""
    instrument(shop, tracer_provider=spans.provider)
    return shop


@pytest.fixture
def orders(traced):
    """A queue with three attempts."""
    return traced.create_queue("orders", QueueConfig(visibility=timedelta(seconds=4), max_attempts=3))


def run_all(dispatch, queue, handler, **options):
    dispatcher = dispatch(queue, handler, **options)
    assert dispatcher.drain(SOON)
    dispatcher.stop()


def received(queue, number=1):
    with queue.consumer() as consumer:
        return consumer.receive(number, wait=SOON)


def task(function, policy=AT_ONCE, **options):
    return {None: cqueue.Binding("fill", function, policy, **options)}


def linked(span):
    return [link.context.span_id for link in span.links]


def is_child(span, parent):
    return span.parent is not None and span.parent.span_id == parent.context.span_id


# ── One message ──


def test_each_attempt_until_the_dead_letter_belongs_to_the_send(orders, spans, dispatch):
    def fail(_message, _context):
        raise ValueError(f"card {SECRET}")

    with spans.tracer.start_as_current_span("request") as request:
        id_ = orders.send(SECRET.encode(), headers={"to": SECRET})
    run_all(dispatch, orders, task(fail))
    send, runs = spans.one("send orders"), spans.named("process orders")
    assert is_child(send, request)
    assert send.kind is SpanKind.PRODUCER
    assert dict(send.attributes) == {
        "messaging.system": "cqueue",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": str(id_),
    }
    assert [span.attributes["messaging.cqueue.outcome"] for span in runs] == ["retried", "retried", "dead"]
    for attempt, span in enumerate(runs, 1):
        assert is_child(span, send)
        assert linked(span) == [send.context.span_id]
        assert span.kind is SpanKind.CONSUMER
        assert span.attributes["messaging.operation.type"] == "process"
        assert span.attributes["messaging.message.id"] == str(id_)
        assert span.attributes["messaging.cqueue.message.delivery_attempt"] == attempt
        assert span.attributes["messaging.cqueue.task"] == "fill"
        assert span.attributes["error.type"] == "ValueError"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
        assert not span.events  # an exception's event would have its text
    assert len(spans.named("nack orders")) == 2
    dead = spans.one("dead orders")
    assert dead.kind is SpanKind.CLIENT
    assert linked(dead) == [send.context.span_id]
    assert {span.context.trace_id for span in [send, *runs]} == {request.get_span_context().trace_id}
    assert SECRET not in " ".join(span.to_json() for span in spans.all())


def test_a_redriven_letter_goes_on_with_its_trace(orders, spans, dispatch):
    orders.send(b"x")
    run_all(dispatch, orders, lambda *_: cqueue.Dead("no"))
    orders.dead_letters.redrive(everything=True)
    run_all(dispatch, orders, lambda *_: None)
    first, second = spans.named("process orders")
    assert [span.attributes["messaging.cqueue.outcome"] for span in (first, second)] == ["dead", "succeeded"]
    assert first.status.status_code is StatusCode.UNSET
    assert is_child(second, spans.one("send orders"))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_runs_in_its_span_and_nothing_after_it(traced, orders, spans, dispatch, is_async):
    """What it sends is the run's child; a worker thread's next message has no part in it."""
    other, inside, after = traced.create_queue("other"), [], []

    def handle(message, _context):
        inside.append(trace.get_current_span().get_span_context().span_id)
        other.send(message.body)

    async def handle_async(message, context):
        await asyncio.sleep(0)
        await asyncio.to_thread(handle, message, context)

    class After(cqueue.Middleware):
        def after_run(self, *_):
            after.append(trace.get_current_span().get_span_context().is_valid)

    orders.send_many([cqueue.Message(b"1"), cqueue.Message(b"2", headers={"a": "b"})])
    run_all(
        dispatch, orders, handle_async if is_async else handle, threads=1, consumers=1, middleware=[After()]
    )
    runs, sends = spans.named("process orders"), spans.named("send other")
    assert sorted(inside) == sorted(span.context.span_id for span in runs)
    assert sorted(span.parent.span_id for span in sends) == sorted(inside)
    assert after == [False, False]


def test_several_listeners_of_one_trace_may_have_traces_of_their_own(shop, spans, dispatch):
    instrument(shop, tracer_provider=spans.provider, links_only=True)
    queue = shop.create_queue("orders")
    queue.send(b"x")
    run_all(dispatch, queue, lambda *_: None)
    send, run = spans.one("send orders"), spans.one("process orders")
    assert run.parent is None
    assert linked(run) == [send.context.span_id]
    assert run.context.trace_id != send.context.trace_id


def test_the_text_of_an_error_stands_where_logs_may_have_it(orders, spans, dispatch):
    def fail(_message, _context):
        raise ValueError("no such customer")

    orders.send(b"x")
    run_all(dispatch, orders, task(fail, cqueue.Retry(max_attempts=1), log_errors=True))
    assert spans.one("process orders").status.description == "no such customer"


@pytest.mark.interrupted
def test_a_handler_that_is_interrupted_or_stopped(orders, spans, dispatch):
    def hang(_message, _context):
        while True:
            time.sleep(0.001)

    orders.send(b"x")
    run_all(dispatch, orders, task(hang, cqueue.Retry(max_attempts=1), timeout=timedelta(milliseconds=50)))
    assert spans.one("process orders").attributes["error.type"] == "TimeoutError"
    spans.exporter.clear()
    orders.send(b"y")
    gate = Gate()
    dispatcher = dispatch(orders, gate)
    gate.wait_begun()
    dispatcher.stop(NOW, wait=False)
    until(lambda: spans.named("process orders"))
    span = spans.one("process orders")
    assert span.attributes["messaging.cqueue.outcome"] == "interrupted"
    assert span.status.status_code is StatusCode.UNSET
    gate.open.set()


def test_a_message_without_handler_has_no_run(orders, spans, dispatch):
    orders.send(b"x")
    run_all(dispatch, orders, {"other": lambda *_: None})
    assert spans.named("process orders") == []


def test_an_enqueued_call_and_each_firing_of_a_schedule(spans):
    app, ran = cqueue.App("memory://"), []

    @app.task(queue="mail")
    def send(to):
        ran.append((to, trace.get_current_span().get_span_context().span_id))

    @app.periodic("* * * * *", queue="mail", name="tick")
    async def tick():
        ran.append(("tick", trace.get_current_span().get_span_context().span_id))

    instrument(tracer_provider=spans.provider)
    try:
        with app.testing() as t:
            send.enqueue(SECRET)
            t.drain()
            t.advance(timedelta(minutes=2))
            t.drain()
    finally:
        uninstrument()
    sent, (mail, *ticks) = spans.one("send mail"), spans.named("process mail")
    assert sent.kind is SpanKind.PRODUCER
    assert "messaging.batch.message_count" not in sent.attributes
    assert is_child(mail, sent)
    assert mail.attributes["messaging.cqueue.task"].endswith("send")
    assert len(ticks) >= 2
    assert all(span.parent is None and not span.links for span in ticks)
    assert [span for _, span in ran] == [span.context.span_id for span in (mail, *ticks)]
    assert SECRET not in " ".join(span.to_json() for span in spans.all())


# ── Batches, and consumers that receive ──


def test_a_batch_is_one_span_and_each_message_carries_it(orders, spans):
    entries = [cqueue.Message(b"1"), cqueue.Message(b"2", headers={"a": "b"}), cqueue.Message("3")]
    result = orders.send_many(entries)
    assert [place for place, _ in result.failed] == [2]
    assert entries[0].headers is None  # the caller's messages stay as they are
    sent = spans.one("send orders")
    assert sent.attributes["messaging.batch.message_count"] == 3
    assert sent.attributes["error.type"] == "cqueue.errors.BadInput"
    with spans.tracer.start_as_current_span("poll") as poll:
        messages = received(orders, 10)
    assert {message.headers["traceparent"].split("-")[2] for message in messages} == {
        trace.format_span_id(sent.context.span_id)
    }
    found = spans.one("receive orders")
    assert is_child(found, poll)
    assert found.kind is SpanKind.CLIENT
    assert found.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in found.attributes
    assert {link.attributes["messaging.message.id"] for link in found.links} == {
        str(message.id) for message in messages
    }
    assert linked(found) == [sent.context.span_id] * 2


def test_settling_has_spans_with_links_across_queues(traced, orders, spans):
    other = traced.create_queue("other")
    for queue in (orders, other):
        queue.send(b"x")
        queue.send(b"y", headers={"a": "b"})
    with orders.consumer() as consumer, other.consumer() as second:
        both = (consumer, consumer, second, second)
        one, two, three, four = [each.receive(1, wait=SOON)[0] for each in both]
        with spans.tracer.start_as_current_span("mine") as mine:
            consumer.ack_async([one, three]).result()
            two.snooze(NOW)
            four.nack()
        consumer.ack([])
    ack = spans.one("ack")
    assert "messaging.destination.name" not in ack.attributes
    assert ack.attributes["messaging.operation.type"] == "settle"
    assert len(ack.links) == 2
    for span in (ack, spans.one("snooze orders"), spans.one("nack other")):
        assert is_child(span, mine)
        assert span.kind is SpanKind.CLIENT


def test_an_idle_consumer_makes_no_span_and_a_failing_one_says_why(orders, spans, troubled):
    with orders.consumer() as consumer:
        assert consumer.receive() == []
        assert spans.all() == ()
        troubled.trouble = lambda _: Unavailable("away")
        with pytest.raises(Unavailable):
            consumer.receive()
        troubled.trouble = lambda _: None
    span = spans.one("receive orders")
    assert span.attributes["error.type"] == "cqueue.errors.Unavailable"
    assert span.status.status_code is StatusCode.ERROR


def test_prefetched_messages_are_told_when_they_are_handed_out(orders, spans):
    orders.send_many([cqueue.Message(b"x") for _ in range(5)])
    with orders.consumer(prefetch=100) as consumer:
        consumer.ack(consumer.receive(2, wait=SOON))
        assert spans.one("receive orders").attributes["messaging.batch.message_count"] == 2


def test_sends_on_threads_of_the_client_belong_to_the_caller(orders, spans):
    with spans.tracer.start_as_current_span("request") as request:
        orders.send_many_async([cqueue.Message(b"1"), cqueue.Message(b"2")]).result()
    assert is_child(spans.one("send orders"), request)


def test_sends_that_are_stored_together_have_each_their_own_span(traced, orders, spans):
    queue = traced.queue("orders", linger=timedelta(milliseconds=20))

    def send(number):
        with spans.tracer.start_as_current_span(f"request {number}"):
            return queue.send(b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(send, range(8)))
    sends = {span.attributes["messaging.message.id"]: span for span in spans.named("send orders")}
    assert sends.keys() == set(map(str, ids))
    for message in received(orders, 10):
        (span,) = spans.named(f"request {message.body.decode()}")
        assert is_child(sends[message.id], span)
        assert message.headers["traceparent"].split("-")[2] == trace.format_span_id(
            sends[message.id].context.span_id
        )


@pytest.mark.usefixtures("brief_settling")
@pytest.mark.parametrize(("error", "name"), [(Unavailable, "Unavailable"), (OutcomeUnknown, "SendUnknown")])
def test_a_send_that_fails(orders, spans, troubled, error, name):
    troubled.trouble = lambda op: error("away") if isinstance(op, InsertMessages) else None
    with pytest.raises(cqueue.CqueueError):
        orders.send(b"x")
    span = spans.one("send orders")
    assert span.attributes["error.type"] == f"cqueue.errors.{name}"
    assert bool(span.status.description) is (name == "SendUnknown")  # cqueue's own text; the other is not


# ── What travels ──


def test_a_context_of_the_messages_own_is_kept_and_linked(orders, spans, dispatch):
    """As in a copy of a received message; other parts of a batch get the span's."""
    with spans.tracer.start_as_current_span("elsewhere") as elsewhere:
        headers = {}
        propagate.inject(headers)
    orders.send(b"1", headers=headers)
    alone = spans.one("send orders")
    assert alone.kind is SpanKind.CLIENT
    assert linked(alone) == [elsewhere.get_span_context().span_id]
    run_all(dispatch, orders, lambda *_: None)
    assert is_child(spans.one("process orders"), elsewhere)
    spans.exporter.clear()
    orders.send_many([cqueue.Message(b"2", headers=headers), cqueue.Message(b"3")])
    both = spans.one("send orders")
    assert both.kind is SpanKind.PRODUCER
    assert linked(both) == [elsewhere.get_span_context().span_id]
    parents = {one.body: one.headers["traceparent"].split("-")[2] for one in received(orders, 10)}
    assert parents == {
        b"2": trace.format_span_id(elsewhere.get_span_context().span_id),
        b"3": trace.format_span_id(both.context.span_id),
    }


def test_headers_that_are_full_are_sent_as_they_are(orders, spans):
    many = {f"name-{number}": "x" for number in range(64)}
    big = {"name": "x" * (16 * 1024 - 10)}
    orders.send(b"x", headers=many)
    orders.send(b"x", headers=big)
    found = [message.headers for message in received(orders, 10)]
    assert sorted(found, key=len) == [big, many]  # sends that take long may go to several wide rows
    assert len(spans.named("send orders")) == 2


@pytest.mark.parametrize("headers", ["no mapping", {"a": 1}, [("a", "b")], {"traceparent": "nonsense"}])
def test_bad_headers_are_refused_or_sent_as_without_tracing(orders, headers):
    if isinstance(headers, dict) and all(isinstance(value, str) for value in headers.values()):
        orders.send(b"x", headers=headers)
        assert received(orders)[0].headers["traceparent"].startswith("00-")
    else:
        with pytest.raises(cqueue.BadInput):
            orders.send(b"x", headers=headers)
        assert len(orders.send_many([cqueue.Message(b"x", headers=headers)]).failed) == 1


def test_what_is_no_message_is_refused_as_without_tracing(orders):
    assert [place for place, _ in orders.send_many([cqueue.Message(b"x"), b"y", None]).failed] == [1, 2]
    with pytest.raises(cqueue.BadInput):
        orders.send_many(cqueue.Message(b"x"))
    assert orders.send_many([]).ids == []


def test_a_decision_to_sample_travels_and_unsampled_sends_are_stored_too(shop, dispatch):
    spans = Spans(sampling.ParentBased(sampling.ALWAYS_OFF))
    instrument(shop, tracer_provider=spans.provider)
    queue, ran = shop.create_queue("orders"), []
    queue.send(b"x")
    queue.send_many([cqueue.Message(b"y"), cqueue.Message(b"z")])
    run_all(dispatch, queue, lambda message, _: ran.append(message.headers["traceparent"][-2:]))
    assert [int(flags, 16) & trace.TraceFlags.SAMPLED for flags in ran] == [0] * 3
    assert spans.all() == ()


def test_another_process_goes_on_with_the_trace(dispatch):
    """Each side has a client and a provider of its own; only the headers go from one to the other."""
    one, two = Spans(), Spans()
    with cqueue.connect("memory://two-sides") as producer, cqueue.connect("memory://two-sides") as consumer:
        instrument(producer, tracer_provider=one.provider)
        instrument(consumer, tracer_provider=two.provider)
        producer.create_queue("orders").send(b"x")
        run_all(dispatch, consumer.queue("orders"), lambda *_: None)
    assert [span.name for span in one.all()] == ["send orders"]
    assert [span.name for span in two.all()] == ["process orders", "ack orders"]
    assert is_child(two.one("process orders"), one.one("send orders"))


CHILD = """
import sys, cqueue
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import get_current_span
from cqueue.tracing import instrument
provider = TracerProvider()
instrument(tracer_provider=provider)
with provider.get_tracer("child").start_as_current_span("request"), cqueue.connect(sys.argv[1]) as client:
    client.create_queue("orders").send(b"x")
    print(f"{get_current_span().get_span_context().trace_id:032x}")
"""


@pytest.mark.cassandra
def test_through_cassandra_from_another_process(keyspace, spans, dispatch):
    """Producer in a child process; two attempts here, an ack, and one trace."""
    url = keyspace.url
    child = subprocess.run(
        [sys.executable, "-c", CHILD, url], capture_output=True, text=True, check=True, timeout=60
    )
    with cqueue.connect(url) as client:
        instrument(client, tracer_provider=spans.provider)
        answers = [AT_ONCE, None]
        run_all(dispatch, client.queue("orders"), lambda *_: answers.pop(0))
        run_all(dispatch, client.queue("orders"), lambda *_: answers.pop(0)) if answers else None
    runs = spans.named("process orders")
    assert [span.attributes["messaging.cqueue.outcome"] for span in runs] == ["retried", "succeeded"]
    assert {f"{span.context.trace_id:032x}" for span in runs} == {child.stdout.strip()}
    (send,) = {span_id for span in runs for span_id in linked(span)}
    assert linked(spans.one("ack orders")) == [send]


# ── Logs and spools ──


def test_records_go_on_with_the_trace_of_their_append(traced, spans):
    log = traced.create_log("clicks", LogConfig(partitions=1))
    with spans.tracer.start_as_current_span("request") as request:
        log.append("page", SECRET.encode(), key=SECRET)
    log.append_many([cqueue.Record("page", b"2"), cqueue.Record("page", b"3")])
    seen, failures, done = [], [ValueError(SECRET)], threading.Event()

    def one(_record):
        if failures:
            raise failures.pop()
        seen.append(trace.get_current_span().get_span_context().span_id)

    @cqueue.batched(10)
    def many(records):
        seen.extend([trace.get_current_span().get_span_context().span_id] * len(records))
        if len(seen) == 6:
            done.set()

    with traced.subscribe("clicks", name="shop", listeners=[one, many], low_latency=True):
        assert done.wait(SOON.total_seconds())
    single, batch = spans.named("append clicks")
    assert is_child(single, request)
    assert single.kind is SpanKind.PRODUCER
    assert single.attributes["messaging.operation.type"] == "send"
    assert batch.attributes["messaging.batch.message_count"] == 2
    runs = spans.named("process clicks")
    failed = [span for span in runs if span.status.status_code is StatusCode.ERROR]
    assert [span.attributes["error.type"] for span in failed] == ["ValueError"]
    assert {span.context.span_id for span in runs if span not in failed} == set(seen)
    for span in runs:
        assert span.attributes["messaging.destination.subscription.name"] == "shop"
        assert span.attributes["messaging.destination.partition.id"] == "0"
        assert set(linked(span)) <= {single.context.span_id, batch.context.span_id}
        is_single = "messaging.message.id" in span.attributes
        assert (span.parent is not None) == is_single
        assert len(span.links) == span.attributes.get("messaging.batch.message_count", 1)
    assert SECRET not in " ".join(span.to_json() for span in spans.all())


def test_a_spool_forwards_the_context(traced, orders, spans, tmp_path):
    spool_module = pytest.importorskip("cqueue.spool")
    traced.create_log("clicks", LogConfig(partitions=1))
    with spool_module.Spool(tmp_path / "spool") as spool:
        queue = traced.queue("orders", spool=spool)
        with spans.tracer.start_as_current_span("request") as request:
            id_ = queue.send(b"1")
            queue.send_many([cqueue.Message(b"2"), cqueue.Message(b"3")])
            queue.send_many_async([cqueue.Message(b"4")]).result()
            log = traced.log("clicks", spool=spool)
            log.append("page", b"x")
        assert queue.flush(SOON)
        assert log.flush(SOON)
        found = received(orders, 10)
        traced._spools.close()
    sends = spans.named("send orders")
    assert [span.attributes.get("messaging.message.id") for span in sends] == [str(id_), None, mock_id(sends)]
    assert all(is_child(span, request) for span in sends)
    assert {one.headers["traceparent"].split("-")[2] for one in found} == {
        trace.format_span_id(span.context.span_id) for span in sends
    }
    forwarded, spooled = sorted(spans.named("append clicks"), key=lambda span: span.kind.value)
    assert is_child(spooled, request)
    assert linked(forwarded) == [spooled.context.span_id]
    assert forwarded.kind is SpanKind.CLIENT


def mock_id(sends):
    return sends[-1].attributes["messaging.message.id"]


# ── Nothing fails because of it ──


class Broken(SpanExporter):
    def export(self, spans):
        raise OSError("the collector is away")


class BrokenProcessor(SpanProcessor):
    def on_start(self, span, parent_context=None):
        raise RuntimeError(SECRET)

    def on_end(self, span):
        raise RuntimeError(SECRET)


class BrokenSampler(sampling.Sampler):
    def should_sample(self, *_, **__):
        raise RuntimeError(SECRET)

    def get_description(self):
        return "broken"


def with_processor(processor):
    provider = TracerProvider()
    provider.add_span_processor(processor)
    return provider


@pytest.mark.parametrize(
    ("provider", "is_ours"),
    [
        (with_processor(SimpleSpanProcessor(Broken())), False),  # the SDK logs it
        (with_processor(BrokenProcessor()), True),
        (TracerProvider(sampler=BrokenSampler()), True),
    ],
    ids=["exporter", "processor", "sampler"],
)
def test_no_call_fails_because_tracing_does(shop, dispatch, caplog, provider, is_ours):
    instrument(shop, tracer_provider=provider)
    queue, log, ran = shop.create_queue("orders"), shop.create_log("clicks"), []
    before = get_current()
    queue.send(b"1")
    queue.send_many([cqueue.Message(b"2"), cqueue.Message(b"3")])
    log.append("page", b"x")
    received(queue, 1)[0].ack()
    run_all(dispatch, queue, lambda message, _: ran.append(message.body))
    assert len(ran) == 2
    assert queue.stats().live == 0
    assert get_current() == before
    told = [line for line in caplog.messages if "tracing_failed" in line]
    assert len(told) == is_ours
    assert SECRET not in "".join(told)


def test_a_propagator_that_raises(shop, dispatch, spans, caplog):
    class Raising(propagate.textmap.TextMapPropagator):
        def extract(self, *_, **__):
            raise RuntimeError("extract")

        def inject(self, *_, **__):
            raise RuntimeError("inject")

        fields = frozenset()

    instrument(shop, tracer_provider=spans.provider)
    queue, ran = shop.create_queue("orders"), []
    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(Raising())
    try:
        queue.send(b"1", headers={"a": "b"})
        run_all(dispatch, queue, lambda message, _: ran.append(message.headers))
    finally:
        propagate.set_global_textmap(usual)
    assert ran == [{"a": "b"}]
    assert sum("tracing_failed" in line for line in caplog.messages) == 1


# ── On and off ──


def test_nothing_of_opentelemetry_is_imported_where_nobody_asks():
    code = (
        "import sys, cqueue; c = cqueue.connect('memory://'); q = c.create_queue('a'); q.send(b'x')\n"
        "d = cqueue.Dispatcher(q, lambda *_: None)\n"
        "d.start(); d.drain(); d.stop(); c.close()\n"
        "print(*{name for name in sys.modules if name.startswith(('opentelemetry', 'cqueue.tracing'))})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip() == ""


def test_without_opentelemetry_the_error_names_the_extra(monkeypatch):
    for name in ("cqueue.tracing", "cqueue.runtime.tracing"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(cqueue.ConfigError, match=r"cassandra-cqueue\[otel\]"):
        importlib.import_module("cqueue.tracing")


def test_all_clients_or_one_and_what_is_traced_can_be_left_out(shop, spans):
    queue = shop.create_queue("orders")
    with cqueue.connect("memory://") as other:
        more = other.create_queue("more")
        instrument(tracer_provider=spans.provider)
        try:
            queue.send(b"x")
            more.send(b"x")
            uninstrument(other)
            more.send(b"x")
        finally:
            uninstrument()
        queue.send(b"x")
    assert [span.name for span in spans.all()] == ["send orders", "send more"]
    assert BlockingDriver.tracing is None


def test_opentelemetry_instrument_finds_and_calls_the_instrumentor(spans):
    """As its loader does: the entry point's class, made and called with an option that it always gives."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    _, _, target = config["options.entry_points"]["opentelemetry_instrumentor"].strip().partition(" = ")
    module, _, name = target.partition(":")
    found = getattr(importlib.import_module(module), name)
    assert found.__name__ == CqueueInstrumentor.__name__
    found().instrument(skip_dep_check=True, tracer_provider=spans.provider)
    try:
        with cqueue.connect("memory://") as client:
            client.create_queue("orders").send(b"x")
    finally:
        found().uninstrument()
    assert json.loads(spans.one("send orders").to_json())["resource"]
    assert spans.one("send orders").instrumentation_scope.name == "cqueue"
    assert BlockingDriver.tracing is None
