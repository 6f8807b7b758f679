"""The dispatcher's promises about each message, on the store in memory."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import itertools
import signal
import threading
import time
import weakref
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import timedelta

import pytest

import cqueue
from cqueue.config import QueueConfig
from cqueue.dispatcher.execution import engine, event_loop, firing, runner, worker_threads
from cqueue.dispatcher.execution.delivery import SUCCEEDED, Delivery
from cqueue.dispatcher.execution.dispatcher import Dispatcher, check_once
from cqueue.dispatcher.execution.handlers import bind
from cqueue.dispatcher.execution.middleware import HOOKS, Middleware
from cqueue.dispatcher.execution.retry import DEFAULT_POLICY
from cqueue.errors import ConfigError, OutcomeUnknown, Unavailable
from cqueue.store.operations import (
    DeleteMessages,
    Mutate,
    ReadBodies,
    ReadHead,
    ReadMessages,
    ReadQueue,
    ReadSlice,
    RemoveQueue,
)
from tests.fix_dispatcher import SOON, SOON_S, Compared, Gate, until
from tests.unit.ctrl_c import ctrl_c_at, on_a_thread

HOUR = timedelta(hours=1)
NOW = timedelta()


def fail(_message, _context):
    raise ValueError("no such customer")


def dead_letters(client, queue):
    return client.queue(queue.dead_letter_name).peek()


def run_all(queue, handler, **options):
    with Dispatcher(queue, handler, **{"ack_interval": timedelta(milliseconds=5), **options}) as dispatcher:
        assert dispatcher.drain(SOON)
    return dispatcher.stats().total


# ── what a handler says ──


@pytest.mark.parametrize(
    ("answer", "counter", "state", "attempt"),
    [
        (None, "succeeded", None, None),
        (True, "succeeded", None, None),
        (cqueue.Cancel("old"), "cancelled", None, None),
        (cqueue.Retry(HOUR), "retried", "waiting", 2),
        (cqueue.Snooze(HOUR), "snoozed", "waiting", 1),
        (False, "left", "waiting", 2),
    ],
)
def test_what_a_handler_answers(work, clock, answer, counter, state, attempt):  # noqa: PLR0917 - a table
    """Each answer does what the table of the design says, and is counted."""
    work.send(b"x")
    total = run_all(work, lambda *_: answer)
    assert getattr(total, counter) == 1
    assert [stored.state for stored in work.peek()] == ([state] if state else [])
    if state:
        clock.advance(2 * 3600)
        with work.consumer() as consumer:
            (message,) = consumer.receive(wait=SOON)
        assert message.attempt == attempt


def test_false_leaves_a_message_until_its_timeout_would_have_passed(work, clock, monkeypatch):
    """Neither earlier, nor later because others share its lease, nor as a suspect."""
    still = functools.partial(engine.SettlementWriter, clock=lambda: 0.0)  # as does the cluster's time
    monkeypatch.setattr(engine, "SettlementWriter", still)
    work.send(b"x")
    run_all(work, lambda *_: False)
    with work.consumer() as consumer:
        clock.advance(3.8)
        assert consumer.receive() == []
        clock.advance(0.3)
        (message,) = consumer.receive(wait=SOON)
        assert not message.suspect


def test_dead_goes_to_the_dead_letter_queue(shop, work):
    """The message is moved at once, with the reason."""
    work.send(b"x", headers={"a": "b"})
    assert run_all(work, lambda *_: cqueue.Dead("not JSON")).dead == 1
    (letter,) = dead_letters(shop, work)
    assert letter.headers["cqueue-dead-reason"] == "not JSON"
    assert letter.headers["a"] == "b"


def test_an_exception_uses_attempts_then_the_message_dies_with_its_traceback(shop, work):
    """The traceback begins where the handler was called; the dispatcher's own frames are left out."""
    work.send(b"x")
    policy = cqueue.Retry(NOW)
    total = run_all(work, {None: cqueue.Binding("task", fail, policy)})
    assert (total.started, total.retried, total.dead) == (3, 2, 1)
    (letter,) = dead_letters(shop, work)
    trace = letter.headers["cqueue-dead-traceback"]
    assert trace.endswith("ValueError: no such customer\n")
    assert "in fail" in trace
    assert "worker_threads.py" not in trace
    assert "attempt 3" in letter.headers["cqueue-dead-reason"]


def test_a_traceback_is_cut_to_what_the_headers_leave(shop, work):
    """A message with nearly all the headers there may be can die as well; the end of the traceback stays."""

    def deep(message, context, left=200):
        if left:
            return deep(message, context, left - 1)
        raise ValueError("x" * 20_000 + "end")

    work.send(b"x", headers={f"h{i}": "v" * 200 for i in range(55)})
    run_all(work, {None: cqueue.Binding("task", deep, cqueue.Retry(NOW, max_attempts=1))})
    (letter,) = dead_letters(shop, work)
    assert sum(len(k) + len(v) for k, v in letter.headers.items()) <= 16 << 10
    assert letter.headers["cqueue-dead-traceback"].endswith("xend\n")
    assert letter.headers["h54"] == "v" * 200


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_no_handler_ends_a_worker(work, error, is_async):
    """Any exception is a failure of the message; the next message is handled on the same thread."""

    def handle(message, _context):
        if message.body == b"bad":
            raise error

    async def handle_async(message, context):
        handle(message, context)

    work.send_many([cqueue.Message(body) for body in (b"bad", b"good")])
    call = handle_async if is_async else handle
    bound = cqueue.Binding("task", call, cqueue.Retry(HOUR), is_async=is_async)
    total = run_all(work, {None: bound}, threads=1, consumers=1)
    assert (total.retried, total.succeeded) == (1, 1)


class Result:
    """A value that a handler may return."""


@pytest.mark.parametrize(
    "result", [42, 0, "", "done", [], {"a": 1}, Result(), Result, ValueError("not raised")]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_returns_a_value_has_done_its_work(work, result, is_async):
    """The message is acked, and run once; hooks are told the value."""
    seen = []

    class Seen(Middleware):
        def after_run(self, message, context, answer, error):
            seen.append((answer, error))

    async def handle_async(_message, _context):
        return result

    work.send(b"x")
    handler = handle_async if is_async else lambda *_: result
    total = run_all(work, handler, middleware=[Seen()])
    assert (total.started, total.succeeded, total.acked) == (1, 1, 1)
    assert seen == [(result, None)]
    assert work.peek() == []


async def _coroutine():
    raise AssertionError("this never runs")


def _future(end, *args):
    future = Future()
    end(future, *args)
    return future


def test_a_future_whose_work_is_done_is_a_success(work):
    """The work would be done again, and its message would die in the end."""
    work.send(b"x")
    assert run_all(work, lambda *_: _future(Future.set_result, None)).succeeded == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cqueue.Retry, "the class Retry; return an object"),
        (lambda: cqueue.Dead, "the class Dead; return an object"),
        (_coroutine, "a coroutine that has not run"),
        (lambda: (number for number in ()), "a generator that has not run"),
        (lambda: map(print, ()), "a map that has not run"),
        (Future, "a Future whose work is not done, or has failed"),
        (lambda: _future(Future.cancel), "a Future whose work is"),
        (lambda: _future(Future.set_exception, ValueError()), "a Future whose work is"),
    ],
)
def test_a_value_that_shows_that_nothing_was_done_is_an_error(work, make, said):
    """The work is not taken for done, and the line of the log says what was returned."""
    lines = []
    work.send(b"x")
    bound = cqueue.Binding("task", lambda *_: make(), cqueue.Retry(HOUR))
    total = run_all(work, {None: bound}, on_event=lambda event, fields: lines.append((event, fields)))
    assert (total.retried, total.succeeded) == (1, 0)
    (fields,) = [fields for event, fields in lines if event == "message_retried"]
    assert said in fields["error"]


