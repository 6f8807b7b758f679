"""The event loop that coroutine handlers run on: one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from cqueue.dispatcher.delivery import STOP, TIME_LIMIT, Delivery
from cqueue.dispatcher.events import Event, Trouble
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.interrupt import Interrupted
from cqueue.dispatcher.running import Runner

T = TypeVar("T")

BLOCKED_S: Final = 5.0


class Loop:
    """Runs coroutine handlers, as many at a time as their line allows."""

    def __init__(self, handover: Handover, runner: Runner) -> None:
        self._handover = handover
        self._runner = runner
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="cqueue-loop", daemon=True)
        self._tasks: dict[asyncio.Task[None], Delivery] = {}
        self._asked_s: float | None = None  # since when the loop has not answered
        self._trouble = Trouble(runner.account, Event.LOOP_BLOCKED, Event.LOOP_RESUMED)
        self._closed = False

    # ── called from other threads ──

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def _tell(self, call: Callable[[], object]) -> None:
        """Have it called on the loop's thread, unless that has ended."""
        with self._mutex:
            if not self._closed:
                self._loop.call_soon_threadsafe(call)

    def call(self) -> None:
        """Something waits."""
        self._tell(self._pump)

    def watch(self, now_s: float) -> None:
        """Tell if a coroutine keeps the loop from going round: none of the others gets on then."""
        if self._asked_s is None:
            if self._tasks:
                self._asked_s = now_s
                self._tell(self._answer)
        elif now_s - self._asked_s >= BLOCKED_S:
            error = RuntimeError(f"the event loop has not come round for {now_s - self._asked_s:.0f} s")
            self._trouble.failed("loop", error, running=len(self._tasks))

    def _answer(self) -> None:
        self._asked_s = None
        self._trouble.succeeded("loop")

    def interrupt_all(self) -> None:
        """Cancel all coroutines, as the dispatcher stops."""
        self._tell(self._cancel_all)

    def close(self, seconds: float) -> None:
        """End the thread. What still runs is not waited for."""
        with self._mutex:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

    # ── on the loop's thread ──

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except BaseException as exc:  # noqa: BLE001 - SystemExit of a task that a handler started
                self._runner.account.say(Event.BROKEN, error=exc)
            if self._closed:
                break
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_default_executor())
        if not asyncio.all_tasks(loop):
            loop.close()

    def _pump(self, done: int = 0) -> None:
        """Start as many as may run."""
        while (delivery := self._handover.take_now(self._handover.coroutines, done)) is not None:
            done = 0
            task = self._loop.create_task(self._handle(delivery))
            self._tasks[task] = delivery
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        delivery = self._tasks.pop(task)
        delivery.let_go()
        self._pump(id(delivery))

    def _cancel_all(self) -> None:
        for task, delivery in self._tasks.items():
            delivery.told = STOP
            task.cancel()

    async def _handle(self, delivery: Delivery) -> None:
        """As a worker does."""
        try:
            try:
                call = await _aside(self._runner.begin, delivery)
                if call is not None:
                    delivery.answer = await self._limited(delivery, call)
            except BaseException as exc:  # noqa: BLE001 - as in a worker
                delivery.error = exc
            await _aside(self._runner.end, delivery)
        except BaseException as exc:  # noqa: BLE001 - as in a worker
            self._runner.account.broken(delivery, exc)

    async def _limited(self, delivery: Delivery, call: Callable[[], Any]) -> Any:
        """Call the handler, and cancel it when its time is up."""
        try:
            async with asyncio.timeout(delivery.limit_s) as scope:
                return await call()
        except TimeoutError as exc:
            if not scope.expired():
                raise
            delivery.told = TIME_LIMIT
            self._runner.account.of(Event.TIMED_OUT, delivery, limit_s=delivery.limit_s)
            raise Interrupted from exc


async def _aside(step: Callable[[Delivery], T], delivery: Delivery) -> T:
    """Do it here; but where a schedule is asked of Cassandra, on a thread, and with it the hooks."""
    if delivery.message.trigger is None:
        return step(delivery)
    return await asyncio.to_thread(step, delivery)
