"""The event loop that runs coroutine handlers: one thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from cqueue.dispatcher.execution.backlog import Backlog
from cqueue.dispatcher.execution.delivery import STOP, Delivery
from cqueue.dispatcher.execution.events import Event, Trouble
from cqueue.dispatcher.execution.interrupt import Interrupted
from cqueue.dispatcher.execution.runner import Runner
from cqueue.errors import NotDone
from cqueue.runtime.batcher import calls

T = TypeVar("T")

BLOCKED_S: Final = 5.0
"""Seconds without a turn of the loop after which it counts as blocked: no proper coroutine takes as long."""
STEPS: Final = 8
"""Steps of firings that are done side by side: each is a few requests to Cassandra."""
LOOK_S: Final = 0.02
"""Seconds between two looks, as the loop ends, at whether the last steps are done."""


class EventLoop:
    """Runs coroutine handlers, as many at the same time as their run queue allows."""

    def __init__(self, backlog: Backlog, runner: Runner) -> None:
        self._backlog = backlog
        self._runner = runner
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="cqueue-loop", daemon=True)
        self._tasks: dict[asyncio.Task[None], Delivery] = {}
        self._asked_s: float | None = None  # when the loop was asked to answer; None once it has
        self._steps = calls("cqueue-firing", at_a_time=STEPS)
        self._trouble = Trouble(runner.telemetry, Event.LOOP_BLOCKED, Event.LOOP_RESUMED)
        self._closed = False

    # ── called from other threads ──

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def _call_soon(self, call: Callable[[], object]) -> None:
        """Have `call` called on the loop's thread, unless the loop is closed."""
        with self._mutex:
            if not self._closed:
                self._loop.call_soon_threadsafe(call)

    def wake(self) -> None:
        """Start handlers that wait. Called from any thread."""
        self._call_soon(self._start_waiting)

    def watch(self, now_s: float) -> None:
        """Have the loop look at its time limits, or log that a coroutine blocks it.

        On a loop that is blocked no coroutine can be cancelled, and none could take the place of another.
        """
        if self._asked_s is None:
            if self._tasks or self._backlog.coroutines.waiting:
                self._asked_s = now_s
                self._call_soon(self._look)
        elif now_s - self._asked_s >= BLOCKED_S:
            error = RuntimeError(f"the event loop has not come round for {now_s - self._asked_s:.0f} s")
            self._trouble.failed("loop", error, running=len(self._tasks))

    def overdue_s(self, now_s: float) -> float:
        """Return for how many seconds the loop has been blocked; 0 if what blocks it may go on.

        A handler may until its own time limit has passed, whatever the limits of those that wait beside it.
        Whose a callback or another task is cannot be seen: it may go on for a handler that may, unless one is
        called whose limit has passed.
        """
        asked_s = self._asked_s
        if asked_s is None:
            return 0.0
        task = asyncio.current_task(self._loop)
        own = self._tasks.get(task) if task is not None else None
        called = [own] if own is not None and own.is_called else self._backlog.coroutines.called()
        may_go_on = called and not any(one.told_s is not None or one.is_over(now_s) for one in called)
        return 0.0 if may_go_on else now_s - asked_s

    def interrupt_all(self) -> None:
        """Cancel all coroutines, because the dispatcher stops."""
        self._call_soon(self._interrupt_all)

    def close(self, seconds: float) -> None:
        """End the thread. Coroutines that still run are not waited for."""
        with self._mutex:
            self._closed = True
            if not self._thread.is_alive():  # perhaps there is no loop either
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

    # ── on the loop's thread ──

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        while True:  # also if it was closed before it began: the stop that waits for it must be used up
            try:
                loop.run_forever()
            except BaseException as exc:  # noqa: BLE001 - SystemExit of a task that a handler started
                self._runner.telemetry.say(Event.BROKEN, error=exc)
            if self._closed:
                break
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        while self._steps.pending:
            loop.run_until_complete(asyncio.sleep(LOOK_S))
        loop.run_until_complete(loop.shutdown_default_executor())
        if not asyncio.all_tasks(loop):
            loop.close()

    def _start_waiting(self, done: int = 0) -> None:
        """Start waiting handlers, as many as may run. `done`: the `id` of a delivery that has ended."""
        while (delivery := self._backlog.take(self._backlog.coroutines, done)) is not None:
            done = 0
            task = self._loop.create_task(self._handle(delivery))
            self._tasks[task] = delivery
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._start_waiting(id(self._tasks.pop(task)))

    def _look(self) -> None:
        self._asked_s = None
        self._trouble.succeeded("loop")
        self._look_at(self._backlog.coroutines.called())

    def _look_at(self, called: Iterable[Delivery]) -> None:
        """Interrupt handlers whose time limit has passed, and start others for those that do not end."""
        for delivery in self._runner.watch(called, monotonic()):
            self._backlog.abandon(delivery)
            self._start_waiting()

    def _interrupt_all(self) -> None:
        """Cancel the handlers. What is done before and after them goes on, on a thread perhaps."""
        for delivery in self._tasks.values():
            delivery.end(STOP, monotonic())

    async def _handle(self, delivery: Delivery) -> None:
        """Run one delivery, as a worker thread does; what needs Cassandra is done off the loop."""
        runner = self._runner
        try:
            try:
                if delivery.is_firing:
                    await self._off_the_loop(partial(runner.ask_schedule, delivery))
                call = runner.begin(delivery)
                if delivery.is_abandoned:  # as in a worker
                    return
                if call is not None:
                    delivery.answer = await self._called(delivery, call)
            except BaseException as exc:  # noqa: BLE001 - as in a worker
                delivery.error = exc
            settlement = runner.decide(delivery)
            if delivery.is_firing:
                settlement = await self._off_the_loop(partial(runner.move_on, delivery, settlement))
            runner.settle(delivery, settlement)
            delivery.let_go()
        except BaseException as exc:  # noqa: BLE001 - as in a worker
            runner.broken(delivery, exc)

    async def _called(self, delivery: Delivery, call: Callable[[], Any]) -> Any:
        """Call the handler, which is cancelled when its time limit passes, or the dispatcher stops."""
        if delivery.told:  # before it was called
            raise Interrupted
        limit_s, delivery.task = delivery.limit_s, asyncio.current_task()
        timer = self._loop.call_later(limit_s, self._look_at, [delivery]) if limit_s is not None else None
        try:
            return await call()
        except asyncio.CancelledError as exc:
            if not delivery.told:
                raise
            raise Interrupted from exc
        finally:
            if self._asked_s is not None:  # what comes now has not blocked the loop so far
                self._asked_s = time.monotonic()
            delivery.task = None
            if timer is not None:
                timer.cancel()

    async def _off_the_loop(self, step: Callable[[], T]) -> T:
        """Do the step on a thread, or here if there are too many.

        A cancellation does not end the step: nobody would settle the message, whose lease is extended until
        then.
        """
        try:
            # Not by an executor: one that cannot start a thread keeps the step, and does it later as well.
            done = asyncio.wrap_future(self._steps.submit(partial(copy_context().run, step)))
        except NotDone:
            return step()
        while not done.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([done])
        result: T = done.result()
        return result
