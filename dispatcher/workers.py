"""Threads that run handlers: one message at a time each, whatever the handler does."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Final

from cqueue.dispatcher.delivery import Delivery, Settlement, Stage, Verb
from cqueue.dispatcher.events import Event
from cqueue.dispatcher.handover import Pace
from cqueue.dispatcher.interrupt import Interrupted
from cqueue.dispatcher.running import Plant

STUCK_S: Final = 3.0
"""A handler that goes on so long after it was interrupted cannot be: it is replaced."""

TIME_LIMIT: Final = "time limit"
STOP: Final = "stop"


class Worker:
    """One thread, and what it is doing."""

    def __init__(self, plant: Plant, pace: Pace, name: str) -> None:
        self._plant = plant
        self._pace = pace
        self.running: Delivery | None = None  # readable by other threads
        self.abandoned = False
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)

    def _work(self) -> None:
        plant, done = self._plant, False
        while (delivery := plant.handover.take(done=done)) is not None:
            done = True
            try:
                self._handle(delivery)
            except BaseException as exc:  # noqa: BLE001 - a worker that ends would be missed by nobody
                plant.events.say(Event.BROKEN, error=exc, queue=delivery.lane.name)
                delivery.stage = Stage.LEFT
            del delivery  # with its body, which is not to be kept until the next one comes
            if self.abandoned:
                return

    def _handle(self, delivery: Delivery) -> None:
        settlement = self._run(delivery)
        delivery.let_go()  # of many, not to be kept until their acks are stored
        if self.abandoned and settlement.verb is not Verb.ACK:
            return  # it was left to its timeout long ago
        self._plant.settle(delivery, settlement)

    def _run(self, delivery: Delivery) -> Settlement:
        plant, runner, binding = self._plant, self._plant.runner, delivery.binding
        context = runner.prepare(delivery)
        plant.tallies.add(delivery.lane.name, "started")
        is_to_be_called = runner.enter(delivery, context)
        answer: Any = None
        error: BaseException | None = None
        delivery.begun_s = begun_s = plant.clock()
        self.running = delivery
        if is_to_be_called and binding is not None:
            try:
                answer = delivery.call(binding.call, delivery.message, context)
            except BaseException as exc:  # noqa: BLE001 - also SystemExit: a handler ends no worker
                error = exc
        self._pace.observe(plant.clock() - begun_s)
        self.running = None
        try:
            if isinstance(error, Interrupted):
                if delivery.told == STOP:
                    return runner.stop(delivery, context, error)
                error = timed_out(delivery, error)
            return runner.leave(delivery, context, answer, error)
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

    def __init__(self, size: int, plant: Plant) -> None:
        self.size = size
        self._plant = plant
        self.pace = Pace(size, plant.backlog, self._ages)
        self._numbers = itertools.count()
        self._workers: list[Worker] = []

    def start(self) -> None:
        """Start all threads."""
        for _ in range(self.size):
            self._hire()

    def _hire(self) -> None:
        worker = Worker(self._plant, self.pace, f"cqueue-worker-{next(self._numbers)}")
        self._workers = [*self._workers, worker]  # others may be looking through the old list
        worker.thread.start()

    def running(self) -> list[Delivery]:
        """What is being handled now."""
        return [one for worker in self._workers if (one := worker.running) is not None]

    def _ages(self) -> list[float]:
        now_s = self._plant.clock()
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
                self._plant.events.of(Event.TIMED_OUT, delivery, limit_s=delivery.limit_s)
        return stuck

    def _replace(self, worker: Worker) -> None:
        """Count on a thread no more that cannot be ended, and start another one in its place."""
        worker.abandoned = True
        self._workers = [one for one in self._workers if one is not worker]
        self._plant.handover.abandon()
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
