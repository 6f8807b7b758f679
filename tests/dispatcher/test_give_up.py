"""Giving a handler up: its message is settled once, by the first of those who may settle it."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

import cqueue
from cqueue.dispatcher.execution import event_loop, firing
from cqueue.dispatcher.execution.backlog import Backlog, RunQueue
from cqueue.dispatcher.execution.delivery import (
    INTERRUPTED,
    SUCCEEDED,
    TIME_LIMIT,
    Delivery,
    Settlement,
    Verb,
)
from cqueue.dispatcher.execution.event_loop import EventLoop
from cqueue.dispatcher.execution.events import Event
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.dispatcher.execution.retry import DEFAULT_POLICY
from cqueue.dispatcher.execution.runner import STUCK_S, Runner
from cqueue.dispatcher.execution.telemetry import Telemetry
from cqueue.dispatcher.execution.worker_threads import GONE_S, WorkerThreads
from cqueue.runtime.batcher import calls
from tests.fix_dispatcher import SOON_S, until

LEFT = Settlement(Verb.NACK, "left", timedelta(seconds=4))


@pytest.fixture
def settled():
    """What was decided, in this order."""
    return []


@pytest.fixture
def runner(settled):
    return Runner(Telemetry(), [], lambda _, settlement: settled.append(settlement))


def make_delivery(call=lambda *_: None, *, is_firing=False):
    now = datetime.now(UTC)
    message = SimpleNamespace(
        id="m", task="t", attempt=1, trigger=None, is_cancelled=False, suspect=False, due=now, sent_at=now,
        lease=SimpleNamespace(due_ms=4000),
    )  # fmt: skip
    driver = SimpleNamespace(tracing=None)
    queue = SimpleNamespace(now=now, schedules=SimpleNamespace(store=None))
    poller = SimpleNamespace(
        name="q", driver=driver, queue=queue, now_ms=lambda: 0, max_attempts=5, is_dead_letter=False
    )
    delivery = Delivery(message, poller)
    delivery.binding = cqueue.Binding("t", call, DEFAULT_POLICY)
    delivery.is_firing = is_firing
    return delivery


def test_a_run_that_has_ended_is_not_given_up(runner, settled):
    """It ends between the look at what runs and the decision to wait for it no longer."""
    delivery = make_delivery()
    runner.begin(delivery)
    runner.settle(delivery, runner.decide(delivery))
    assert not runner.give_up(delivery, LEFT, Event.STUCK)
    assert not delivery.is_abandoned
    assert not delivery.is_lost
    assert settled == [SUCCEEDED]


def at_instruction(number, one, other):
    """Return what two calls return, the other made on another thread at an instruction of the first one.

    None if the first one has fewer instructions.
    """
    found = []
    meanwhile = threading.Thread(target=lambda: found.append(other()))

    def look(frame, event, _):
        nonlocal number
        frame.f_trace_opcodes = True
        number -= event == "opcode"
        if event == "opcode" and not number:
            meanwhile.start()
            meanwhile.join(0.01)  # it may wait for a lock
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        found.append(one())
    finally:
        sys.settrace(before)
    if number > 0:
        return None
    meanwhile.join(SOON_S)
    return found


@pytest.mark.parametrize("names", [("note_end", "give_up"), ("give_up", "note_end")])
def test_one_settles_a_message_whose_run_ends_as_it_is_given_up(names):
    """Neither both nor none, wherever the interpreter switches between the two threads."""
    for number in itertools.count(1):
        delivery = Delivery(None, None)
        found = at_instruction(number, *(getattr(delivery, name) for name in names))
        if found is None:
            break
        assert sorted(found) == [False, True], number
    assert number > 5


def test_a_run_is_given_up_once(runner, settled):
    """Though its time limit and a stop of the dispatcher meet."""
    delivery = make_delivery()
    runner.begin(delivery)
    assert runner.give_up(delivery, LEFT, Event.STUCK)
    assert not runner.give_up(delivery, INTERRUPTED, Event.ABANDONED)
    assert settled == [LEFT]


@pytest.mark.parametrize(
    ("override", "expected"), [(cqueue.Snooze(timedelta()), [LEFT]), (None, [LEFT, SUCCEEDED])]
)
def test_a_run_that_was_given_up_settles_only_what_it_has_done(runner, settled, override, expected):
    """An ack is right however late; nothing else is stored in place of what was decided."""
    delivery = make_delivery()
    runner.begin(delivery)
    runner.give_up(delivery, LEFT, Event.STUCK)
    delivery.override = override
    runner.settle(delivery, runner.decide(delivery))
    assert settled == expected


def test_a_late_success_whose_schedule_does_not_move_on_settles_nothing(runner, settled, monkeypatch):
    """The message was left to its timeout, and that is what becomes of it."""
    monkeypatch.setattr(firing, "begin", lambda *_: object())
    monkeypatch.setattr(firing, "finish", lambda *_: Settlement(Verb.SNOOZE, "snoozed"))
    delivery = make_delivery(is_firing=True)
    runner.ask_schedule(delivery)
    runner.begin(delivery)
    runner.give_up(delivery, LEFT, Event.STUCK)
    runner.settle(delivery, runner.move_on(delivery, runner.decide(delivery)))
    assert settled == [LEFT]


@pytest.fixture
def stuck(runner):
    """A worker thread with a handler that goes on until `go_on`, and another message behind it."""
    backlog = Backlog(RunQueue(1, 10), RunQueue(1, 10), wake_loop=lambda: None, room_freed=lambda: None)
    workers = WorkerThreads(backlog, runner)
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def handle(*_):
        begun.set()
        assert go_on.wait(SOON_S)

    delivery = make_delivery(handle)
    backlog.put([delivery, make_delivery(lambda *_: done.set())])
    workers.start()
    assert begun.wait(SOON_S)
    delivery.told_s = 0.0
    yield SimpleNamespace(workers=workers, line=backlog.threads, delivery=delivery, go_on=go_on, done=done)
    backlog.close()


def test_a_thread_whose_handler_ends_as_it_is_looked_at_is_not_replaced(stuck, settled, monkeypatch):
    """The thread goes on with other messages, so a second one would be one too many."""
    seen = stuck.line.called()
    assert seen == [stuck.delivery]
    stuck.go_on.set()
    assert stuck.done.wait(SOON_S)  # the thread has ended with the first, and handles the second
    monkeypatch.setattr(stuck.line, "called", lambda: seen)
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread too many"))
    stuck.workers.watch(STUCK_S)
    assert settled[0] is SUCCEEDED
    assert LEFT.outcome not in [one.outcome for one in settled]


def test_a_thread_that_cannot_be_started_is_started_later(stuck, monkeypatch):
    """The one that was given up is gone: the dispatcher would do with one less for ever.

    For some seconds that is no reason for a new process, which would lose what runs on the event loop.
    """

    def refuse(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        stuck.workers.watch(STUCK_S)
        assert stuck.delivery.is_abandoned
        stuck.workers.watch(STUCK_S + GONE_S - 1)
        assert not stuck.workers.are_gone
        stuck.workers.watch(STUCK_S + GONE_S)
        assert stuck.workers.are_gone
    stuck.workers.watch(STUCK_S + GONE_S)
    assert not stuck.workers.are_gone
    assert stuck.done.wait(SOON_S)
    stuck.go_on.set()


def test_a_decision_that_cannot_be_handed_on_still_frees_the_thread():
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    runner = Runner(Telemetry(), [], refuse)
    delivery = make_delivery()
    runner.begin(delivery)
    assert runner.give_up(delivery, LEFT, Event.STUCK)


# ── coroutines ──


class Gate:
    """Holds what is done for a firing on a thread, before its handler or after it."""

    def __init__(self, where):
        self.where = where
        self.reached, self.opened = threading.Event(), threading.Event()

    def hold(self):
        self.reached.set()
        assert self.opened.wait(SOON_S)

    def begin(self, _store, _message):
        if self.where == "before":
            self.hold()

    def finish(self, _store, _message, _firing, settlement):
        if self.where == "after":
            self.hold()
        return settlement


@pytest.fixture
def start_loop():
    """Start an event loop that runs `size` coroutines at a time; return it and its backlog."""
    loops = []

    def wake():
        loops[0].wake()

    def start(runner, size=1):
        backlog = Backlog(RunQueue(1, 10), RunQueue(size, 10), wake_loop=wake, room_freed=lambda: None)
        loops.append(EventLoop(backlog, runner))
        loops[0].start()
        return loops[0], backlog

    yield start
    for loop in loops:
        loop.close(SOON_S)


def make_coroutine(call, **options):
    delivery = make_delivery(call, **options)
    delivery.is_async = True
    return delivery


def stop(loop, backlog):
    """Cancel the handlers, and wait until the loop has done so, and what follows from it."""
    backlog.close()
    loop.interrupt_all()
    turn(loop, 5)


def turn(loop, times):
    """Let the loop do what waits for it. A task that is cancelled ends after some turns."""
    for _ in range(times):
        turned = threading.Event()
        loop._call_soon(turned.set)
        assert turned.wait(SOON_S)


def test_a_loop_that_is_closed_before_it_runs_ends_in_order(start_loop, runner, monkeypatch):
    """As when the system starts no further thread, and the start is undone."""
    closed, ends = threading.Event(), []

    def wait(_):
        ends.append(threading.current_thread())
        assert closed.wait(SOON_S)

    monkeypatch.setattr(asyncio, "set_event_loop", wait)
    loop, _ = start_loop(runner)
    loop.close(0)
    closed.set()
    until(lambda: ends)[0].join(SOON_S)
    assert loop._loop.is_closed()


@pytest.mark.parametrize(("where", "outcome"), [("after", "retried"), ("before", "interrupted")])
def test_a_stop_cancels_a_coroutine_while_its_handler_is_called_only(
    start_loop, settled, monkeypatch, where, outcome
):
    """What is done on a thread before and after the handler of a firing goes on, with all that it needs."""
    gate = Gate(where)
    monkeypatch.setattr(firing, "begin", gate.begin)
    monkeypatch.setattr(firing, "finish", gate.finish)
    loop, backlog = start_loop(Runner(Telemetry(), [], lambda _, one: settled.append(one)))

    async def fail(*_):
        assert where == "after", "the handler is called though the dispatcher stops"
        raise ValueError("not done")

    backlog.put([make_coroutine(fail, is_firing=True)])
    assert gate.reached.wait(SOON_S)
    stop(loop, backlog)
    assert backlog.running
    gate.opened.set()
    until(lambda: not backlog.running)
    assert [one.outcome for one in settled] == [outcome]


def test_a_firing_whose_handler_is_cancelled_once_it_has_ended_is_settled(
    start_loop, runner, settled, monkeypatch
):
    """As by a time limit of the handler's own that nobody takes back, while all threads are busy."""
    gate = Gate("nowhere")
    monkeypatch.setattr(firing, "begin", gate.begin)
    monkeypatch.setattr(firing, "finish", gate.finish)
    loop, backlog = start_loop(runner)
    loop._steps = calls("test", at_a_time=1)

    async def handle(*_):
        loop._steps.submit(gate.hold)
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)

    backlog.put([make_coroutine(handle, is_firing=True)])
    assert gate.reached.wait(SOON_S)
    backlog.close()
    turn(loop, 5)
    assert backlog.running  # its place is taken until it is settled
    gate.opened.set()
    until(lambda: not backlog.running)
    assert settled == [SUCCEEDED]


