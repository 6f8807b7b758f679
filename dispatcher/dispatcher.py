"""The dispatcher as programs use it: checks what it is given, and starts and stops its engine.

A thread of its own, the conductor, does the stopping, so that `stop` may be called from anywhere and more
than once: a second call with less grace shortens the first one's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self

from cqueue.dispatcher.engine import LOOK_S, Engine
from cqueue.dispatcher.events import Event, OnEvent
from cqueue.dispatcher.handlers import known_tasks
from cqueue.dispatcher.lanes import Lane, Source, queue_of
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.options import Options
from cqueue.dispatcher.tally import Account, Stats
from cqueue.errors import Closed, ConfigError
from cqueue.message import check_duration

LONGEST_WAIT: Final = timedelta(days=365)
DEFAULT_GRACE: Final = timedelta(seconds=30)


class Dispatcher:
    """Receives from queues, runs a handler for each message, and settles it by what the handler says.

    Args:
        queues: one or several, each once.
        handler: a function or coroutine function `(message, context)`; a class whose instances have
            `handle` or `__call__`, made anew for each message; a mapping of task names to these (None: for
            messages that name no task); or an object with `resolve(message) -> Binding`.
        middleware: hooks around running and acking.
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
        on_event: OnEvent | None = None,
        **options: Any,
    ) -> None:
        self._sources = _checked(queues)
        self.options = _options(options)
        account = Account(on_event)
        self.engine = Engine(
            self._sources, handler, middleware=middleware, options=self.options, account=account
        )
        self.tasks = known_tasks(self.engine.resolver)
        self._state = "new"
        self._mutex = threading.Lock()
        self._stopped = threading.Event()
        self._wishes: SimpleQueue[float] = SimpleQueue()  # seconds of grace; its `put` suits signal handlers
        self._deadline_s = 0.0  # the end of the grace
        self._conductor = threading.Thread(target=self._conduct, name="cqueue-conductor", daemon=True)

    def __repr__(self) -> str:
        names = ", ".join(queue_of(source).name for source in self._sources)
        return f"<dispatcher of {names}: {self.state}>"

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
            lanes = self.engine.make_lanes(self._sources)
            self._state = "running"
        self.engine.start(lanes)
        self._conductor.start()

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
        self.engine.mark_busy()  # what was sent before this call counts
        while not self.engine.is_drained():
            if deadline_s is not None and time.monotonic() >= deadline_s:
                return False
            if self._stopped.wait(LOOK_S):
                return self.engine.is_drained()
        return True

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
        return self.engine.stats(self._state)

    def dead_threads(self) -> tuple[str, ...]:
        """Names of threads that have ended though they live as long as it runs."""
        vital = (self._conductor, *self.engine.threads)
        return tuple(thread.name for thread in vital if not thread.is_alive())

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Used inside: its consumers, for those who tell them which wide rows to look at."""
        return self.engine.roster.lanes

    # ── the conductor ──

    def _conduct(self) -> None:
        grace_s = self._wishes.get()  # waits; so before the clock is read
        self._deadline_s = time.monotonic() + grace_s
        self._state = "stopping"
        try:
            self.engine.wind_down(self._left_s)
        except Exception as exc:  # noqa: BLE001 - whoever waits for the stop must not wait for ever
            self.engine.runner.account.say(Event.BROKEN, error=exc)
        self._state = "stopped"
        self._stopped.set()

    def _left_s(self) -> float:
        """Seconds of the grace that are left, by the latest wish."""
        with suppress(Empty):
            while True:
                wish_s = time.monotonic() + self._wishes.get_nowait()
                self._deadline_s = min(self._deadline_s, wish_s)
        return self._deadline_s - time.monotonic()


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