def _yields(_message, _context):
    yield


async def _yields_async(_message, _context):
    yield


class Yields:
    """An object, or a class, whose call only makes a generator."""

    def __call__(self, _message, _context):
        yield


def test_a_dispatcher_without_any_worker_thread_is_not_alive(work, dispatch, monkeypatch):
    """Handlers that hang have used up what threads there are: only a new process handles anything."""
    dispatcher = dispatch(work, print)
    assert dispatcher.dead_threads() == ()
    monkeypatch.setattr(worker_threads, "GONE_S", 0.0)
    monkeypatch.setattr(dispatcher.engine.worker_threads, "_count", 0)
    monkeypatch.setattr(dispatcher.engine.worker_threads, "start", lambda: None)
    assert until(dispatcher.dead_threads) == ("all worker threads",)


def test_a_task_is_no_handler():
    """A task is callable, but takes the arguments in a message's body, not the message and its context."""
    with cqueue.App("memory://") as app, cqueue.connect("memory://") as client:
        queue, task = client.create_queue("q"), app.task(fail)
        for handler in (task, {None: task}):
            with pytest.raises(cqueue.ConfigError, match="is a task of an application; give the App"):
                cqueue.Dispatcher(queue, handler)


@pytest.mark.parametrize("handler", [_yields, _yields_async, Yields, Yields(), {"a": _yields}])
def test_a_generator_function_is_refused_before_anything_runs(work, handler):
    """A call of it would do nothing, and would count as success."""
    with pytest.raises(cqueue.ConfigError, match="is a generator function"):
        Dispatcher(work, handler)


class _TakesOne:
    def handle(self, message): ...


class _IsCalled:
    @staticmethod
    def handle(message, context): ...


def _wrapped(function):
    @functools.wraps(function)
    def call(*args):
        return function("session", *args)

    return call


@pytest.mark.parametrize(
    "handler",
    [lambda _message: None, lambda: None, _TakesOne, _TakesOne().handle, {"a": lambda _a, _b, _c: None}],
)
def test_a_handler_with_other_arguments_is_refused_before_anything_runs(work, handler):
    """Its messages would use up their attempts within seconds, and die."""
    with pytest.raises(cqueue.ConfigError, match=r"cannot be called as .*\(message, context\)"):
        Dispatcher(work, handler)


@pytest.mark.parametrize(
    "handler",
    [
        lambda *_args: None,
        lambda _message, _context, _more=1: None,
        _IsCalled,
        print,
        functools.partial(lambda _session, _message, _context: None, "session"),
        _wrapped(lambda _session, _message, _context: None),
    ],
)
def test_a_handler_that_can_be_called_is_taken(work, handler):
    Dispatcher(work, handler)


def test_a_retry_that_no_attempt_is_left_for_is_a_death(shop, work):
    """The message dies now, instead of after one more useless delivery."""
    work.send(b"x")
    assert run_all(work, lambda *_: cqueue.Retry(NOW)).dead == 1
    assert len(dead_letters(shop, work)) == 1


def test_a_dead_letter_cannot_die_again(shop, work):
    """A dispatcher of the dead-letter queue delivers the letter again later, and never loses it."""
    work.send(b"x")
    run_all(work, lambda *_: cqueue.Dead("bad"))
    letters = shop.queue(work.dead_letter_name)
    assert run_all(letters, lambda *_: cqueue.Dead("still bad")).retried == 1
    assert len(letters.peek()) == 1


# ── which handler ──


def test_handlers_by_task_name_of_every_kind(work):
    """A function, a coroutine function, a class with `handle`, one that is called, a callable object."""
    done, instances = [], []

    def plain(_message, context):
        done.append(("plain", context.task))

    async def coroutine(_message, context):
        await asyncio.sleep(0)
        done.append(("coroutine", context.task))

    class Handle:
        def __init__(self):
            instances.append(self)

        def handle(self, message, context):
            done.append(("handle", context.task))

    class Call:
        async def __call__(self, message, context):
            done.append(("call", context.task))

    handlers = {"a": plain, "b": coroutine, "c": Handle, "d": Call, "e": Call(), None: plain}
    names = [*"abcdec", None]
    tasks = [*"abcdec", "plain"]  # of a message without a task, the handler's own name
    work.send_many([cqueue.Message(b"x", task=name) for name in names])
    assert run_all(work, handlers).succeeded == len(names)
    expected = ["plain", "coroutine", "handle", "call", "call", "handle", "plain"]
    assert sorted(done, key=str) == sorted(zip(expected, tasks, strict=True), key=str)
    assert len({id(one) for one in instances}) == 2


@pytest.mark.parametrize("raises", [RuntimeError("no database"), SystemExit(3), None])
def test_a_resolver_that_fails_costs_no_message(work, raises):
    """An error of the resolver counts as the handler's, and the other messages of the batch are handled."""
    good = bind(lambda _message, _context: None)

    class Broken:
        def resolve(self, message):
            if message.body == b"good":
                return good
            if raises is not None:
                raise raises
            return None

    work.send_many([cqueue.Message(b"x"), cqueue.Message(b"good")])
    stats = run_all(work, Broken())
    assert (stats.retried >= 1, stats.succeeded) == (True, 1)
    assert len(work.peek()) == 1


@pytest.mark.parametrize("wrong", [cqueue.Dead, cqueue.Cancel])
def test_a_reason_is_text(work, wrong):
    """Anything else fails the handler, where it says so, and not the dispatcher afterwards."""

    def handle(*_):
        return wrong(ValueError("no such customer"))

    work.send(b"x")
    total = run_all(work, {None: cqueue.Binding("t", handle, cqueue.Retry(HOUR))})
    assert (total.retried, work.peek()[0].state) == (1, "waiting")


@pytest.mark.parametrize("wrong", [5, timedelta(), timedelta(seconds=-1), timedelta.max])
def test_a_timeout_is_a_timedelta_within_bounds(work, wrong):
    """Of a resolver's as well: its message waits for the next attempt, and the others are handled."""
    lines = []

    class Careless:
        def resolve(self, message):
            limit = wrong if message.body == b"x" else timedelta(seconds=5)
            return cqueue.Binding("t", lambda *_: None, cqueue.Retry(HOUR), timeout=limit)

    work.send_many([cqueue.Message(b"x"), cqueue.Message(b"good")])
    total = run_all(work, Careless(), on_event=lambda event, fields: lines.append((event, fields)))
    assert (total.retried, total.succeeded) == (1, 1)
    (fields,) = [fields for event, fields in lines if event == "message_retried"]
    assert "timeout is" in fields["error"]


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_error_without_a_text_is_decided_like_any_other(shop):
    """Though the history and the log would quote it."""
    queue = shop.create_queue("told", QueueConfig(history=timedelta(days=1)))

    def handle(*_):
        raise Mute

    binding = cqueue.Binding("t", handle, cqueue.Retry(HOUR), log_errors=True)
    queue.send(b"x")
    assert run_all(queue, {None: binding}).retried == 1