def test_a_coroutine_is_cancelled_as_its_time_is_over(start_loop, runner, settled):
    """Without a look at all that run, which comes ten times a second."""
    _, backlog = start_loop(runner)
    brief = make_coroutine(lambda *_: asyncio.Event().wait())
    brief.binding = replace(brief.binding, timeout=timedelta(milliseconds=1))
    backlog.put([brief])
    until(lambda: settled)
    assert [one.outcome for one in settled] == ["retried"]


@pytest.fixture
def look_at(monkeypatch):
    """Have a loop look at its time limits at a monotonic time."""

    def look(loop, at_s):
        monkeypatch.setattr(event_loop, "monotonic", lambda: at_s)
        loop.watch(at_s)
        turn(loop, 5)

    return look


def test_a_coroutine_is_cancelled_before_it_is_given_up(start_loop, runner, settled, look_at):
    """Though the process stood still when the time was over, and for long after that."""
    loop, backlog = start_loop(runner)
    begun = threading.Event()

    async def wait(*_):
        begun.set()
        await asyncio.Event().wait()

    late = make_coroutine(wait)
    late.binding = replace(late.binding, timeout=timedelta(hours=1))
    backlog.put([late])
    assert begun.wait(SOON_S)
    look_at(loop, late.begun_s + 2 * 3600)
    backlog.close()
    until(lambda: not backlog.running)
    assert [one.outcome for one in settled] == ["retried"]


