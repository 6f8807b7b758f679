"""Messages run here and now, one after another: for tests, which want no threads and no waiting.

The dispatcher's own parts decide and settle, so that a test sees what will happen: `Runner` around the
handler, `Settler` behind it. Left out is what takes threads: timeouts of tasks are not watched, messages are
not extended, and acks are not collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.delivery import Settlement
from cqueue.dispatcher.feeder import delivery_of
from cqueue.dispatcher.firing import ScheduleStep
from cqueue.dispatcher.lanes import Lane, Roster
from cqueue.dispatcher.options import MS, Options
from cqueue.dispatcher.running import Runner
from cqueue.dispatcher.settler import Settler
from cqueue.dispatcher.tally import Account
from cqueue.message import MAX_RECEIVE, MessageId
from cqueue.queue import Queue
from cqueue.store.operations import WideRow

if TYPE_CHECKING:
    from cqueue.dispatcher.app import App


FAILURES: Final = (Exception, SystemExit, asyncio.CancelledError)
"""What a worker takes for a failure of the task. Anything else, such as KeyboardInterrupt, ends the test."""


class Place(NamedTuple):
    """A wide row with messages, and their priorities."""

    wide_row: WideRow
    priorities: frozenset[int]


class Ran(NamedTuple):
    """One message that was run, what became of it, and what its handler returned or raised."""

    queue: str
    message: ReceivedMessage
    settlement: Settlement
    result: Any
    error: BaseException | None


class Coroutines:
    """Runs coroutines one after another on one event loop, also for a caller that runs in another loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # not the thread's own loop

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run it to its end; its result."""
        return _outside(partial(self._runner.run, coroutine, context=copy_context()))

    def close(self) -> None:
        """End the loop, and what tasks have left running on it."""
        _outside(self._runner.close)


def _outside(call: Callable[[], Any]) -> Any:
    """Call it where no event loop runs: a loop cannot be run inside another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1) as other:
        return other.submit(call).result()


class Inline:
    """One dispatcher's work on an application's queues, done on the calling thread."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._coroutines = Coroutines()
        self._queues: dict[str, Queue] = {}
        self._roster = Roster(lambda _lane, _coming: 1, 0.0, 0.0)
        self._account = Account()
        self._options = Options(poll_interval=MS)
        # Delays count from the settlement, so its clock may stand still
        self._settler = Settler(self._options, app.middleware, self._account, clock=lambda: 0.0)
        self.set_up()

    def set_up(self) -> None:
        """Create queues and schedules that are missing, as a dispatcher does when it starts."""
        queues = {queue.name: queue for queue in self._app.setup()}
        if queues.keys() != self._queues.keys():
            schedules = ScheduleStep(queue.schedules.ledger for queue in queues.values())
            self._runner = Runner(
                self._account,
                self._app.middleware,
                schedules,
                self._settler.settle_now,
                unknown_task_wait=self._app.unknown_task_wait,
            )
        self._queues = queues

    def close(self) -> None:
        """End what was begun; the application is still the test's."""
        self._settler.flush(1.0)
        self._settler.close()
        self._coroutines.close()

    @property
    def queues(self) -> Mapping[str, Queue]:
        """Those that tasks have, also tasks that were defined while others ran, by name."""
        if any(task.queue not in self._queues for task in self._app.tasks.values()):
            self.set_up()
        return self._queues

    def runs(self, queue: str, place: Place) -> Iterator[Ran]:
        """Run what is due in one wide row, the most urgent first, until nothing is."""
        while (ran := self._next(queue, place)) is not None:
            yield ran

    def _next(self, queue: str, place: Place) -> Ran | None:
        """Run one message. Its consumer is a new one: what it remembers is never older than the message."""
        lane = self._lane(queue)
        try:
            messages = lane.consumer.receive_from(*place)
            return self._run(lane, messages[0]) if messages else None
        finally:
            lane.consumer.close()

    def run_only(self, queue: str, id_: MessageId) -> Ran | None:
        """Run this message, and none that is due beside it; None if it cannot be received."""
        wide_row, priority, _ = id_.locate()
        lane = self._lane(queue)
        others: list[ReceivedMessage] = []
        try:
            while messages := lane.consumer.receive_from(wide_row, frozenset({priority}), MAX_RECEIVE):
                mine = [message for message in messages if message.id == id_]
                others += [message for message in messages if message.id != id_]
                if mine:
                    return self._run(lane, mine[0])
            return None
        finally:
            lane.consumer.snooze(others, MS * 0)  # as if they had not been received
            lane.consumer.close()

    def _lane(self, queue: str) -> Lane:
        lane = Lane(self.queues[queue], self._roster, self._options)
        lane.learn()
        return lane

    def _run(self, lane: Lane, message: ReceivedMessage) -> Ran:
        """As a worker of the dispatcher does, but for its time limits."""
        delivery = delivery_of(self._app, lane, message)
        call = self._runner.begin(delivery)
        if call is not None:
            try:
                delivery.answer = self._coroutines.run(call()) if delivery.is_async else call()
            except FAILURES as exc:
                delivery.error = exc
        self._runner.end(delivery)
        return Ran(lane.name, message, delivery.settlement, delivery.answer, delivery.error)