def test_what_the_dispatcher_fails_to_decide_waits_out_its_timeout(work, dispatch, monkeypatch):
    """It is given back until then, alone: a neighbour that runs on extends their lease."""
    gate = Gate()
    decided = runner.Runner.decide

    def break_once(self, delivery):
        if delivery.message.body == b"broken":
            raise RuntimeError("a bug")
        return decided(self, delivery)

    def handle(message, context):
        return gate(message, context) if message.body == b"long" else None

    monkeypatch.setattr(runner.Runner, "decide", break_once)
    work.send_many([cqueue.Message(b"long"), cqueue.Message(b"broken")])
    dispatcher = dispatch(work, handle)
    gate.wait_begun()
    until(lambda: {found.body: found.state for found in work.peek()}[b"broken"] == "waiting")
    gate.open.set()
    assert dispatcher.drain(SOON)


def test_a_configuration_that_cannot_be_read_holds_up_nothing_that_was_received(troubled, work, dispatch):
    """It was read before; the messages are handled, in their first attempt."""
    away, attempts = threading.Event(), []

    def trouble(operation):
        return Unavailable("no quorum") if isinstance(operation, ReadQueue) and away.is_set() else None

    def around(operation, execute):
        found = execute()
        if isinstance(operation, ReadMessages | ReadSlice) and not away.is_set():
            work._catalog._forget()
            away.set()
        return found

    work.send_many([cqueue.Message(b"x") for _ in range(20)])
    troubled.trouble, troubled.around = trouble, around
    dispatcher = dispatch(work, lambda message, _: attempts.append(message.attempt))
    until(lambda: dispatcher.stats().total.receive_failures)  # a later receive finds out
    received = dispatcher.stats().total.received
    assert received
    until(lambda: len(attempts) >= received)
    troubled.trouble, troubled.around = lambda _: None, lambda _, execute: execute()
    until(lambda: len(attempts) == 20)
    assert set(attempts) == {1}


# ── leases ──


def test_a_handler_five_times_longer_than_the_timeout_runs_once(work, clock, dispatch):
    """The lease is extended as long as the handler runs, and so are those of its batch."""
    gate = Gate()
    work.send_many([cqueue.Message(b"%d" % i) for i in range(3)])
    dispatcher = dispatch(work, gate)
    gate.wait_begun(3)
    until(lambda: dispatcher.engine.lease_extender.batches)
    leases = {batch.lease for batch in dispatcher.engine.lease_extender.batches}
    with work.consumer() as other:
        for _ in range(20):
            clock.advance(1)
            until(lambda: all(lease.due_ms * 1000 > clock.us + 1_900_000 for lease in leases))
            assert other.receive() == []
    gate.open.set()
    assert dispatcher.drain(SOON)
    assert len(gate.bodies) == 3
    assert work.peek() == []


def test_what_waits_half_its_timeout_is_given_back_without_using_an_attempt(work, clock, dispatch):
    """An idle process elsewhere can then start the message; running ones stay."""
    gate = Gate()
    work.send_many([cqueue.Message(b"%d" % i) for i in range(4)])
    dispatcher = dispatch(work, gate, threads=2, consumers=1)
    gate.wait_begun(2)
    until(lambda: dispatcher.stats().unstarted == 2)
    dispatcher.engine.poll_schedule.close()  # this process would take them again
    clock.advance(2.1)
    until(lambda: [stored.state for stored in work.peek()].count("waiting") == 2)
    with work.consumer() as other:
        taken = other.receive(10, wait=SOON)
    assert sorted(message.body for message in taken) == sorted({b"0", b"1", b"2", b"3"} - set(gate.bodies))
    assert {message.attempt for message in taken} == {1}
    gate.open.set()


def test_a_lost_lease_is_told_and_nothing_but_an_ack_is_sent(work, clock, dispatch):
    """Somebody else has the message then: a nack would give away what is theirs."""
    gate = Gate(answer=cqueue.Retry(NOW))
    work.send(b"x")
    dispatcher = dispatch(work, gate, threads=1, consumers=1)
    gate.wait_begun()
    dispatcher.engine.poll_schedule.close()
    until(lambda: dispatcher.engine.lease_extender.batches)
    (batch,) = dispatcher.engine.lease_extender.batches
    batch.busy = True  # as if the extension hung, while this process is cut off
    clock.advance(10)
    with work.consumer() as other:
        (theirs,) = other.receive(wait=SOON)
        batch.busy = False
        context = gate.contexts[0]
        assert context.lost.wait(SOON_S)
        gate.open.set()
        dispatcher.stop(SOON)
        assert dispatcher.stats().total.lost == 1
        assert theirs.is_held
        theirs.extend(timedelta(seconds=10))  # still theirs


def test_a_cancelled_message_is_told_to_its_handler_and_the_others_go_on(work, clock, dispatch):
    """At the next extension, which the other message of the same claim needs and gets."""
    gate = Gate()
    ids = work.send_many([cqueue.Message(b"gone"), cqueue.Message(b"stays")]).ids
    dispatcher = dispatch(work, gate, threads=2, consumers=1)
    gate.wait_begun(2)
    contexts = dict(zip(gate.bodies, gate.contexts, strict=True))
    assert work.cancel(ids[0])
    clock.advance(2)
    assert contexts[b"gone"].lost.wait(SOON_S)
    assert contexts[b"gone"].cancelled
    assert not contexts[b"stays"].lost.is_set()
    clock.advance(3)
    with work.consumer() as other:
        assert other.receive() == []
    gate.open.set()
    dispatcher.stop(SOON)
    assert not contexts[b"stays"].cancelled
    assert work.stats(exact=True).live == 0


@pytest.mark.parametrize("answer", [None, cqueue.Retry(NOW)])
def test_a_message_that_was_cancelled_alone_is_told_as_well(work, clock, dispatch, answer):
    """Its handler's answer changes nothing."""
    gate = Gate(answer)
    id_ = work.send(b"x")
    dispatcher = dispatch(work, gate, threads=1, consumers=1)
    gate.wait_begun()
    assert work.cancel(id_)
    clock.advance(2)
    assert gate.contexts[0].lost.wait(SOON_S)
    assert gate.contexts[0].cancelled
    gate.open.set()
    dispatcher.stop(SOON)
    assert work.find(id_) is None


def test_a_stop_closes_its_consumers_though_no_thread_is_free_for_that(work, dispatch, monkeypatch):
    """They would take hints, and keep locks, until the client is closed."""
    dispatcher = dispatch(work, lambda *_: None)
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "cqueue-closer":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    dispatcher.stop(SOON)
    for poller in dispatcher.engine.poll_schedule.pollers:
        with pytest.raises(cqueue.Closed):
            poller.consumer.receive()


class Weak(Middleware):
    """Knows each delivery while somebody else does. first: called at first attempts."""

    def __init__(self, first=lambda: None):
        self.seen = []
        self._first = first

    def before_run(self, _message, context):
        self.seen.append(weakref.ref(context._delivery))
        assert context.log
        assert not context.lost.is_set()
        if context.attempt == 1:
            self._first()


@pytest.fixture
def no_collector():
    """Switch the garbage collector off: only reference counts free objects."""
    gc.disable()
    yield
    gc.enable()


