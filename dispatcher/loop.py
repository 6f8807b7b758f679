"""The event loop that coroutine handlers run on: one thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

from cqueue.dispatcher.context import Context
from cqueue.dispatcher.delivery import Delivery, Settlement, Stage
from cqueue.dispatcher.events import Event, Trouble
from cqueue.dispatcher.handover import Pace
from cqueue.dispatcher.running import Plant
from cqueue.dispatcher.workers import timed_out

BLOCKED_S: Final = 5.0


class Loop:
    """Runs coroutine handlers, `size` at a time."""

    def __init__(self, size: int, plant: Plant) -> None:
        self.size = size
        self._plant = plant
        self._runner = plant.runner
        self._clock = plant.clock
        self.pace = Pace(size, plant.backlog, self._ages)
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="cqueue-loop", daemon=True)
        self._tasks: dict[asyncio.Task[None], tuple[Delivery, float]] = {}
        self._asked_s: float | None = None  # since when the loop has not answered
        self._trouble = Trouble(plant.events, Event.LOOP_BLOCKED, Event.LOOP_RESUMED, plant.clock)
        self._done = 0  # finished since the hand-over was asked last
        self._stopping = False
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

    def deliveries(self) -> list[Delivery]:
        """What runs now."""
        return [delivery for delivery, _ in self._tasks.copy().values()]

    def _ages(self) -> list[float]:
        now_s = self._clock()
        return [now_s - at_s for _, at_s in self._tasks.copy().values()]

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
                self._plant.events.say(Event.BROKEN, error=exc)
            if self._closed:
                break
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_default_executor())
        if not asyncio.all_tasks(loop):
            loop.close()

    def _pump(self) -> None:
        """Start as many as may run."""
        while True:
            done, self._done = self._done, 0
            delivery = self._plant.handover.take_now(done=done, idle=self.size - len(self._tasks))
            if delivery is None:
                return
            task = asyncio.get_running_loop().create_task(self._handle(delivery))
            self._tasks[task] = (delivery, self._clock())
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._done += 1
        self._pump()

    def _cancel_all(self) -> None:
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()

    async def _handle(self, delivery: Delivery) -> None:
        try:
            settlement = await self._run_one(delivery)
            delivery.let_go()
            self._plant.settle(delivery, settlement)
        except BaseException as exc:  # noqa: BLE001 - as in a worker
            self._plant.events.say(Event.BROKEN, error=exc, queue=delivery.lane.name)
            delivery.stage = Stage.LEFT

    async def _run_one(self, delivery: Delivery) -> Settlement:
        begun_s = self._clock()
        context = self._runner.prepare(delivery)
        self._plant.tallies.add(delivery.lane.name, "started")
        answer: Any = None
        error: BaseException | None = None
        try:
            if await self._enter(delivery, context):
                answer = await self._call(delivery, context)
        except BaseException as exc:  # noqa: BLE001 - as in a worker
            error = exc
        self.pace.observe(self._clock() - begun_s)
        try:
            if self._stopping and isinstance(error, asyncio.CancelledError):
                return self._runner.stop(delivery, context, error)
            if delivery.step is None:
                return self._runner.leave(delivery, context, answer, error)
            return await asyncio.to_thread(self._runner.leave, delivery, context, answer, error)
        finally:
            error = None  # as in a worker

    async def _enter(self, delivery: Delivery, context: Context) -> bool:
        """A schedule is asked of Cassandra, so that runs elsewhere, and with it the hooks."""
        if delivery.step is not None:
            return await asyncio.to_thread(self._runner.enter, delivery, context)
        return self._runner.enter(delivery, context)

    async def _call(self, delivery: Delivery, context: Context) -> Any:
        binding = delivery.binding
        if binding is None:
            return None
        limit_s = None if binding.timeout is None else binding.timeout.total_seconds()
        try:
            async with asyncio.timeout(limit_s) as scope:
                return await binding.call(delivery.message, context)
        except TimeoutError as exc:
            if not scope.expired():
                raise
            self._plant.events.of(Event.TIMED_OUT, delivery, limit_s=limit_s)
            raise timed_out(delivery, exc) from exc
