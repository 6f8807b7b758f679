"""Runs messages on the calling thread, one after another: for tests, which want no threads and no waiting.

The dispatcher's own parts decide and settle, so that a test sees production behaviour: `Runner` around the
handler, `SettlementWriter` behind it. What needs threads is left out: task timeouts are not enforced, leases
are not extended, and acks are not batched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.delivery import TIME_LIMIT, Settlement
from cqueue.dispatcher.execution.fetchers import delivery_of
from cqueue.dispatcher.execution.history_writer import HistoryWriter
from cqueue.dispatcher.execution.interrupt import Interrupted
from cqueue.dispatcher.execution.options import MS, Options
from cqueue.dispatcher.execution.pollers import Poller, PollSchedule
from cqueue.dispatcher.execution.runner import Runner
from cqueue.dispatcher.execution.settlement_writer import SettlementWriter
from cqueue.dispatcher.execution.telemetry import Telemetry
from cqueue.dispatcher.schedules.monitor import overdue_ms, restart_stalled
from cqueue.message import MAX_RECEIVE, MessageId
from cqueue.queue import Queue
from cqueue.testing.store import Place

if TYPE_CHECKING:
    from cqueue.dispatcher.application.app import App


FAILURES: Final = (Exception, SystemExit, asyncio.CancelledError, Interrupted)
"""Exceptions that fail the task, as on a worker. Any other, such as KeyboardInterrupt, ends the test."""


class Ran(NamedTuple):
    """One message that was run, its settlement, and what its handler returned or raised."""

    queue: str
    message: ReceivedMessage
    settlement: Settlement
    result: Any
    error: BaseException | None


def _outside(call: Callable[[], Any]) -> Any:
    """Call on a thread without a running event loop: a loop cannot run inside another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1) as other:
        return other.submit(call).result()


class Inline:
    """Runs the messages of an application's queues on the calling thread."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._coroutines = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # not the thread's own loop
        self._queues: dict[str, Queue] = {}
        self._known = 0  # tasks that were set up
        self._poll_schedule = PollSchedule(lambda _poller, _coming: 1, 0.0, 0.0)
        self._telemetry = Telemetry()
        self._options = Options(poll_interval=MS)
        self._history = HistoryWriter(self._telemetry)
        self._history.put = lambda entry: self._history.append([entry])  # on this thread
        self._telemetry.on_lost = self._history.lost
        # Delays count from the settlement, so the writer's clock may stand still
        self._settlement_writer = SettlementWriter(
            self._options, app.middleware, self._telemetry, clock=lambda: 0.0, history=self._history
        )
        self._runner = Runner(
            self._telemetry,
            app.middleware,
            self._settlement_writer.settle_now,
            unknown_task_wait=app.unknown_task_wait,
        )
        self.set_up()

    def set_up(self) -> None:
        """Create queues and schedules of new tasks, as a dispatcher does when it starts, and missing queues.

        What the test has changed about the others stays.
        """
        stored = self._app.client.queues()
        if len(self._app.tasks) != self._known or any(name not in stored for name in self._queues):
            self._queues = {queue.name: queue for queue in self._app.setup()}
            self._known = len(self._app.tasks)

    def close(self) -> None:
        """Store what was decided, and end the event loop; the application stays open."""
        self._settlement_writer.flush(1.0)
        self._settlement_writer.close()
        _outside(self._coroutines.close)

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine to its end on the own event loop, also for a caller inside another loop."""
        return _outside(partial(self._coroutines.run, coroutine, context=copy_context()))

    @property
    def queues(self) -> Mapping[str, Queue]:
        """The queues of all tasks, also of tasks defined meanwhile, by name."""
        if any(task.queue not in self._queues for task in self._app.tasks.values()):
            self.set_up()
        return self._queues

    def restart_schedules(self) -> None:
        """Let schedules go on whose firings were purged or cancelled, as a dispatcher's monitor does."""
        for queue in self.queues.values():
            restart_stalled(queue.schedules.store)

    def checks_us(self) -> list[int]:
        """Return when `restart_schedules` would find schedules stopped, in µs since 1970."""
        rows = (row for queue in self.queues.values() for row in queue.schedules.store.rows())
        return [from_ms * 1000 for row in rows if (from_ms := overdue_ms(row)) is not None]

    def runs(self, queue: str, place: Place) -> Iterator[Ran]:
        """Run what is due in one wide row, the most urgent first, until nothing is due."""
        while (ran := self._next(queue, place)) is not None:
            yield ran

    def _next(self, queue: str, place: Place) -> Ran | None:
        """Run one message with a new consumer: a consumer never remembers a state older than the message."""
        poller = self._poller(queue)
        with closing(poller.consumer):
            messages = poller.consumer.receive_from(*place)
            return self._run(poller, messages[0]) if messages else None

    def run_only(self, queue: str, id_: MessageId) -> Ran | None:
        """Run this message, and no other that is due in its row; None if it cannot be received."""
        wide_row, priority, _ = id_.locate()
        poller = self._poller(queue)
        others: list[ReceivedMessage] = []
        mine: list[ReceivedMessage] = []
        with closing(poller.consumer):
            while not mine and (
                messages := poller.consumer.receive_from(wide_row, frozenset({priority}), MAX_RECEIVE)
            ):
                mine = [message for message in messages if message.id == id_]
                others += [message for message in messages if message.id != id_]
            # Given back before the run, whose task may look at them, replace or cancel them
            poller.consumer.snooze(others, MS * 0)
            return self._run(poller, mine[0]) if mine else None

    def _poller(self, queue: str) -> Poller:
        poller = Poller(self.queues[queue], self._poll_schedule, self._options)
        poller.learn()
        return poller

    def _run(self, poller: Poller, message: ReceivedMessage) -> Ran:
        """Run the message as a worker does, without time limits."""
        delivery = delivery_of(self._app, poller, message)
        runner = self._runner
        if delivery.is_firing:
            runner.ask_schedule(delivery)
        call = runner.begin(delivery)
        if call is not None:
            try:
                delivery.answer = self._await(call()) if delivery.is_async else call()
            except FAILURES as exc:
                delivery.error = exc
                if isinstance(exc, Interrupted):
                    delivery.told = TIME_LIMIT
        settlement = runner.decide(delivery)
        if delivery.is_firing:
            settlement = runner.move_on(delivery, settlement)
        runner.settle(delivery, settlement)
        return Ran(poller.name, message, delivery.settlement, delivery.answer, delivery.error)
