"""The dispatcher itself: puts the parts together, starts them, and stops them in the right order.

A thread of its own, the conductor, does the stopping, so that `stop` may be called from anywhere and more
than once: a second call with less grace shortens the first one's.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from cqueue.dispatcher.delivery import Delivery, Settlement, Verb
from cqueue.dispatcher.depths import Depths
from cqueue.dispatcher.events import Event, Events, OnEvent
from cqueue.dispatcher.feeder import Feeders
from cqueue.dispatcher.firing import ScheduleStep
from cqueue.dispatcher.handlers import One, known_tasks, resolver_of
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.keeper import Keeper
from cqueue.dispatcher.lanes import QUIET_S, Lane, Roster, Source, queue_of
from cqueue.dispatcher.loop import Loop
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.options import Options
from cqueue.dispatcher.running import INTERRUPTED, Runner, Step, released
from cqueue.dispatcher.settler import Settler
from cqueue.dispatcher.tally import Stats, Tallies, total
from cqueue.dispatcher.watcher import Watcher
from cqueue.dispatcher.workers import Crew
from cqueue.doorbell import HintCounts
from cqueue.doorbell.counts import added
from cqueue.errors import Closed, ConfigError
from cqueue.message import check_duration

LONGEST_WAIT: Final = timedelta(days=365)
DEFAULT_GRACE: Final = timedelta(seconds=30)
INTERRUPT_S: Final = 1.0
"""How long handlers that were interrupted at the end of the grace are waited for."""
AFTERWARDS_S: Final = 2.0
"""How long a stop whose grace is over goes on storing what was decided."""
EXTENDERS: Final = 4
UNSETTLED: Final = 10_000
"""Settlements not yet stored (or four backlogs of them, if that is more), before no more is received."""
LOOK_S: Final = 0.02


class Dispatcher:
    """Receives from queues, runs a handler for each message, and settles it by what the handler says.

    Args:
        queues: one or several, each once.
        handler: a function or coroutine function `(message, context)`; a class whose instances have
            `handle` or `__call__`, made anew for each message; a mapping of task names to these (None: for
            messages that name no task); or an object with `resolve(message) -> Binding`.
        middleware: hooks around running and acking.
        steps: see `Step`.
        on_event: called with each log event's name and fields, on whatever thread; to return at once.
        options: the fields of `Options`: batch_size, consumers, threads, coroutines, poll_interval,
            max_poll_interval, ack_interval, ack_batch, backlog, unknown_task_wait.

    Raises:
        ConfigError: something is out of its range or does not fit; nothing has been started.

    Example:
        with Dispatcher(queue, lambda message, context: print(message.body)) as dispatcher:
            dispatcher.drain()
    """

    def __init__(
        self,
        queues: Source | Iterable[Source],
        handler: Any,
        *,
        middleware: Sequence[Middleware] = (),
        steps: Sequence[Step] = (),
        on_event: OnEvent | None = None,
        **options: Any,
    ) -> None:
        self._sources = _checked(queues)
        self.options = _options(options)
        resolver = resolver_of(handler)
        self.tasks = known_tasks(resolver)
        self._kinds = {resolver.binding.is_async} if isinstance(resolver, One) else set()
        self._state = "new"
        self._mutex = threading.Lock()
        self._stopping, self._stopped = threading.Event(), threading.Event()
        self._wishes: SimpleQueue[float] = SimpleQueue()  # seconds of grace; its `put` suits signal handlers
        self._busy_s = time.monotonic()
        self._events = events = Events(on_event)
        self._tallies = tallies = Tallies()
        self._tally = tallies.new()
        self._executor = ThreadPoolExecutor(EXTENDERS, thread_name_prefix="cqueue-extend")
        self._settler = Settler(self.options, middleware, events=events, tallies=tallies)
        self._handover = Handover(self._call_loop, self._feed)
        self.depths = Depths(map(queue_of, self._sources))
        ledgers = [queue_of(source).schedules.ledger for source in self._sources]
        # Last: a step that keeps a handler from being called keeps its schedule from moving on as well.
        runner = Runner(
            events,
            middleware,
            (*steps, ScheduleStep(ledgers)),
            self._stopping,
            unknown_task_wait=self.options.unknown_task_wait,
        )
        self._watcher = Watcher(ledgers, beside=self.depths.look)
        shared: dict[str, Any] = {
            "settle": self._settler.settle,
            "events": events,
            "tallies": tallies,
            "backlog": self.options.backlog,
        }
        self._crew = Crew(self.options.threads, self._handover, runner, **shared)
        self._loop = Loop(self.options.coroutines, self._handover, runner, **shared)
        self._roster = Roster(
            self._room,
            self.options.poll_interval.total_seconds(),
            self.options.longest_poll_s(len(self._sources), queue_of(self._sources[0]).default_max_poll),
        )
        self._keeper = Keeper(
            withdraw=self._handover.withdraw,
            release=self._give_back,
            watch=self._watch,
            executor=self._executor,
            events=events,
            tally=tallies.new(),
        )
        self._feeders = Feeders(
            self._roster,
            self._handover,
            resolver,
            tallies=tallies,
            events=events,
            hold=self._keeper.keep,
            give_back=self._give_back,
        )
        self._conductor = threading.Thread(target=self._conduct, name="cqueue-conductor", daemon=True)

    def __repr__(self) -> str:
        return f"<dispatcher of {', '.join(queue_of(source).name for source in self._sources)}: {self.state}>"

    # ── starting and stopping ──

    def start(self) -> None:
        """Start receiving.

        Raises:
            QueueNotFound: one of the queues does not exist (any more).
            NotDone: Cassandra did not answer.
            Closed: it has been stopped; make a new one.
        """
        with self._mutex:
            if self._state != "new":
                raise Closed(f"the dispatcher is {self._state}; make a new one")
            lanes = self._lanes()
            self._state = "running"
        self._busy_s = time.monotonic()
        self._conductor.start()
        self._crew.start()
        self._keeper.start()
        self._watcher.start()
        for lane in lanes:
            self._roster.enter(lane)
        self._feeders.start(self.options.consumers)
        self._events.say(Event.STARTED, queues=len(self._sources), threads=self.options.threads)

    def _lanes(self) -> list[Lane]:
        """A lane for each queue; where there are fewer queues than consumers, more of them."""
        each = max(1, self.options.consumers // len(self._sources))
        lanes: list[Lane] = []
        try:
            for source in self._sources:
                own = [Lane(source, self._roster, self.options, helper=number > 0) for number in range(each)]
                lanes += own
                for lane in own:
                    lane.kinds |= self._kinds
                    lane.learn()
                    lane.main = own[0]
                own[0].helpers = own[1 : own[0].shards]
        except BaseException:
            for lane in lanes:
                lane.consumer.close()
            raise
        return lanes

    def stop(self, grace: timedelta = DEFAULT_GRACE, *, wait: bool = True) -> None:
        """Stop receiving, let running handlers end for up to `grace` (0 to 365 days), settle, and let go.

        What was not started is given back, without using an attempt. Handlers that run when the grace is over
        are interrupted, and their messages given back; that attempt counts. Called again, the shorter
        grace counts. Without `wait` it returns at once, and may be called by a signal or a handler.
        """
        grace_s = check_duration("grace", grace, timedelta(), LONGEST_WAIT)
        if self._state == "new":
            self._state = "stopped"
            self._stopped.set()
        self._wishes.put(grace_s)
        if wait:
            self._stopped.wait()

    def join(self, timeout: timedelta | None = None) -> bool:
        """Wait until it has stopped; False if it has not within `timeout`."""
        seconds = None if timeout is None else check_duration("timeout", timeout, timedelta(), LONGEST_WAIT)
        return self._stopped.wait(seconds)

    def drain(self, timeout: timedelta | None = None) -> bool:
        """Wait until no queue has anything due, and everything is settled; False if not within `timeout`.

        It goes on receiving; `stop` it then. What is due later, or held by others, is not waited for.
        """
        seconds = None if timeout is None else check_duration("timeout", timeout, timedelta(), LONGEST_WAIT)
        deadline_s = None if seconds is None else time.monotonic() + seconds
        self._busy_s = time.monotonic()  # what was sent before this call counts
        while not self._is_drained():
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False
            if self._stopped.wait(LOOK_S):
                return self._is_drained()
        return True

    def _is_drained(self) -> bool:
        if self._handover.waiting or self._handover.running or self._settler.pending:
            self._busy_s = time.monotonic()
            return False
        loud = [lane for lane in self._roster.lanes if not lane.helper and not lane.is_quiet(self._busy_s)]
        if loud and time.monotonic() - self._busy_s >= QUIET_S:
            self._roster.hurry(loud)
        return not loud

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ── looking ──

    @property
    def state(self) -> str:
        """new, running, stopping, or stopped."""
        return self._state

    def stats(self) -> Stats:
        """What it has done, and what it is doing."""
        counts = self._tallies.by_queue([lane.name for lane in self._roster.lanes])
        return Stats(
            total=total(counts),
            queues=counts,
            running=self._handover.running,
            unstarted=self._handover.waiting,
            unsettled=self._settler.pending,
            state=self._state,
            unstarted_by_queue=self._handover.waiting_by_queue(),
            failing=self._feeders.trouble.subjects,
            stuck=self._feeders.trouble.stuck,
            hints=self._hints(),
        )

    def _hints(self) -> HintCounts:
        """Of all clients that its queues belong to."""
        return added({id(lane.sender): lane.queue.hints for lane in self.lanes}.values())

    def quarantined(self) -> dict[str, int]:
        """How many damaged rows this process has met, by queue or log; "" for rows that are of neither."""
        stores = {id(store): store for lane in self.lanes if (store := getattr(lane.sender, "store", None))}
        found: Counter[str] = Counter()
        for store in stores.values():
            for owner, rows in store.quarantine.counts().items():
                found[owner.partition("@")[0]] += rows
        return dict(found)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Used inside: its consumers, for those who tell them which wide rows to look at."""
        return tuple(self._roster.lanes)

    # ── what the parts ask ──

    def _call_loop(self) -> None:
        self._loop.call()

    def _feed(self) -> None:
        self._roster.feed()

    def _room(self, lane: Lane, coming: int) -> int:
        """How many messages a lane may receive now."""
        if self._settler.pending > max(UNSETTLED, 4 * self.options.backlog):
            return 0
        return min(self._room_of(lane, coming, is_async=kind) for kind in lane.kinds or {False})

    def _room_of(self, lane: Lane, coming: int, *, is_async: bool) -> int:
        line = self._handover.coroutines if is_async else self._handover.threads
        pace = self._loop.pace if is_async else self._crew.pace
        slots = self.options.coroutines if is_async else self.options.threads
        capacity = pace.capacity(lane.visibility_s, slots - line.running)
        most = 2 * capacity if capacity > slots else capacity
        return self._handover.room(
            line,
            lane.name,
            self.options.batch_size,
            capacity=capacity,
            most=most,
            coming=coming,
        )

    def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        """They were not started."""
        with self._mutex:
            settlement = released(self._tally, deliveries)
        for delivery in deliveries:
            self._settler.settle(delivery, settlement)
        if deliveries:
            self._events.say(Event.RELEASED, messages=len(deliveries))

    def _watch(self) -> None:
        """Interrupt handlers whose time is up, and leave to their timeouts those that cannot be."""
        self._loop.watch(time.monotonic())
        for delivery in self._crew.watch(time.monotonic()):
            delivery.lose()
            left_ms = max(0, delivery.message.lease.due_ms - delivery.lane.now_ms())
            with self._mutex:
                self._tally.add(delivery.lane.name, "interrupted")
            self._settler.settle(delivery, Settlement(Verb.NACK, "left", timedelta(milliseconds=left_ms)))
            self._events.of(Event.STUCK, delivery)

    # ── the conductor ──

    def _conduct(self) -> None:
        grace_s = self._wishes.get()  # waits; so before the clock is read
        deadline_s = time.monotonic() + grace_s
        # A wish may have come while `start` was still at it; the parts can be closed at any time.
        try:
            self._wind_down(deadline_s)
        except Exception as exc:  # noqa: BLE001 - whoever waits for the stop must not wait for ever
            self._events.say(Event.BROKEN, error=exc)
        self._state = "stopped"
        self._stopped.set()

    def _wind_down(self, deadline_s: float) -> None:
        self._state = "stopping"
        running, waiting = self._handover.running, self._handover.waiting
        self._events.say(Event.STOPPING, running=running, unstarted=waiting)
        self._stopping.set()
        self._roster.close()
        self._watcher.close()
        self._give_back(self._handover.close())
        deadline_s = self._wait_calm(deadline_s)
        if self._handover.running:
            self._interrupt()
        left_s = max(AFTERWARDS_S, deadline_s - time.monotonic())
        self._feeders.join(min(left_s, AFTERWARDS_S))
        settled = self._settler.flush(left_s)
        self._let_go()
        self._events.say(Event.STOPPED, unsettled=0 if settled else self._settler.pending)

    def _wait_calm(self, deadline_s: float) -> float:
        """Wait until nothing runs, or the grace is over; when it ends by the latest wish."""
        while not self._handover.wait_calm(min(LOOK_S, max(0.0, deadline_s - time.monotonic()))):
            with suppress(Empty):
                while True:
                    deadline_s = min(deadline_s, time.monotonic() + self._wishes.get_nowait())
            if time.monotonic() >= deadline_s:
                break
        return deadline_s

    def _interrupt(self) -> None:
        """End what runs; give back what cannot be ended, as the process is about to end it."""
        self._loop.interrupt_all()
        until_s = time.monotonic() + INTERRUPT_S
        while time.monotonic() < until_s:
            self._crew.interrupt_all(time.monotonic())  # again: one may just have been about to begin
            if self._handover.wait_calm(LOOK_S):
                return
        for delivery in [*self._crew.abandon_all(), *self._loop.deliveries()]:
            delivery.lose()
            with self._mutex:
                self._tally.add(delivery.lane.name, "interrupted")
            self._settler.settle(delivery, INTERRUPTED)
            self._events.of(Event.ABANDONED, delivery)

    def _let_go(self) -> None:
        self._keeper.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._settler.close()
        self._loop.close(INTERRUPT_S)
        closer = threading.Thread(target=self._feeders.close_lanes, name="cqueue-closer", daemon=True)
        closer.start()
        closer.join(AFTERWARDS_S)


def _checked(queues: Source | Iterable[Source]) -> list[Source]:
    """The queues, if they are some, each once.

    Raises:
        ConfigError: they are not.
    """
    sources = list(queues) if isinstance(queues, Iterable) else [queues]
    for source in sources:
        if not isinstance(source, Source):
            raise ConfigError(f"{source!r} is not a queue; open it with client.queue(…)")
    names = [queue_of(source).name for source in sources]
    if not names:
        raise ConfigError("a dispatcher needs at least one queue")
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"queues are given twice: {', '.join(sorted(twice))}")
    return sources


def _options(given: dict[str, Any]) -> Options:
    known = {field.name for field in fields(Options)}
    if unknown := given.keys() - known:
        raise ConfigError(
            f"unknown options: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}"
        )
    return Options(**given)
