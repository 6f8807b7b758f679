"""The dispatcher as programs use it: checks its arguments, and starts and stops its engine.

A thread of its own does the stopping. So `stop` may be called from anywhere, also from a signal handler, and
more than once: a second call with less grace shortens the first one's.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Final, Self

from cqueue.dispatcher.execution import events
from cqueue.dispatcher.execution.engine import LOOK_S, Engine
from cqueue.dispatcher.execution.handlers import known_tasks
from cqueue.dispatcher.execution.middleware import Middleware, checked_middleware
from cqueue.dispatcher.execution.options import Options
from cqueue.dispatcher.execution.pollers import Source, queue_of
from cqueue.dispatcher.execution.telemetry import Stats, Telemetry
from cqueue.errors import Closed, ConfigError
from cqueue.message import check_duration
from cqueue.queue import Queue
from cqueue.runtime.suggestions import check_known
from cqueue.runtime.waiting import Condition, Event

LONGEST_WAIT: Final = timedelta(days=365)
"""Longest grace and timeout, 365 days: far beyond use, and well within what the platform's waits accept."""
DEFAULT_GRACE: Final = timedelta(seconds=30)
"""Time that running handlers get at a stop, 30 s: the default patience of Kubernetes before it kills."""
SIGNAL_S: Final = 1.0
"""Longest single wait of `join`, 1 s: Python handles a signal that comes just before a wait only after it."""


