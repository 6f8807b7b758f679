"""Threads that run handlers: one message at a time each, whatever the handler does."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from cqueue.dispatcher.delivery import Delivery, Settlement, Stage, Verb
from cqueue.dispatcher.events import Event, Events
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.interrupt import Interrupted, Interruptible
from cqueue.dispatcher.pace import Pace
from cqueue.dispatcher.running import Runner
from cqueue.dispatcher.tally import Tallies

STUCK_S: Final = 3.0
"""A handler that goes on so long after it was interrupted cannot be: it is replaced."""

Settle = Callable[[Delivery, Settlement], None]
TIME_LIMIT: Final = "time limit"
STOP: Final = "stop"


class Job(Interruptible):
    """What a worker is doing: readable by other threads, and interruptible while the handler runs."""

    __slots__ = ("at_s", "delivery", "fired_s", "limit_s", "why")

    def __init__(self, delivery: Delivery, at_s: float, limit: timedelta | None) -> None:
        super().__init__()
        self.delivery = delivery
        self.at_s = at_s
        self.limit_s = None if limit is None else limit.total_seconds()
        self.fired_s: float | None = None
        self.why = ""

    def is_over(self, now_s: float) -> bool:
        """Whether the task's time limit has passed, and the handler was not told."""
        return self.limit_s is not None and now_s - self.at_s >= self.limit_s and self.fired_s is None

    def end(self, why: str, now_s: float) -> bool:
        """End the handler; False if it has ended, or was told before."""
        self.why = self.why or why  # before: the worker asks at once
        if not self.interrupt():
            return False
        self.fired_s = now_s
        return True


class Worker:
    """One thread, and what it is doing."""

    def __init__(self, crew: Crew, name: str) -> None:
        self._crew = crew
        self.tally = crew.tallies.new()
        self.job: Job | None = None
        self.abandoned = False
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)

    def _work(self) -> None:
        crew, done = self._crew, False
        while (delivery := crew.handover.take(done=done, quick=crew.pace.is_quick)) is not None:
            done = True
            try:
                self._handle(delivery)
            except BaseException as exc:  # noqa: BLE001 - a worker that ends would be missed by nobody
                crew.events.say(Event.BROKEN, error=exc, queue=delivery.lane.name)
                delivery.stage = Stage.LEFT
            if self.abandoned:
                return

    def _handle(self, delivery: Delivery) -> None:
        crew = self._crew
        settlement = self._run(delivery)
        delivery.context = None  # of many, not to be kept until their acks are stored
        if self.abandoned and settlement.verb is not Verb.ACK:
            return  # it was left to its timeout long ago
        crew.settle(delivery, settlement)

    def _run(self, delivery: Delivery) -> Settlement:
        crew, binding = self._crew, delivery.binding
        run = crew.runner.prepare(delivery)
        self.tally.add(delivery.lane.name, "started")
        crew.runner.enter(run)
        answer: Any = None
        error: BaseException | None = None
        self.job = job = Job(delivery, crew.clock(), binding.timeout if binding is not None else None)
        if run.is_to_be_called and binding is not None:
            try:
                answer = job.call(binding.call, delivery.message, run.context)
            except BaseException as exc:  # noqa: BLE001 - also SystemExit: a handler ends no worker
                error = exc
        crew.pace.observe(crew.clock() - job.at_s)
        self.job = None
        if isinstance(error, Interrupted):
            if job.why == STOP:
                return crew.runner.stop(run, error, self.tally)
            error = timed_out(delivery, error)
        return crew.runner.leave(run, answer, error, self.tally)


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

    def jobs(self) -> list[Job]:
        """What is being done now."""
        return [job for worker in self._workers if (job := worker.job) is not None]

    def _ages(self) -> list[float]:
        now_s = self.clock()
        return [now_s - job.at_s for job in self.jobs()]

    # ── handlers that take too long ──

    def watch(self, now_s: float) -> list[Delivery]:
        """Interrupt handlers whose time is up; the deliveries of those that cannot be interrupted."""
        stuck = []
        for worker in self._workers:
            job = worker.job
            if job is None:
                continue
            if job.fired_s is not None and now_s - job.fired_s >= STUCK_S:
                self._replace(worker)
                stuck.append(job.delivery)
            elif job.is_over(now_s) and job.end(TIME_LIMIT, now_s):
                self.events.of(Event.TIMED_OUT, job.delivery, limit_s=job.limit_s)
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
            job = worker.job
            if job is not None:
                worker.abandoned = True
                deliveries.append(job.delivery)
        return deliveries

    def interrupt_all(self, now_s: float) -> None:
        """End all handlers that run, as the dispatcher stops."""
        for job in self.jobs():
            job.end(STOP, now_s)