async def _coroutine(_message, _context):
    """Does nothing."""


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("handler", [lambda *_: None, _coroutine])
def test_an_acked_message_is_let_go_of_at_once(work, dispatch, handler):
    """The last one too, and not only when the lease extender looks at it next."""
    weak = Weak()
    dispatcher = dispatch(work, handler, middleware=[weak], threads=1, consumers=1)
    dispatcher.engine.lease_extender.close()
    for _ in range(20):
        work.send(b"x")
    until(lambda: dispatcher.stats().total.acked == 20)
    until(lambda: not any(one() for one in weak.seen))
    assert len(weak.seen) == 20


def _fail_once(_message, context):
    if context.attempt == 1:
        raise ValueError("not yet")


async def _fail_once_later(message, context):
    await asyncio.sleep(0)
    _fail_once(message, context)


def _refuse():
    raise ValueError("not yet")


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    ("handler", "first"),
    [(_fail_once, lambda: None), (_fail_once_later, lambda: None), (lambda *_: None, _refuse)],
)
def test_a_failed_message_is_let_go_of_once_it_is_given_back(work, dispatch, handler, first):
    """The traceback of an error leads to frames that refer to the error; the message is freed even so."""
    weak = Weak(first)
    dispatcher = dispatch(work, handler, middleware=[weak], threads=1, consumers=1)
    for _ in range(20):
        work.send(b"x")
    until(lambda: dispatcher.stats().total.retried == 20)
    until(lambda: not any(one() for one in weak.seen))
    assert len(weak.seen) >= 20


def test_a_context_can_be_asked_long_after_its_run(work):
    """A context gives the same answers after its run."""
    contexts = []
    work.send_many([cqueue.Message(b"x", task="greet")])
    run_all(work, {"greet": lambda _, context: contexts.append(context)})
    (context,) = contexts
    assert (context.queue, context.task, context.attempt) == (work.name, "greet", 1)
    assert context.max_attempts == work.config.max_attempts
    assert context.lost is context.lost
    assert (context.deadline, context.firing) == (None, None)
    assert repr(context) == f"<context of 'greet' on {work.name!r} attempt=1>"
    with pytest.raises(AttributeError, match="answer"):
        _ = context.answer


def test_suspects_start_before_what_waits(work, clock, dispatch):
    """While one is held no other suspect of its queue can be."""
    work.send(b"suspect")
    killed = work.consumer()
    assert killed.receive(wait=SOON)
    killed.close(give_back=False)
    work.send_many([cqueue.Message(b"first"), cqueue.Message(b"x"), cqueue.Message(b"x")])
    gate = Gate()
    dispatcher = dispatch(work, gate, threads=1, consumers=1)
    gate.wait_begun()
    until(lambda: dispatcher.stats().unstarted)
    first = gate.bodies[0]
    clock.advance(5)
    until(
        lambda: (
            any(d.message.suspect for d in dispatcher.engine.backlog.threads._suspects) or first == b"suspect"
        )
    )
    gate.open.set()
    gate.wait_begun(1)
    assert b"suspect" in gate.bodies[:2]


def test_suspects_follow_one_another_without_waiting_for_polls_or_acks(work, clock, dispatch):
    """A worker that is killed leaves hundreds, and only one at a time is claimed."""
    work.send_many([cqueue.Message(b"x")] * 5)
    killed = work.consumer()
    assert len(killed.receive(5, wait=SOON)) == 5
    killed.close(give_back=False)
    clock.advance(5)
    minute, long = timedelta(minutes=1), timedelta(seconds=10)
    options = {"poll_interval": minute, "max_poll_interval": minute, "ack_interval": long}
    dispatcher = dispatch(work, lambda *_: None, consumers=1, **options)
    until(lambda: dispatcher.stats().total.acked == 5)


# ── time limits ──


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_past_its_time_limit_is_ended_and_has_failed(work, is_async):
    """With a TimeoutError, by its policy; the worker goes on with the next message."""
    ended, errors = threading.Event(), []

    def spin(message, _context):
        try:
            while message.body == b"long":
                time.sleep(0.001)
        finally:
            ended.set()

    async def wait(message, _context):
        try:
            if message.body == b"long":
                await asyncio.sleep(100)
        finally:
            ended.set()

    class Errors(Middleware):
        def after_run(self, message, context, answer, error):
            errors.append(type(error))

    call = wait if is_async else spin
    bound = cqueue.Binding("t", call, cqueue.Retry(HOUR), is_async=is_async, timeout=timedelta(seconds=0.2))
    work.send_many([cqueue.Message(b"long"), cqueue.Message(b"short")])
    total = run_all(work, {None: bound}, threads=1, consumers=1, middleware=[Errors()])
    assert ended.is_set()
    assert (total.retried, total.succeeded) == (1, 1)
    assert sorted(errors, key=str) == sorted([TimeoutError, type(None)], key=str)


def test_a_time_limit_counts_from_when_the_handler_was_called():
    """And interrupts it once."""
    delivery = Delivery(None, None)
    delivery.binding = cqueue.Binding("t", fail, DEFAULT_POLICY, timeout=timedelta(seconds=10))
    assert not delivery.is_over(1e9), "not called yet"
    delivery.begun_s = 1000.0
    assert not delivery.is_over(1009.9)
    assert delivery.is_over(1010.0)
    delivery.told_s = 1010.0
    assert not delivery.is_over(1011.0)


def test_a_log_quotes_an_error_only_if_its_text_is_the_dispatchers_own():
    """The text of what a handler raised may quote a message."""
    delivery = Delivery(None, None)
    delivery.error = ValueError("of Jane Doe")
    assert delivery.said(delivery.error) == "ValueError"
    delivery.is_own_error = True
    assert delivery.said(delivery.error) == "ValueError: of Jane Doe"
    assert delivery.said(ValueError("of another one")) == "ValueError"


@pytest.mark.interrupted
@pytest.mark.usefixtures("clock")  # the timeout of the message does not pass
def test_a_thread_that_cannot_be_ended_is_replaced(work, dispatch, monkeypatch):
    """The thread's message is left to its timeout, and other messages are handled meanwhile."""
    monkeypatch.setattr(runner, "STUCK_S", 0.2)
    stuck = threading.Event()
    events = []

    def handle(message, _context):
        if message.body == b"stuck":
            assert stuck.wait(SOON_S)  # in C code: no exception arrives

    bound = cqueue.Binding("t", handle, DEFAULT_POLICY, timeout=timedelta(seconds=0.1))
    work.send(b"stuck")
    dispatcher = dispatch(
        work, {None: bound}, threads=1, consumers=1, on_event=lambda name, _: events.append(name)
    )
    until(lambda: "handler_stuck" in events)
    work.send(b"next")
    until(lambda: dispatcher.stats().total.acked == 1)
    assert [stored.body for stored in work.peek()] == [b"stuck"]
    stuck.set()


# ── stopping ──


@pytest.fixture
def patient(monkeypatch):
    """A stop waits as long as a starved machine needs to end handlers and to store what was decided."""
    monkeypatch.setattr(engine, "INTERRUPT_S", SOON_S)
    monkeypatch.setattr(engine, "AFTERWARDS_S", SOON_S)