class Dispatcher:
    """Receives from queues, runs a handler for each message, and settles the message by the handler's answer.

    Args:
        queues: one queue or several, each once.
        handler: a function or coroutine function `(message, context)`; a class whose instances have `handle`
            or `__call__`, made anew for each message; a mapping of task names to these (None: for messages
            that name no task); or an object with `resolve(message) -> Binding`.
        middleware: hooks around running and acking.
        on_event: called with each log event's name and fields, on any thread; it must return at once.
        options: the fields of `Options`: batch_size, consumers, threads, coroutines, poll_interval,
            max_poll_interval, ack_interval, ack_batch, backlog, unknown_task_wait.

    Raises:
        ConfigError: an argument is out of range or of the wrong kind; nothing has been started.

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
        on_event: events.OnEvent | None = None,
        **options: Any,
    ) -> None:
        self._sources = _checked(queues)
        self.options = checked_options(on_event=on_event, **options)
        self.engine = Engine(
            self._sources,
            handler,
            middleware=checked_middleware(middleware),
            options=self.options,
            telemetry=Telemetry(on_event),
        )
        self.tasks = known_tasks(self.engine.resolver)
        self._state = "new"
        self._mutex = Condition()  # held during `start`
        self._stopped = Event()
        self._graces: SimpleQueue[float] = SimpleQueue()  # seconds of grace; `put` is safe in signal handlers
        self._deadline_s = 0.0  # the end of the grace
        self._stopper = threading.Thread(target=self._run_stop, name="cqueue-stopper", daemon=True)

    def __repr__(self) -> str:
        names = ", ".join(queue_of(source).name for source in self._sources)
        return f"<dispatcher of {names}: {self.state}>"

    # ── starting and stopping ──

    def look_up(self) -> None:
        """Used inside the library: read what the queues are, so that a `start` that follows need not wait.

        Raises:
            QueueNotFound, NotDone: as `start`.
        """
        for source in self._sources:
            _ = queue_of(source).config

    def start(self) -> None:
        """Start receiving.

        Raises:
            QueueNotFound: one of the queues does not exist (any more).
            NotDone: Cassandra did not answer.
            Closed: the dispatcher has been started before; make a new one.
        """
        with self._mutex:  # a `stop` meanwhile begins when this has come to its end
            if self._state != "new":
                raise Closed(f"the dispatcher is {self._state}; make a new one")
            self._state = "starting"
            if not self._graces.empty():  # a `stop` that has seen it new says that it has stopped
                self._end()
                raise Closed("the dispatcher is stopped; make a new one")
            try:
                pollers = self.engine.make_pollers(self._sources)
            except BaseException:
                self._state = "new"
                if not self._graces.empty():
                    self._end()
                raise
            try:
                self._stopper.start()
                self.engine.start(pollers)
            except BaseException:  # a Ctrl-C, or too many threads: those that run are to end
                self._graces.put(0.0)
                for poller in pollers:
                    poller.consumer.close(give_back=False)
                if not self._stopper.is_alive():  # after a Ctrl-C it may begin yet
                    self._end()
                raise
            self._state = "running"

    def stop(self, grace: timedelta = DEFAULT_GRACE, *, wait: bool = True) -> None:
        """Stop receiving, let running handlers finish for up to `grace` (0 to 365 days), settle, and release.

        Messages that were not started are given back, without using an attempt. Handlers that still run when
        the grace is over are interrupted, and their messages given back; that attempt counts. If `stop` is
        called again, the shorter grace counts.

        Args:
            grace: how long running handlers may go on.
            wait: return when the dispatcher has stopped; False returns at once, and is safe in signal
                handlers and handlers.

        Raises:
            BadInput: `grace` is out of range.
        """
        grace_s = check_duration("grace", grace, timedelta(), LONGEST_WAIT)
        self._graces.put(grace_s)
        if self._state == "new":
            self._end()
        if wait and not self._mutex.is_held():  # in a signal handler within `start`, which then could not end
            self.join()

    def join(self, timeout: timedelta | None = None) -> bool:
        """Wait until the dispatcher has stopped; return False if `timeout` (0 to 365 days) passes first."""
        deadline_s = _deadline_s(timeout)
        while not self._stopped.wait(min(SIGNAL_S, deadline_s - time.monotonic())):
            if time.monotonic() >= deadline_s:
                return False
        return True

    def drain(self, timeout: timedelta | None = None) -> bool:
        """Wait until no queue has anything due, and all is settled; return False if `timeout` passes first.

        The dispatcher goes on receiving; call `stop` afterwards. `drain` does not wait for messages that are
        due later, or that other processes hold. It waits for what a receive of its own may hold that had no
        answer, until the visibility timeout has passed. In a fleet it lasts 2 s longer, until this worker has
        looked where others look first. Before `start` it waits: nobody has looked yet.
        """
        deadline_s = _deadline_s(timeout)
        self.engine.mark_busy()  # what was sent before this call counts
        while not self.engine.is_drained():
            if time.monotonic() >= deadline_s:
                return False
            if self._stopped.wait(LOOK_S):
                return self.engine.is_drained()
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ── looking ──

    @property
    def state(self) -> str:
        """new, starting, running, stopping, or stopped."""
        return self._state

    def stats(self) -> Stats:
        """Return counters since the start, and the current load."""
        return self.engine.stats(self._state)

    def dead_threads(self) -> tuple[str, ...]:
        """Return the names of threads that have ended, though they live as long as the dispatcher runs.

        Worker threads may be replaced, and count once none is left.
        """
        vital = (self._stopper, *self.engine.threads)
        ended = tuple(thread.name for thread in vital if not thread.is_alive())
        return (*ended, "all worker threads") if self.engine.worker_threads.are_gone else ended

    # ── the stopping thread ──

    def _run_stop(self) -> None:
        grace_s = self._graces.get()  # blocks, so the clock is read afterwards
        self._deadline_s = time.monotonic() + grace_s
        with self._mutex:
            self._state = "stopping"
        try:
            self.engine.wind_down(self._left_s)
        except Exception as exc:  # noqa: BLE001 - callers of `stop` must not wait for ever
            self.engine.runner.telemetry.say(events.Event.BROKEN, error=exc)
        self._end()

    def _end(self) -> None:
        self._state = "stopped"
        self._stopped.set()

    def _left_s(self) -> float:
        """Return the seconds of grace that are left, by the shortest grace asked for."""
        with suppress(Empty):
            while True:
                deadline_s = time.monotonic() + self._graces.get_nowait()
                self._deadline_s = min(self._deadline_s, deadline_s)
        return self._deadline_s - time.monotonic()


def _deadline_s(timeout: timedelta | None) -> float:
    """Return the monotonic time at which a timeout (0 to 365 days) passes; infinite for None.

    Raises:
        BadInput: the timeout is out of range.
    """
    if timeout is None:
        return math.inf
    return time.monotonic() + check_duration("timeout", timeout, timedelta(), LONGEST_WAIT)


def _checked(queues: Source | Iterable[Source]) -> list[Source]:
    """Return the queues as a list.

    Raises:
        ConfigError: an entry is no queue, a queue is given twice, or there is none.
    """
    sources = [queues] if isinstance(queues, str) or not isinstance(queues, Iterable) else list(queues)
    for source in sources:
        if not isinstance(source, Source) or not isinstance(queue_of(source), Queue):
            raise ConfigError(
                f"{source!r} is not a queue; open it with client.queue(…) of a cqueue.connect(…)"
            )
    names = [queue_of(source).name for source in sources]
    if not names:
        raise ConfigError("a dispatcher needs at least one queue")
    check_once(names)
    return sources


def check_once(names: Sequence[str]) -> None:
    """Raise `ConfigError` if a queue is given twice."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"queues are given twice: {', '.join(sorted(twice))}")


def checked_options(*, on_event: events.OnEvent | None = None, **given: Any) -> Options:
    """Return the options, checked with `on_event`.

    Raises:
        ConfigError: there is no such option, or a value is out of range or of the wrong kind.
    """
    check_known("Dispatcher", given, [field.name for field in fields(Options)])
    if on_event is not None and not callable(on_event):
        raise ConfigError(f"on_event is {on_event!r}; it takes a function")
    return Options(**given)
