"""The parts of a dispatcher: put together, started, and ended in the right order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from cqueue.dispatcher.execution.backlog import Backlog, RunQueue
from cqueue.dispatcher.execution.delivery import INTERRUPTED
from cqueue.dispatcher.execution.event_loop import EventLoop
from cqueue.dispatcher.execution.events import Event
from cqueue.dispatcher.execution.fetchers import Fetchers
from cqueue.dispatcher.execution.handlers import ByTask, resolver_of
from cqueue.dispatcher.execution.history_writer import HistoryWriter
from cqueue.dispatcher.execution.lease_extender import LeaseExtender
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.dispatcher.execution.options import Options
from cqueue.dispatcher.execution.pollers import Poller, PollSchedule, Source, queue_of
from cqueue.dispatcher.execution.runner import Runner
from cqueue.dispatcher.execution.settlement_writer import SettlementWriter
from cqueue.dispatcher.execution.telemetry import Depths, Stats, Telemetry, total
from cqueue.dispatcher.execution.worker_threads import WorkerThreads
from cqueue.dispatcher.schedules.monitor import ScheduleMonitor
from cqueue.doorbell.datagram import added

INTERRUPT_S: Final = 1.0
"""Seconds to wait for interrupted handlers at the end of the grace: long enough for a `finally`."""
AFTERWARDS_S: Final = 2.0
"""Seconds for which a stop whose grace is over goes on storing settlements: several round trips to Cassandra.
"""
UNSETTLED: Final = 10_000
"""Settlements not yet stored (or four backlogs, if that is more) beyond which nothing more is received."""
LOOK_S: Final = 0.02
"""Seconds between two checks while a stop or a drain waits; a caller does not notice 20 ms."""


class Engine:
    """Receives, runs handlers, and settles, from `start` to `wind_down`.

    Args:
        sources: the queues, each once.
        handler, middleware, options: as `Dispatcher` takes them.
        telemetry: counters and log events.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        handler: Any,
        *,
        middleware: Sequence[Middleware],
        options: Options,
        telemetry: Telemetry,
    ) -> None:
        self.options = options
        self.resolver = resolver_of(handler)
        stores = [queue_of(source).schedules.store for source in sources]
        self.history = HistoryWriter(telemetry)
        telemetry.on_lost = self.history.lost
        self.settlement_writer = SettlementWriter(options, middleware, telemetry, self.history)
        self.runner = Runner(
            telemetry,
            middleware,
            self.settlement_writer.settle,
            unknown_task_wait=options.unknown_task_wait,
        )
        self.poll_schedule = PollSchedule(
            self._room,
            options.poll_interval.total_seconds(),
            options.longest_poll_s(len(sources), queue_of(sources[0]).default_max_poll),
        )
        self.backlog = Backlog(
            RunQueue(options.threads, options.backlog),
            RunQueue(options.coroutines, options.backlog),
            wake_loop=lambda: self.loop.wake(),  # noqa: PLW0108 - made below
            room_freed=self.poll_schedule.room_freed,
        )
        self.worker_threads = WorkerThreads(self.backlog, self.runner)
        self.loop = EventLoop(self.backlog, self.runner)
        self.lease_extender = LeaseExtender(self.backlog, self.runner, self._watch)
        self.fetchers = Fetchers(
            self.poll_schedule, self.backlog, self.runner, self.resolver, hold=self.lease_extender.keep
        )
        self.depths = Depths(map(queue_of, sources))
        self.schedule_monitor = ScheduleMonitor(stores)

    def start(self, pollers: Sequence[Poller]) -> None:
        """Start all threads, to receive with these pollers."""
        self.mark_busy()
        for poller in pollers:
            self.poll_schedule.add(poller)
        self.loop.start()
        self.worker_threads.start()
        self.lease_extender.start()  # it looks after the worker threads, also for missing ones
        self.schedule_monitor.start()
        self.depths.start()
        self.fetchers.start(self.options.consumers)
        self.runner.telemetry.say(
            Event.STARTED, queues=len({poller.name for poller in pollers}), threads=self.options.threads
        )

    def make_pollers(self, sources: Sequence[Source]) -> list[Poller]:
        """Return a poller for each queue, or several where there are fewer queues than consumers."""
        each = max(1, self.options.consumers // len(sources))
        rest = self.resolver.rest if isinstance(self.resolver, ByTask) else None
        kinds = {rest.is_async} if rest is not None else set()
        pollers: list[Poller] = []
        try:
            for source in sources:
                of = min(each, queue_of(source).config.shards)
                for number in range(of):
                    pollers.append(
                        poller := Poller(source, self.poll_schedule, self.options, number=number, of=of)
                    )
                    poller.kinds |= kinds
                    poller.learn()
        except BaseException:
            for poller in pollers:
                poller.consumer.close()
            raise
        return pollers

    # ── looking ──

    def mark_busy(self) -> None:
        """Make `is_drained` wait for polls that see everything sent before this call."""
        self.poll_schedule.busy_s = time.monotonic()

    def is_drained(self) -> bool:
        """Return whether nothing is due in any queue, and everything is settled.

        Pollers that can tell are polled at once.
        """
        pollers = self.poll_schedule.pollers
        if (
            self.backlog.waiting
            or self.backlog.running
            or self.settlement_writer.pending
            or any(poller.holds_undelivered for poller in pollers)
        ):
            self.mark_busy()
            return False
        # A message may have come and been retried since the last call: polls before that prove nothing.
        self.poll_schedule.busy_s = max(self.poll_schedule.busy_s, self.settlement_writer.stored_s)
        return self.poll_schedule.is_quiet()

    def stats(self, state: str) -> Stats:
        """Return counters since the start, and the current load."""
        backlog, trouble, pollers = self.backlog, self.fetchers.trouble, self.poll_schedule.pollers
        counts = self.runner.telemetry.by_queue([poller.name for poller in pollers])
        by_client = {id(poller.sender): poller.queue for poller in pollers}
        return Stats(
            total=total(counts),
            queues=counts,
            running=backlog.running,
            unstarted=backlog.waiting,
            unsettled=self.settlement_writer.pending,
            state=state,
            failing=trouble.subjects,
            stuck=trouble.stuck,
            hints=added(queue.hints for queue in by_client.values()),
        )

    @property
    def is_full(self) -> bool:
        """Whether nothing is received before settlements are stored: UNSETTLED of them wait."""
        return self.settlement_writer.pending > max(UNSETTLED, 4 * self.options.backlog)

    def quarantined(self) -> dict[str, int]:
        """Return how many damaged rows this process has met, by queue or log; "" for rows of neither."""
        stores = {poller.driver.store for poller in self.poll_schedule.pollers}
        found: Counter[str] = Counter()
        for store in stores:
            for owner, rows in store.quarantine.counts().items():
                found[owner.partition("@")[0]] += rows
        return dict(found)

    @property
    def threads(self) -> list[threading.Thread]:
        """Threads that live as long as the engine runs; worker threads may be replaced, and are left out."""
        depths = [self.depths.thread] if self.depths.wanted else []
        return [self.lease_extender.thread, self.schedule_monitor.thread, *depths, *self.fetchers.threads]

    # ── called by the parts ──

    def _room(self, poller: Poller, coming: int) -> int:
        """Return how many messages a poller may receive now."""
        return 0 if self.is_full else self.backlog.room(poller, self.options.batch_size, coming)

    def _watch(self) -> None:
        self.loop.watch(time.monotonic())
        self.worker_threads.watch(time.monotonic())
        self.settlement_writer.watch()
        self.history.watch(self.lease_extender.batches.copy())

    # ── the end ──

    def wind_down(self, left_s: Callable[[], float]) -> None:
        """Stop receiving, give back what was not started, wait for handlers, settle, and close.

        Args:
            left_s: return the seconds of grace that are left.
        """
        backlog, telemetry = self.backlog, self.runner.telemetry
        telemetry.say(Event.STOPPING, running=backlog.running, unstarted=backlog.waiting)
        self.runner.stopping.set()
        self.poll_schedule.close()
        self.schedule_monitor.close()
        self.depths.close()
        self.runner.give_back(backlog.close())
        while backlog.running and (seconds := left_s()) > 0:
            time.sleep(min(LOOK_S, seconds))
        if backlog.running:
            self._interrupt()
        self.fetchers.join(AFTERWARDS_S)
        settled_by_s = time.monotonic() + AFTERWARDS_S
        self.settlement_writer.flush(LOOK_S)
        while self.settlement_writer.pending and (left_s() > 0 or time.monotonic() < settled_by_s):
            time.sleep(LOOK_S)
        self.lease_extender.close()
        self.settlement_writer.close()
        self.history.close(AFTERWARDS_S)
        self.loop.close(INTERRUPT_S)
        closer = threading.Thread(target=self.fetchers.close_pollers, name="cqueue-closer", daemon=True)
        try:
            closer.start()
            closer.join(AFTERWARDS_S)
        except RuntimeError:  # no thread can be started
            self.fetchers.close_pollers()
        telemetry.say(Event.STOPPED, unsettled=self.settlement_writer.pending)

    def _interrupt(self) -> None:
        """Interrupt running handlers, and give back the messages of those that do not end in time."""
        self.loop.interrupt_all()
        until_s = time.monotonic() + INTERRUPT_S
        while self.backlog.running and time.monotonic() < until_s:
            self.worker_threads.interrupt_all(time.monotonic())  # repeated: a handler may just have started
            time.sleep(LOOK_S)
        for delivery in self.backlog.started():
            self.runner.give_up(delivery, INTERRUPTED, Event.ABANDONED)