def test_a_stop_lets_handlers_end_and_gives_back_the_rest(work, dispatch):
    """No handler is started after the stop; messages that were not started have used no attempt."""
    gate = Gate()
    work.send_many([cqueue.Message(b"%d" % i) for i in range(5)])
    dispatcher = dispatch(work, gate, threads=2, consumers=1)
    gate.wait_begun(2)
    until(lambda: dispatcher.stats().unstarted)
    dispatcher.stop(SOON, wait=False)
    assert gate.contexts[0].stopping.wait(SOON_S)
    gate.open.set()
    assert dispatcher.join(SOON)
    assert len(gate.bodies) == 2
    with work.consumer() as other:
        taken = other.receive(10, wait=SOON)
    assert sorted([*(message.body for message in taken), *gate.bodies]) == [b"0", b"1", b"2", b"3", b"4"]
    assert {message.attempt for message in taken} == {1}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_stop_gives_back_what_a_hook_holds(work, dispatch, monkeypatch, is_async):
    """Its message need not wait for its timeout, and its handler is not called when the hook ends at last."""
    monkeypatch.setattr(engine, "INTERRUPT_S", 0.05)
    begun, go_on, handled, threads = threading.Event(), threading.Event(), [], []

    class Hanging(Middleware):
        def before_run(self, _message, _context):
            threads.append(threading.current_thread())
            begun.set()
            assert go_on.wait(SOON_S)

    async def handle(_message, _context):
        handled.append(1)

    work.send(b"x")
    handler = handle if is_async else lambda *_: handled.append(1)
    dispatcher = dispatch(work, handler, middleware=[Hanging()])
    assert begun.wait(SOON_S)
    dispatcher.stop(NOW)
    assert [stored.state for stored in work.peek()] == ["waiting"]
    go_on.set()
    (thread,) = threads
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert not handled


def test_the_grace_begins_with_the_stop(work, dispatch):
    """However long the dispatcher has been running: no handler is interrupted before it is over."""
    begun, go_on = threading.Event(), threading.Event()

    def spin(_message, _context):
        begun.set()
        while not go_on.is_set():
            time.sleep(0.001)  # could be interrupted at any moment

    work.send(b"x")
    dispatcher = dispatch(work, spin)
    assert begun.wait(SOON_S)
    dispatcher.stop(SOON, wait=False)
    assert not dispatcher.join(timedelta(seconds=0.3))
    go_on.set()
    assert dispatcher.join(SOON)
    assert dispatcher.stats().total.succeeded == 1
    assert dispatcher.stats().total.interrupted == 0


def test_what_was_settled_between_two_looks_is_not_taken_for_drained(work, dispatch):
    """A retry of it may be due, which polls that began before it cannot have seen."""
    dispatcher = dispatch(work, fail)
    assert dispatcher.drain(SOON)
    dispatcher.engine.settlement_writer.stored_s = time.monotonic() + SOON_S
    assert not dispatcher.drain(timedelta(seconds=1))
    dispatcher.engine.settlement_writer.stored_s = 0.0
    assert dispatcher.drain(SOON)


@pytest.mark.parametrize("is_known", [False, True])
def test_messages_that_a_claim_could_not_deliver_are_waited_for(troubled, work, clock, dispatch, is_known):
    """The claim has no answer; or it has, and the bodies can neither be read nor be given back."""
    claimed, handled = threading.Event(), []

    def around(operation, execute):
        if claimed.is_set() and isinstance(operation, Mutate | ReadBodies | ReadHead):
            raise Unavailable("too few replicas")
        result = execute()
        if isinstance(operation, Mutate) and operation.slots:
            claimed.set()
            if not is_known:
                raise OutcomeUnknown("no answer")
        return result

    work.send(bytes(20_000))
    troubled.around = around
    dispatcher = dispatch(work, lambda message, _: handled.append(message.attempt), consumers=1)
    until(lambda: dispatcher.stats().total.receive_failures)
    troubled.around = lambda _, execute: execute()
    assert not dispatcher.drain(timedelta(seconds=1))
    assert handled == []
    clock.advance(6)
    assert dispatcher.drain(SOON)
    assert handled == [2]


def test_a_claim_of_unknown_outcome_that_took_nothing_is_not_waited_for(troubled, work, clock, dispatch):
    """A sweep without an answer holds no message, and the visibility timeout may be hours."""

    def around(operation, execute):
        if isinstance(operation, ReadHead) and operation.serial:
            raise Unavailable("too few replicas")
        result = execute()
        if isinstance(operation, Mutate) and operation.lock is not None:
            raise OutcomeUnknown("no answer")
        return result

    work.send(b"x")
    dispatcher = dispatch(work, lambda *_: None, consumers=1)
    assert dispatcher.drain(SOON)
    troubled.around = around
    clock.advance(3)  # W + ε: the sweep is due
    until(lambda: dispatcher.stats().total.receive_failures)
    troubled.around = lambda _, execute: execute()
    assert dispatcher.drain(SOON)


def test_a_dispatcher_that_was_never_started_is_not_drained(work):
    """Nobody has looked into the queue."""
    work.send(b"x")
    dispatcher = Dispatcher(work, fail)
    assert not dispatcher.drain(timedelta(milliseconds=50))
    dispatcher.stop()
    assert not dispatcher.drain(SOON)


def test_join_hears_a_signal_that_did_not_wake_it(work, dispatch):
    """Such as one that comes between Python's last look at its signals and the wait."""
    dispatcher = dispatch(work, fail)
    before = signal.signal(signal.SIGUSR1, lambda *_: dispatcher.stop(wait=False))
    try:
        other = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
        other.start()  # its thread gets the signal, so the main thread sleeps on
        assert dispatcher.join(SOON)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("patient")
def test_a_handler_that_begins_as_all_are_ended_is_ended_as_well(work, dispatch):
    """A handler that starts between two interrupts is interrupted by the second."""
    begun, tries = threading.Event(), []

    def spin(_message, _context):
        begun.set()
        while True:
            time.sleep(0.001)

    work.send(b"x")
    dispatcher = dispatch(work, spin)
    assert begun.wait(SOON_S)
    end, worker_threads = dispatcher.engine.worker_threads.interrupt_all, dispatcher.engine.worker_threads

    def too_early_at_first(now_s):
        tries.append(now_s)
        if len(tries) > 1:
            end(now_s)

    worker_threads.interrupt_all = too_early_at_first
    dispatcher.stop(timedelta())
    assert dispatcher.stats().total.interrupted == 1
    assert dispatcher.stats().running == 0


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_async", [False, True])
def test_when_the_grace_is_over_handlers_are_ended_and_their_attempt_counts(work, dispatch, is_async):
    """A second stop without grace does not wait for the first one's."""
    begun, ended = threading.Event(), threading.Event()

    def spin(_message, _context):
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    async def wait(_message, _context):
        begun.set()
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()

    work.send(b"x")
    dispatcher = dispatch(work, wait if is_async else spin)
    assert begun.wait(SOON_S)
    dispatcher.stop(HOUR, wait=False)
    dispatcher.stop(NOW)
    assert ended.is_set()
    with work.consumer() as other:
        (message,) = other.receive(wait=SOON)
    assert message.attempt == 2
    assert dispatcher.stats().total.interrupted == 1


@pytest.mark.interrupted
def test_a_stop_does_not_wait_for_what_cannot_be_ended(work, dispatch):
    """The handler's message is given back, because the process is about to end the handler anyway."""
    gate = Gate()
    work.send(b"x")
    dispatcher = dispatch(work, gate)
    gate.wait_begun()
    dispatcher.stop(NOW)
    assert gate.contexts[0].lost.is_set()
    with work.consumer() as other:
        (message,) = other.receive(wait=SOON)
        assert message.attempt == 2
        gate.open.set()


