"""Threads that run handlers: each runs one message at a time, whatever the handler does."""

from __future__ import annotations

import itertools
import math
import threading
from contextlib import suppress
from typing import Final

from cqueue.dispatcher.execution.backlog import Backlog
from cqueue.dispatcher.execution.delivery import STOP, Delivery
from cqueue.dispatcher.execution.runner import Runner

GONE_S: Final = 10.0
"""Seconds without any thread after which none is expected any more: the system may have none just now."""


class WorkerThreads:
    """All worker threads of a dispatcher.

    Attributes:
        are_gone: all were given up, and for some seconds none could be started in their place.
    """

    def __init__(self, backlog: Backlog, runner: Runner) -> None:
        self._backlog = backlog
        self._runner = runner
        self._numbers = itertools.count()
        self.are_gone = False
        self._count = 0  # threads that were started, without those that were given up
        self._none_since_s = math.inf  # monotonic; since when there is none

    def start(self) -> None:
        """Start the threads that are missing: at first all, later those that were given up."""
        while self._count < self._backlog.threads.size:
            name = f"cqueue-worker-{next(self._numbers)}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
            self._count += 1

    def _work(self) -> None:
        backlog, done = self._backlog, 0
        while (delivery := backlog.take(backlog.threads, done) or backlog.wait()) is not None:
            try:
                self._run(delivery)
            except BaseException as exc:  # noqa: BLE001 - nobody would notice that the thread has ended
                self._runner.broken(delivery, exc)
            if delivery.is_abandoned:  # it was given up, and another thread is in this one's place
                return
            delivery.let_go()
            done = id(delivery)
            del delivery  # the body must not live on until the next message comes

    def _run(self, delivery: Delivery) -> None:
        runner = self._runner
        if delivery.is_firing:
            runner.ask_schedule(delivery)
        call = runner.begin(delivery)
        if delivery.is_abandoned:  # given up while its hooks ran: others may handle it by now
            return
        if call is not None:
            try:
                delivery.answer = delivery.call(call)
            except BaseException as exc:  # noqa: BLE001 - also SystemExit: a handler ends no worker
                delivery.error = exc
        settlement = runner.decide(delivery)
        if delivery.is_firing:
            settlement = runner.move_on(delivery, settlement)
        runner.settle(delivery, settlement)

    # ── handlers that take too long ──

    def watch(self, now_s: float) -> None:
        """Interrupt handlers whose time limit has passed, and replace threads whose handlers do not end."""
        for delivery in self._runner.watch(self._backlog.threads.called(), now_s):
            self._backlog.abandon(delivery)
            self._count -= 1
        with suppress(RuntimeError):  # the process has too many threads just now: at the next look, then
            self.start()
        self._none_since_s = math.inf if self._count else min(self._none_since_s, now_s)
        self.are_gone = now_s - self._none_since_s >= GONE_S

    def interrupt_all(self, now_s: float) -> None:
        """Interrupt all running handlers, because the dispatcher stops."""
        for delivery in self._backlog.threads.called():
            delivery.end(STOP, now_s)