def test_a_coroutine_that_does_not_end_at_its_time_limit_is_given_up(start_loop, runner, settled, look_at):
    """The next one takes its place, as with threads."""
    loop, backlog = start_loop(runner)
    begun, done = threading.Event(), threading.Event()
    ends = []

    async def go_on(*_):
        ended = asyncio.Event()
        ends.append((asyncio.get_running_loop(), ended))
        begun.set()
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue

    async def finish(*_):
        done.set()

    stuck = make_coroutine(go_on)
    stuck.binding = replace(stuck.binding, timeout=timedelta(hours=1))
    backlog.put([stuck, make_coroutine(finish)])
    assert begun.wait(SOON_S)
    over_s = stuck.begun_s + 3600.001  # such sums are rounded
    look_at(loop, over_s)
    look_at(loop, over_s + STUCK_S - 0.001)
    assert settled == []
    look_at(loop, over_s + STUCK_S + 0.001)
    assert settled[0] == LEFT
    assert done.wait(SOON_S)
    ((inside, ended),) = ends
    inside.call_soon_threadsafe(ended.set)


@pytest.mark.parametrize(
    ("who", "limits_s", "overdue"),
    [
        ("handler", (10, None), True),
        ("handler", (None, 10), False),
        ("handler", (3600, 10), False),
        ("task", (10, None), True),
        ("task", (None, None), False),
        ("callback", (10, 3600), True),
        ("callback", (3600, None), False),
    ],
)
def test_a_loop_is_overdue_that_is_blocked_past_a_time_limit(start_loop, runner, who, limits_s, overdue):
    """The limits are those of the handler that blocks it, itself or by another, and of one that waits.

    Nothing can end what blocks it: the messages of all coroutines here would be held for ever.

    A handler that may go on would be killed again and again, if it were for the limits of those beside it.
    """
    begun, go_on = threading.Semaphore(0), threading.Event()

    async def wait(*_):
        begun.release()
        await asyncio.Event().wait()

    def hold():
        begun.release()
        assert go_on.wait(SOON_S)

    async def hold_in_task():
        hold()

    async def block(*_):
        if who == "task":
            await asyncio.create_task(hold_in_task())
        elif who == "callback":
            asyncio.get_running_loop().call_soon(hold)
            await asyncio.Event().wait()
        else:
            hold()

    loop, backlog = start_loop(runner, size=2)
    for call, seconds in zip((wait, block), reversed(limits_s), strict=True):
        delivery = make_coroutine(call)
        delivery.binding = replace(delivery.binding, timeout=seconds and timedelta(seconds=seconds))
        backlog.put([delivery])
        assert begun.acquire(timeout=SOON_S)
    now_s = time.monotonic()
    loop.watch(now_s)
    assert loop.overdue_s(now_s + 5) == 0
    assert loop.overdue_s(now_s + 100) == (pytest.approx(100) if overdue else 0)
    go_on.set()
    until(lambda: loop.overdue_s(now_s + 100) == 0)
    stop(loop, backlog)