def test_what_handlers_decided_is_stored_before_a_stop_returns(work):
    """Though acks would have been collected for ten seconds."""
    work.send_many([cqueue.Message(b"x") for _ in range(20)])
    done = threading.Semaphore(0)
    with Dispatcher(work, lambda *_: done.release(), ack_interval=timedelta(seconds=10)):
        for _ in range(20):
            assert done.acquire(timeout=SOON_S)
    assert work.peek() == []


def test_a_dispatcher_is_started_once(work):
    """A second start is refused; a dispatcher that was never started can be stopped."""
    dispatcher = Dispatcher(work, fail)
    dispatcher.stop()
    assert dispatcher.join(NOW)
    with pytest.raises(cqueue.Closed):
        dispatcher.start()


def test_a_start_that_meets_a_stop_starts_nothing(work):
    """The stop ends what has not begun, and a program that waits for it may close the client."""
    dispatcher = Dispatcher(work, fail)
    end, ending, go_on = dispatcher._end, threading.Event(), threading.Event()

    def end_late():
        ending.set()
        assert go_on.wait(SOON_S)
        end()

    dispatcher._end = end_late
    stopping = threading.Thread(target=dispatcher.stop)
    stopping.start()
    assert ending.wait(SOON_S)
    dispatcher._end = end
    with pytest.raises(cqueue.Closed):
        dispatcher.start()
    go_on.set()
    stopping.join()
    assert not dispatcher.engine.fetchers.threads
    assert dispatcher.state == "stopped"


def test_a_stop_during_the_start_is_waited_for(troubled, work):
    """A program that closes its client after `stop` or `join` leaves nothing held behind."""
    reading, go_on = threading.Event(), threading.Event()

    def trouble(operation):
        if isinstance(operation, ReadQueue):
            reading.set()
            assert go_on.wait(SOON_S)

    work.send_many([cqueue.Message(b"x") for _ in range(10)])
    dispatcher = Dispatcher(work, lambda *_: None)
    work._catalog._forget()
    troubled.trouble = trouble
    starting = threading.Thread(target=dispatcher.start)
    starting.start()
    assert reading.wait(SOON_S)
    dispatcher.stop(NOW, wait=False)
    assert not dispatcher.join(timedelta(milliseconds=50))
    go_on.set()
    assert dispatcher.join(SOON)
    starting.join()
    assert dispatcher.state == "stopped"
    assert dispatcher.engine.fetchers.threads
    assert not any(thread.is_alive() for thread in dispatcher.engine.fetchers.threads)


def test_a_stop_by_the_thread_that_starts_does_not_wait_for_itself(troubled, work):
    """A signal handler may call it while `start` waits for Cassandra."""
    dispatchers = []

    def trouble(operation):
        if isinstance(operation, ReadQueue) and dispatchers:
            dispatchers.pop().stop(NOW)

    dispatcher = Dispatcher(work, lambda *_: None)
    dispatchers.append(dispatcher)
    work._catalog._forget()
    troubled.trouble = trouble
    dispatcher.start()
    assert dispatcher.join(SOON)


def test_a_stop_by_the_thread_that_undoes_a_failed_start_does_not_wait_for_itself(work, monkeypatch):
    """A signal handler may call it then, too."""
    dispatcher = Dispatcher(work, fail)
    close = cqueue.Consumer.close

    def closing(consumer, **options):
        dispatcher.stop(NOW)
        close(consumer, **options)

    monkeypatch.setattr(cqueue.Consumer, "close", closing)
    monkeypatch.setattr(dispatcher.engine, "start", lambda _: fail(None, None))

    def start():
        with pytest.raises(ValueError, match="customer"):
            dispatcher.start()

    on_a_thread(start)
    assert dispatcher.join(SOON)


@pytest.mark.parametrize("refused", ["cqueue-worker-3", "cqueue-fetcher-1", "cqueue-stopper"])
def test_a_start_that_the_system_refuses_is_undone(shop, work, monkeypatch, refused):
    """No thread and no consumer stay behind, and `stop` returns."""
    start = threading.Thread.start

    def refuse(self):
        if self.name == refused:
            raise RuntimeError("can't start new thread")
        start(self)

    before = threading.active_count()
    dispatcher = Dispatcher(work, fail)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        dispatcher.start()
    dispatcher.stop()
    assert dispatcher.state == "stopped"
    until(lambda: threading.active_count() <= before)
    assert shop._wakeups["work"]._inboxes == []


@pytest.mark.parametrize("started", ["stopper", "loop", "lease-extender", "worker-3", "fetcher-0"])
def test_a_start_that_a_ctrl_c_cuts_short_is_undone(shop, work, monkeypatch, started):
    """It mostly comes while the main thread waits for a thread to begin."""
    start = threading.Thread.start

    def interrupted(self):
        start(self)
        if self.name == f"cqueue-{started}":
            raise KeyboardInterrupt

    before = threading.active_count()
    dispatcher = Dispatcher(work, fail)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dispatcher.start()
    assert dispatcher.join(SOON)
    with pytest.raises(cqueue.Closed):
        dispatcher.start()
    until(lambda: threading.active_count() <= before)
    assert shop._wakeups["work"]._inboxes == []


@pytest.mark.parametrize("wait", [Dispatcher.stop, lambda one: one.join(timedelta(milliseconds=1))])
def test_a_ctrl_c_at_any_moment_of_a_wait_holds_up_no_stop(work, wait):
    """Neither one under way nor the next one."""
    for number in itertools.count(1):
        dispatcher = Dispatcher(work, fail, threads=1, consumers=1)
        dispatcher.start()
        try:
            with ctrl_c_at(number):
                wait(dispatcher)
        except (KeyboardInterrupt, RuntimeError):
            on_a_thread(dispatcher.stop)
            assert dispatcher.state == "stopped"
        else:
            dispatcher.stop()
            break
    assert number > 10


def test_a_start_without_file_descriptors_is_undone(shop, work, monkeypatch):
    """There is no event loop then, and the consumers are closed all the same."""

    def refuse():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", refuse)
    dispatcher = Dispatcher(work, fail)
    with pytest.raises(OSError, match="open files"):
        dispatcher.start()
    assert dispatcher.join(SOON)
    assert all(poller.consumer._closed for poller in dispatcher.engine.poll_schedule.pollers)
    assert shop._wakeups["work"]._inboxes == []


def test_a_second_stop_ends_the_wait_for_acks(troubled, work, monkeypatch, caplog):
    """They cannot be stored, and the first grace is long. The last line warns of them."""
    monkeypatch.setattr(engine, "AFTERWARDS_S", 0.1)
    asked = threading.Event()

    def trouble(operation):
        if isinstance(operation, DeleteMessages):
            asked.set()
            return OutcomeUnknown("timed out")
        return None

    troubled.trouble = trouble
    work.send(b"x")
    dispatcher = Dispatcher(work, lambda *_: None)
    dispatcher.start()
    assert asked.wait(SOON_S)
    dispatcher.stop(HOUR, wait=False)
    until(lambda: dispatcher.state == "stopping")
    dispatcher.stop(NOW, wait=False)
    assert dispatcher.join(SOON)
    (last,) = [record for record in caplog.records if "dispatcher_stopped" in record.getMessage()]
    assert last.levelname == "WARNING"
    assert "unsettled=1" in last.getMessage()


