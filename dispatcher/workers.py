"""Threads that run handlers: one message at a time each, whatever the handler does."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cqueue.dispatcher.delivery import Delivery, Settlement, Stage, Verb
from cqueue.dispatcher.events import Event, Events
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.interrupt import Interrupted
from cqueue.dispatcher.pace import Pace
from cqueue.dispatcher.running import Runner
from cqueue.dispatcher.tally import Tallies

STUCK_S: Final = 3.0
"""A handler that goes on so long after it was interrupted cannot be: it is replaced."""

Settle = Callable[[Delivery, Settlement], None]
TIME_LIMIT: Final = "time limit"
STOP: Final = "stop"


class Worker:
    """One thread, and what it is doing."""

    def __init__(self, crew: Crew, name: str) -> None:
        self._crew = crew
        self.tally = crew.tallies.new()
        self.running: Delivery | None = None  # readable by other threads
        self.abandoned = False
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)

    def _work(self) -> None:
        crew, done = self._crew, False
        while (delivery := crew.handover.take(done=done)) is not None:
            done = True
            try:
                self._handle(delivery)
            except BaseException as exc:  # noqa: BLE001 - a worker that ends would be missed by nobody
                crew.events.say(Event.BROKEN, error=exc, queue=delivery.lane.name)
                delivery.stage = Stage.LEFT
            del delivery  # with its body, which is not to be kept until the next one comes
            if self.abandoned:
                return

    def _handle(self, delivery: Delivery) -> None:
        crew = self._crew
        settlement = self._run(delivery)
        delivery.let_go()  # of many, not to be kept until their acks are stored
        if self.abandoned and settlement.verb is not Verb.ACK:
            return  # it was left to its timeout long ago
        crew.settle(delivery, settlement)

    def _run(self, delivery: Delivery) -> Settlement:
        crew, runner, binding = self._crew, self._crew.runner, delivery.binding
        context = runner.prepare(delivery)
        self.tally.add(delivery.lane.name, "started")
        is_to_be_called = runner.enter(delivery, context)
        answer: Any = None
        error: BaseException | None = None
        delivery.begun_s = begun_s = crew.clock()
        self.running = delivery
        if is_to_be_called and binding is not None:
            try:
                answer = delivery.call(binding.call, delivery.message, context)
            except BaseException as exc:  # noqa: BLE001 - also SystemExit: a handler ends no worker
                error = exc
        crew.pace.observe(crew.clock() - begun_s)
        self.running = None
        try:
            if isinstance(error, Interrupted):
                if delivery.told == STOP:
                    return runner.stop(delivery, context, error, self.tally)
                error = timed_out(delivery, error)
            return runner.leave(delivery, context, answer, error, self.tally)
        finally:
            error = None  # its traceback leads back here: it would keep itself, and the message


def timed_out(delivery: Delivery, cause: BaseException) -> TimeoutError:
    """The error of a handler that ran longer than its task may."""
    limit = delivery.binding.timeout if delivery.binding is not None else None
    error = TimeoutError(f"{delivery.name!r} ran longer than its timeout of {limit}")
    error.__cause__ = cause
    return error


class Crew:
    """All worker threads of a dispatcher."""

    def __init__(
        self,
        size: int,
        handover: Handover,
        runner: Runner,
        *,
        settle: Settle,
        events: Events,
        tallies: Tallies,
        backlog: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size = size
        self.handover = handover
        self.runner = runner
        self.settle = settle
        self.events = events
        self.tallies = tallies
        self.clock = clock
        self.pace = Pace(size, backlog, self._ages)
        self._numbers = itertools.count()
        self._workers: list[Worker] = []

    def start(self) -> None:
        """Start all threads."""
        for _ in range(self._size):
            self._hire()

    def _hire(self) -> None:
        worker = Worker(self, f"cqueue-worker-{next(self._numbers)}")
        self._workers = [*self._workers, worker]  # others may be looking through the old list
        worker.thread.start()

    def running(self) -> list[Delivery]:
        """What is being handled now."""
        return [one for worker in self._workers if (one := worker.running) is not None]

    def _ages(self) -> list[float]:
        now_s = self.clock()
        return [now_s - delivery.begun_s for delivery in self.running()]

    # ── handlers that take too long ──

    def watch(self, now_s: float) -> list[Delivery]:
        """Interrupt handlers whose time is up; the deliveries of those that cannot be interrupted."""
        stuck = []
        for worker in self._workers:
            delivery = worker.running
            if delivery is None:
                continue
            if delivery.told_s is not None and now_s - delivery.told_s >= STUCK_S:
                self._replace(worker)
                stuck.append(delivery)
            elif delivery.is_over(now_s) and delivery.end(TIME_LIMIT, now_s):
                self.events.of(Event.TIMED_OUT, delivery, limit_s=delivery.limit_s)
        return stuck

    def _replace(self, worker: Worker) -> None:
        """Count on a thread no more that cannot be ended, and start another one in its place."""
        worker.abandoned = True
        self._workers = [one for one in self._workers if one is not worker]
        self.handover.abandon()
        self._hire()

    def abandon_all(self) -> list[Delivery]:
        """Wait for none of those that still run; their deliveries."""
        deliveries = []
        for worker in self._workers:
            delivery = worker.running
            if delivery is not None:
                worker.abandoned = True
                deliveries.append(delivery)
        return deliveries

    def interrupt_all(self, now_s: float) -> None:
        """End all handlers that run, as the dispatcher stops."""
        for delivery in self.running():
            delivery.end(STOP, now_s)