def test_a_loop_is_overdue_that_what_a_handler_left_behind_keeps_from_messages(start_loop, runner):
    begun, go_on = threading.Event(), threading.Event()

    def hold():
        begun.set()
        assert go_on.wait(SOON_S)

    async def leave(*_):
        soon = asyncio.get_running_loop().call_soon
        soon(soon, hold)  # once the handler has ended

    async def quick(*_):
        pass

    loop, backlog = start_loop(runner)
    backlog.put([make_coroutine(leave)])
    assert begun.wait(SOON_S)
    now_s = time.monotonic()
    loop.watch(now_s)
    assert loop.overdue_s(now_s + 100) == 0, "it keeps nobody waiting"
    backlog.put([make_coroutine(quick)])
    loop.watch(now_s)
    assert loop.overdue_s(now_s + 100) == pytest.approx(100)
    go_on.set()
    until(lambda: loop.overdue_s(now_s + 100) == 0)
    stop(loop, backlog)


def test_a_loop_is_overdue_that_is_blocked_by_a_handler_as_it_is_cancelled(start_loop, runner):
    """Its time limit had passed before, so that it is told no more."""
    begun, blocks, go_on = threading.Event(), threading.Event(), threading.Event()

    async def block(*_):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            blocks.set()
            assert go_on.wait(SOON_S)

    loop, backlog = start_loop(runner)
    delivery = make_coroutine(block)
    delivery.binding = replace(delivery.binding, timeout=timedelta(seconds=10))
    backlog.put([delivery])
    assert begun.wait(SOON_S)
    loop._call_soon(lambda: delivery.end(TIME_LIMIT, time.monotonic()))
    assert blocks.wait(SOON_S)
    now_s = time.monotonic()
    loop.watch(now_s)
    assert loop.overdue_s(now_s + 100) == pytest.approx(100)
    go_on.set()
    stop(loop, backlog)


def test_a_loop_is_not_overdue_just_after_a_handler_that_might_block_it(start_loop, settled):
    """What blocks it now has a minute of its own."""
    begun, in_hook, go_on, leave_hook = (threading.Event() for _ in range(4))

    class Slow(Middleware):
        def after_run(self, message, context, answer, error):
            in_hook.set()
            assert leave_hook.wait(SOON_S)

    async def block(*_):
        begun.set()
        assert go_on.wait(SOON_S)

    loop, backlog = start_loop(Runner(Telemetry(), [Slow()], lambda _, verdict: settled.append(verdict)))
    backlog.put([make_coroutine(block)])
    assert begun.wait(SOON_S)
    began_s = time.monotonic() - 100
    loop.watch(began_s)
    assert loop.overdue_s(began_s + 100) == 0
    go_on.set()
    assert in_hook.wait(SOON_S)
    assert loop.overdue_s(time.monotonic()) < 50
    leave_hook.set()
    stop(loop, backlog)