def test_a_handler_may_stop_its_dispatcher(work, dispatch):
    """Without waiting for itself."""
    work.send(b"x")
    dispatchers = []
    ready = threading.Event()

    def handle(*_):
        ready.wait(SOON_S)
        dispatchers[0].stop(wait=False)

    dispatchers.append(dispatch(work, handle))
    ready.set()
    assert dispatchers[0].join(SOON)
    assert work.peek() == []


# ── trouble ──


def test_an_ack_is_repeated_until_it_is_known_and_the_handler_runs_once(troubled, work, clock, dispatch):
    """The timeout is extended meanwhile; no attempt to ack is given up."""
    runs, fails = [], []

    def trouble(operation):
        if isinstance(operation, DeleteMessages) and len(fails) < 12:
            fails.append(1)
            return OutcomeUnknown("timed out")
        return None

    troubled.trouble = trouble
    work.send(b"x")
    dispatcher = dispatch(work, lambda *_: runs.append(1))
    until(lambda: (clock.advance(0.004), dispatcher.stats().total.acked == 1)[1])
    assert (len(runs), dispatcher.stats().total.ack_failures > 0) == (1, True)
    assert work.peek() == []


def test_a_cluster_that_does_not_answer_is_asked_little_and_work_resumes_alone(
    troubled, work, dispatch, monkeypatch
):
    """Neither a busy loop nor a flood of log lines; nothing is to be done when it is back."""
    monkeypatch.setattr("cqueue.dispatcher.execution.events.REPEAT_S", float("inf"))  # however slow this is
    events, failing = [], threading.Event()
    dispatcher = dispatch(work, lambda *_: None, on_event=lambda name, _: events.append(name))
    until(lambda: dispatcher.engine.poll_schedule.pollers[0].state.empty_since_s)
    troubled.trouble = lambda _: Unavailable("no node") if failing.is_set() else None
    failing.set()
    until(lambda: dispatcher.stats().total.receive_failures >= 3)
    before, begin = troubled.asked, time.monotonic()
    until(lambda: dispatcher.stats().total.receive_failures >= 5)
    assert (troubled.asked - before) / (time.monotonic() - begin) < 200
    assert events.count("receive_failed") == 1
    assert dispatcher.stats().failing == ("work",)
    failing.clear()
    work.send(b"x")
    until(lambda: dispatcher.stats().total.succeeded == 1)
    until(lambda: dispatcher.stats().failing == ())  # said after what was received was handed over
    until(lambda: "receive_resumed" in events)


def test_a_queue_without_a_dead_letter_queue_loses_nothing(shop, work, dispatch):
    """A message that cannot be buried is delivered again, much later."""
    work.send(b"x")
    dead = shop._driver.ask(ReadQueue("work.dead"))
    shop._driver.ask(RemoveQueue(dead.name, dead.incarnation))
    dispatcher = dispatch(work, lambda *_: cqueue.Dead("bad"))
    until(lambda: dispatcher.stats().total.dead == 1)
    until(lambda: [stored.state for stored in work.peek()] == ["waiting"])


def test_one_wide_row_that_cannot_be_reached_delays_no_other(troubled, work, dispatch):
    """The acks of that row are repeated on their own."""
    for _ in range(12):
        work._producer._states._free.clear()
        work.send(b"x")
    broken = next(iter(row for row in troubled.store._partitions if row.queue.startswith("work@")))
    in_it = len(troubled.store._partitions[broken].of(0).live)
    bad = threading.Event()
    bad.set()
    troubled.trouble = lambda op: (
        Unavailable("away")
        if bad.is_set() and isinstance(op, DeleteMessages) and op.wide_row == broken
        else None
    )
    dispatcher = dispatch(work, lambda *_: None)
    until(lambda: dispatcher.stats().total.acked == 12 - in_it)
    bad.clear()
    until(lambda: dispatcher.stats().total.acked == 12)


def test_an_unreadable_message_does_not_stop_the_fetcher(troubled, work, dispatch):
    """A receive that fails is tried again, and the message comes."""
    work.send(b"x")
    fails = []

    def trouble(operation):
        if isinstance(operation, ReadMessages) and not fails:
            fails.append(1)
            raise RuntimeError("a bug")

    troubled.trouble = trouble
    dispatcher = dispatch(work, lambda *_: None)
    until(lambda: dispatcher.stats().total.succeeded == 1)


# ── many queues ──


def test_a_full_queue_keeps_no_other_waiting(shop, work, dispatch):
    """A full queue gets what the others leave; one message elsewhere is handled among the first."""
    small = shop.create_queue("small")
    order, gate = [], threading.Event()

    def handle(_message, context):
        order.append(context.queue)
        assert gate.wait(SOON_S)

    work.send_many([cqueue.Message(b"x") for _ in range(1000)])
    dispatcher = dispatch([work, small], handle, threads=2, consumers=2)
    until(lambda: len(order) == 2)
    small.send(b"y")
    until(lambda: "small" in dispatcher.engine.backlog.threads.by_queue)  # though no handler has ended
    gate.set()
    until(lambda: "small" in order)
    assert order.index("small") < 10
    dispatcher.stop(NOW)


def test_idle_queues_cost_little_and_a_send_wakes_the_right_one(shop, dispatch):
    """Each is polled at most once a second; messages are found by hints.

    A poll may come before a hint, rarely: polls of a queue are one to two seconds apart.
    """
    queues = [shop.create_queue(f"q{number}") for number in range(20)]
    seen = threading.Semaphore(0)
    dispatcher = dispatch(queues, lambda *_: seen.release())
    until(lambda: all(poller.state.pause_s >= 1 for poller in dispatcher.engine.poll_schedule.pollers))
    for queue in queues[::2]:
        queue.send(b"x")
        assert seen.acquire(timeout=SOON_S)
    stats = dispatcher.stats()
    assert stats.total.found_by_hint >= 5
    assert (stats.queues["q10"].received, stats.queues["q11"].received) == (1, 0)


# ── around the handler ──


def test_hooks_surround_runs_and_acks_in_order(work):
    """`before_` in the order given, `after_` in the opposite; one that fails later changes nothing."""
    calls = []

    class Noting(Middleware):
        def __init__(self, name):
            self.name = name

        def before_run(self, message, context):
            calls.append(f"before {self.name}")

        def after_run(self, message, context, answer, error):
            calls.append(f"after {self.name}")
            raise RuntimeError("of no consequence")

        def after_ack(self, messages):
            calls.append(f"acked {len(messages)}")

    work.send(b"x")
    total = run_all(work, lambda *_: calls.append("run"), middleware=[Noting("a"), Noting("b")])
    assert total.acked == 1
    assert calls == ["before a", "before b", "run", "after b", "after a", "acked 1", "acked 1"]


