"""Threads that run handlers: one message at a time each, whatever the handler does."""

from __future__ import annotations

import itertools
import threading
from typing import Final

from cqueue.dispatcher.delivery import STOP, TIME_LIMIT, Delivery
from cqueue.dispatcher.events import Event
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.running import Runner, left_to_timeout

STUCK_S: Final = 3.0
"""A handler that goes on so long after it was interrupted cannot be: its thread is replaced."""


class Crew:
    """All worker threads of a dispatcher."""

    def __init__(self, handover: Handover, runner: Runner) -> None:
        self._handover = handover
        self._runner = runner
        self._numbers = itertools.count()

    def start(self) -> None:
        """Start all threads."""
        for _ in range(self._handover.threads.size):
            self._hire()

    def _hire(self) -> None:
        name = f"cqueue-worker-{next(self._numbers)}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        done = 0
        while (delivery := self._handover.take(done)) is not None:
            try:
                self._run(delivery)
            except BaseException as exc:  # noqa: BLE001 - a worker that ends would be missed by nobody
                self._runner.account.broken(delivery, exc)
            if delivery.is_abandoned:
                return
            delivery.let_go()
            done = id(delivery)
            del delivery  # with its body, which is not to be kept until the next one comes

    def _run(self, delivery: Delivery) -> None:
        call = self._runner.begin(delivery)
        if call is not None:
            try:
                delivery.answer = delivery.call(call)
            except BaseException as exc:  # noqa: BLE001 - also SystemExit: a handler ends no worker
                delivery.error = exc
        self._runner.end(delivery)

    # ── handlers that take too long ──

    def running(self) -> list[Delivery]:
        """Those whose handlers are being called now."""
        return [delivery for delivery in self._handover.threads.running.copy().values() if delivery.is_called]

    def watch(self, now_s: float) -> None:
        """Interrupt handlers whose time is up, and leave to their timeouts those that cannot be."""
        for delivery in self.running():
            if delivery.told_s is not None and now_s - delivery.told_s >= STUCK_S:
                self._runner.give_up(delivery, left_to_timeout(delivery), Event.STUCK)
                self._handover.abandon(delivery)
                self._hire()
            elif delivery.is_over(now_s) and delivery.end(TIME_LIMIT, now_s):
                self._runner.account.of(Event.TIMED_OUT, delivery, limit_s=delivery.limit_s)

    def interrupt_all(self, now_s: float) -> None:
        """End all handlers that run, as the dispatcher stops."""
        for delivery in self.running():
            delivery.end(STOP, now_s)