@pytest.mark.parametrize("trigger", [None, "{}"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_sees_the_context_variables_of_its_hooks(work, monkeypatch, is_async, trigger):
    """Also as a coroutine of a schedule, which asks Cassandra on a thread. The last hook takes all back."""
    tenant, seen = ContextVar("tenant", default="nobody"), []

    class Tenant(Middleware):
        def before_run(self, message, context):
            self.token = tenant.set("shop")

        def after_run(self, message, context, answer, error):
            seen.append(tenant.get())
            tenant.reset(self.token)
            seen.append(tenant.get())

    async def handle_async(*_):
        seen.append(tenant.get())

    monkeypatch.setattr(firing, "begin", lambda *_: None)
    monkeypatch.setattr(firing, "finish", lambda _store, _message, _firing, settlement: settlement)
    work.send(b"x") if trigger is None else work.send_many([cqueue.Message(b"x", trigger=trigger)])
    run_all(work, handle_async if is_async else lambda *_: seen.append(tenant.get()), middleware=[Tenant()])
    assert seen == ["shop", "shop", "nobody"]


async def _hook(_self, *_):
    raise AssertionError("nobody awaits this")


def _hook_that_yields(_self, *_):
    yield


@pytest.mark.parametrize("hook", [_hook, _hook_that_yields])
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_whose_call_would_run_nothing_is_refused(work, name, hook):
    """A check before the run, say, would pass each message without a word."""
    made = type("Check", (Middleware,), {name: hook})
    for make in (
        lambda: Dispatcher(work, print, middleware=[made()]),
        lambda: cqueue.App(middleware=[made()]),
    ):
        with pytest.raises(ConfigError, match=rf"Check\.{name} is a (coroutine|generator) function"):
            make()


def test_a_hook_before_the_run_that_fails_is_a_failed_run(work):
    """The handler is not called."""

    class No(Middleware):
        def before_run(self, message, context):
            raise PermissionError("closed")

    work.send(b"x")
    total = run_all(work, {None: cqueue.Binding("t", pytest.fail, cqueue.Retry(HOUR))}, middleware=[No()])
    assert total.retried == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_schedule_comes_before_the_handler_and_before_the_settlement(work, is_async, monkeypatch):
    """A schedule may decide instead of the handler, and may change the settlement."""
    calls = []

    def begin(_store, message):
        calls.append("begin")
        return cqueue.Cancel("stale") if message.body == b"stale" else None

    def finish(_store, _message, _firing, settlement):
        calls.append(settlement)
        return settlement

    async def handle_async(*_):
        calls.append("run")

    handler = handle_async if is_async else lambda *_: calls.append("run")
    work.send_many([cqueue.Message(b"stale", trigger="{}"), cqueue.Message(b"plain")])
    monkeypatch.setattr(firing, "begin", begin)
    monkeypatch.setattr(firing, "finish", finish)
    total = run_all(work, handler)
    assert (total.cancelled, total.succeeded) == (1, 1)
    assert calls.count("run") == 1
    work.send_many([cqueue.Message(b"due", trigger="{}")])
    calls.clear()
    assert run_all(work, handler).succeeded == 1
    assert calls == ["begin", "run", SUCCEEDED]


def test_events_name_the_message_and_never_its_body(work):
    """Stable names, with queue, task, message id and attempt."""
    events = []
    work.send(b"secret")
    run_all(work, lambda *_: cqueue.Retry(HOUR), on_event=lambda name, fields: events.append((name, fields)))
    fields = dict(events)["message_retried"]
    assert fields.keys() >= {"queue", "task", "message_id", "attempt"}
    assert b"secret" not in repr(events).encode()
    assert [name for name, _ in events if name.startswith("dispatcher")] == [
        "dispatcher_started",
        "dispatcher_stopping",
        "dispatcher_stopped",
    ]


# ── configuration ──


@pytest.mark.parametrize(
    "options",
    [
        {"consumers": 3, "threads": 2},
        {"threads": 0},
        {"batch_size": 1001},
        {"backlog": 0},
        {"coroutines": True},
        {"poll_interval": timedelta(0)},
        {"poll_interval": timedelta(seconds=2), "max_poll_interval": timedelta(seconds=1)},
        {"ack_interval": 0.1},
        {"no_such_option": 1},
    ],
)
def test_options_are_checked_whole_when_it_is_made(work, options):
    """Before any thread is started."""
    with pytest.raises(cqueue.ConfigError):
        Dispatcher(work, fail, **options)


@pytest.mark.parametrize("queues", [[], ["work"], None])
def test_queues_are_checked(queues):
    """The arguments must be queues, at least one."""
    with pytest.raises((cqueue.ConfigError, TypeError)):
        Dispatcher(queues, fail)


def test_a_name_is_not_a_queue():
    """Nor are its letters."""
    with pytest.raises(cqueue.ConfigError, match="'work' is not a queue"):
        Dispatcher("work", fail)


@pytest.mark.parametrize("handler", [None, 3, {}, {3: fail}, object()])
def test_handlers_are_checked(work, handler):
    """An object that cannot be called is refused at once."""
    with pytest.raises(cqueue.ConfigError):
        Dispatcher(work, handler)


def test_many_queues_are_checked_without_comparing_each_with_each():
    """The start of 20,000 would take many seconds longer."""
    with Compared.few(300) as names:
        check_once(names())


def test_a_queue_is_given_once(shop, work):
    """Two consumers of one queue come from the option, not from naming it twice."""
    with pytest.raises(cqueue.ConfigError):
        Dispatcher([work, shop.queue("work")], fail)


@pytest.mark.cassandra
def test_on_cassandra_every_message_is_handled_and_settled(keyspace):
    """Several consumers of one queue, failures, retries, snoozes and deaths among them."""
    with cqueue.connect(keyspace.url) as client:
        queue = client.create_queue("all", QueueConfig(max_attempts=3))
        seen = {}
        mutex = threading.Lock()

        def handle(message, _context):
            number = int(message.body)
            with mutex:
                seen.setdefault(number, []).append(message.attempt)
            if number % 10 == 1 and message.attempt == 1:
                return cqueue.Retry(NOW)
            if number % 10 == 2 and len(seen[number]) == 1:
                return cqueue.Snooze(NOW)
            if number % 50 == 3:
                raise ValueError(number)
            return None

        sent = queue.send_many([cqueue.Message(b"%d" % number) for number in range(500)])
        assert not sent.failed
        bound = cqueue.Binding("t", handle, cqueue.Retry(NOW))
        with Dispatcher(queue, {None: bound}, consumers=3) as dispatcher:
            assert dispatcher.drain(timedelta(minutes=2))
        total = dispatcher.stats().total
        assert (total.dead, total.snoozed, total.succeeded) == (10, 50, 490)
        assert set(seen) == set(range(500))
        assert queue.peek() == []
        assert len(client.queue("all.dead").peek(100)) == 10


def test_a_coroutine_that_blocks_the_loop_is_told_of(work, dispatch, monkeypatch):
    """A blocked loop cannot be freed from outside; the log says why all coroutines stand still."""
    monkeypatch.setattr(event_loop, "BLOCKED_S", 0.1)
    events, over = [], threading.Event()

    async def block(_message, _context):
        assert over.wait(SOON_S)

    work.send(b"x")
    dispatcher = dispatch(work, block, on_event=lambda name, _: events.append(name))
    until(lambda: "loop_blocked" in events)
    over.set()
    until(lambda: "loop_resumed" in events)
    until(lambda: dispatcher.stats().total.acked == 1)


def test_a_dispatcher_that_cannot_start_leaves_nothing_behind(shop, work):
    """A failed start leaves no threads, and no consumer that later sends would wake."""
    shop.create_queue("gone")
    dispatcher = Dispatcher([work, shop.queue("gone")], fail)
    shop.delete_queue("gone")
    before = set(threading.enumerate())
    with pytest.raises(cqueue.QueueNotFound):
        dispatcher.start()
    assert set(threading.enumerate()) <= before
    assert shop._wakeups["work"]._inboxes == []
