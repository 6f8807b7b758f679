"""`app.testing()`: an application in memory, with a clock that the test moves.

The application stands at module level, and every module that enqueues imports it, so a test cannot pass
another one. Instead the sandbox lends the application another client until the block ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from inspect import Parameter, signature
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Self

from cqueue import ids
from cqueue.dispatcher.application.payload import decode
from cqueue.dispatcher.application.tasks import Task
from cqueue.dispatcher.schedules.definition import FiringId
from cqueue.errors import BadArguments, BadInput, Closed, CqueueError, PayloadMismatch
from cqueue.message import MAX_DELAY, MessageId, check_duration, to_datetime
from cqueue.protocol.dead import HEADER_ATTEMPTS, HEADER_ID, HEADER_QUEUE, HEADER_REASON, HEADER_TRACEBACK
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.sending.redriving import DEAD_HEADERS
from cqueue.testing.inline import Inline, Ran
from cqueue.testing.jobs import DeadJob, Job, Run, Runs
from cqueue.testing.memory import MemoryClient
from cqueue.testing.store import QueuedMessage

if TYPE_CHECKING:
    from cqueue.dispatcher.application.app import App

MAX_RUNS: Final = 10_000
"""Runs of one call before `Endless`: far more than a test means to run, and done within seconds."""

AnyTask = Task[..., Any]


class Endless(CqueueError):
    """A call has run more messages than allowed: a task seems to enqueue itself, or to fail for ever."""


class Sandbox:
    """The application in a test; made by `App.testing`, and used in a `with` block.

    One thread at a time calls its methods; the program may enqueue on any thread. Messages run on the calling
    thread, one after another: queue by queue, the most urgent of a wide row first, then in the order of their
    due times. So messages that are due minutes apart may run in that order, whatever their priorities.

    The clock stands still until `advance` moves it. Handlers read its time from `current_context().now`;
    `datetime.now()` returns real time.
    """

    def __init__(self, app: App, *, now: datetime | None = None) -> None:
        self._app = app
        self._client = client = MemoryClient(now=now)
        self._clock, self._store, self._catalog = client.clock, client.store, client._catalog  # noqa: SLF001 - its own
        self._work: Inline
        self._open = ExitStack()
        self._turn = Lock()
        self._state = "new"

    def __enter__(self) -> Self:
        if self._state != "new":
            raise BadInput("this testing block was entered before; ask for another one: app.testing()")
        with ExitStack() as stack:
            stack.callback(self._client.close)
            stack.enter_context(self._app.using(self._client))
            self._work = Inline(self._app)
            stack.callback(self._work.close)
            self._open = stack.pop_all()
        self._state = "open"
        return self

    def __exit__(self, *_: object) -> None:
        self._state = "closed"
        self._open.close()

    # ── reading ──

    @property
    def now(self) -> datetime:
        """Time of the block's clock, in UTC."""
        return self._client.now

    def enqueued(self, task: AnyTask | None = None, /, **subset: Any) -> list[Job]:
        """Return messages that wait to be run, with delayed messages and retries, in the order of due times.

        The next firing of a schedule is left out until its first attempt.

        Args:
            task: only messages of this task; None for all.
            subset: only messages whose arguments have these values.

        Raises:
            BadArguments: the task has no such parameter.
        """
        _check_subset(task, subset)
        jobs = [self._job(queue, one) for queue in self._names() for one in self._waiting(queue)]
        found = [job for job in jobs if _fits(job, task, subset)]
        return sorted(found, key=lambda job: job.due)

    def dead(self, task: AnyTask | None = None, /, **subset: Any) -> list[DeadJob]:
        """Return the dead letters in the order of their due times; arguments as for `enqueued`."""
        _check_subset(task, subset)
        letters = [
            self._dead_job(queue, one) for queue in self._names() for one in self._queued(queue + DEAD_SUFFIX)
        ]
        found = [letter for letter in letters if _fits(letter, task, subset)]
        return sorted(found, key=lambda letter: letter.id.locate().id)

    def _names(self) -> list[str]:
        """Return the names of all queues without dead-letter queues."""
        self._check_open()
        return [entry.row.name for entry in self._catalog.all() if not entry.row.name.endswith(DEAD_SUFFIX)]

    def _queued(self, queue: str) -> list[QueuedMessage]:
        return self._store.queued(self._catalog.entry(queue).spec.partition)

    def _waiting(self, queue: str) -> Iterator[QueuedMessage]:
        now_us = self._clock.now_us()
        for one in self._queued(queue):
            is_held = one.held and one.next_us > now_us
            is_expired = one.row.expires is not None and one.row.expires * 1000 <= now_us
            firing_id = FiringId.parse(one.row.trigger)
            is_to_fire = firing_id is not None and not firing_id.is_manual and one.attempt == 1
            if not (is_held or is_expired or is_to_fire):
                yield one

    def _job(self, queue: str, one: QueuedMessage) -> Job:
        return Job(
            task=one.row.task,
            args=self._args(one.row.task, one.body, one.row.codec),
            queue=queue,
            due=to_datetime(one.next_us // 1000),
            attempt=one.attempt,
            priority=one.row.priority,
            headers=dict(one.row.headers or {}),
            key=one.row.key,
            id=one.id,
            body=one.body,
        )

    def _dead_job(self, queue: str, one: QueuedMessage) -> DeadJob:
        headers = dict(one.row.headers or {})
        return DeadJob(
            task=one.row.task,
            args=self._args(one.row.task, one.body, one.row.codec),
            queue=headers.get(HEADER_QUEUE, queue),
            attempts=int(headers.get(HEADER_ATTEMPTS, 0)),
            reason=headers.get(HEADER_REASON, ""),
            traceback=headers.get(HEADER_TRACEBACK, ""),
            died_at=to_datetime(ids.time_us(one.row.id) // 1000),
            headers={name: text for name, text in headers.items() if name not in DEAD_HEADERS},
            key=one.row.key,
            id=MessageId(headers.get(HEADER_ID, one.id)),
            body=one.body,
        )

    def _args(self, task: str | None, body: bytes, codec: str | None) -> Mapping[str, Any]:
        """Return the arguments by parameter; for other messages, as far as they can be decoded."""
        try:
            args, kwargs = decode(body, codec)
        except PayloadMismatch:
            return {}
        if task is None or task not in self._app.tasks:
            return kwargs
        called = signature(self._app.tasks[task].function)
        try:
            bound = called.bind_partial(*args, **kwargs)
        except TypeError:
            return kwargs
        bound.apply_defaults()
        named = dict(bound.arguments)
        for one in called.parameters.values():
            if one.kind is Parameter.VAR_KEYWORD:
                named |= named.pop(one.name)
        return named

    # ── running ──

    def drain(self, *, reraise: bool = False, max_runs: int = MAX_RUNS) -> Runs:
        """Run everything that is due, and what it enqueues, until nothing is due.

        Args:
            reraise: raise a task's error after its message has been settled; otherwise errors only stand in
                the result.
            max_runs: most runs.

        Returns:
            The runs, in order.

        Raises:
            Endless: more than `max_runs` messages were due.
        """
        return self._all(self._due(), reraise=reraise, max_runs=max_runs)

    def advance(self, duration: timedelta, *, reraise: bool = False, max_runs: int = MAX_RUNS) -> Runs:
        """Move the clock forward, and run what becomes due on the way, each message at its time.

        That includes messages due now, delayed messages, retries, firings of schedules, and messages whose
        visibility timeout passes. The clock ends at a whole tenth of a second, as due times of retries do.

        Args:
            duration: 0 to 10 years.
            reraise: as for `drain`.
            max_runs: most runs.

        Raises:
            BadInput: the duration is out of range.
            Endless: more than `max_runs` messages were due.
        """
        check_duration("duration", duration, timedelta(), MAX_DELAY)
        return self._all(self._until(self._clock.after(duration)), reraise=reraise, max_runs=max_runs)

    def fire(self, task: AnyTask, /, *, reraise: bool = False) -> Run:
        """Run a periodic task now, as its schedule would, with its firing in the context.

        Other due messages are not run. The schedule's own times stay, as with `Schedules.run_now`.

        Raises:
            BadInput: no schedule of this application calls the task, or its queue is paused.
        """
        key = self._app.schedule_of(task)
        self._check_open()
        if key is None:
            raise BadInput(f"{task!r} has no schedule in this application; define it with @app.periodic")
        with self._working():
            queue = self._work.queues[task.queue]
            if queue.paused:
                raise BadInput(f"queue {queue.name!r} is paused: its tasks do not run until it is resumed")
            ran = self._work.run_only(queue.name, queue.schedules.run_now(key))
        if ran is None:
            raise AssertionError("a firing that was sent just now can be received")
        return self._noted(ran, reraise=reraise)

    def _all(self, work: Iterable[Ran], *, reraise: bool, max_runs: int) -> Runs:
        runs: list[Run] = []
        with self._working():
            for ran in work:
                runs.append(self._noted(ran, reraise=reraise))
                if len(runs) > max_runs:
                    raise Endless(
                        f"more than {max_runs:,} messages came up, the last for task {ran.message.task!r}; "
                        "if no task enqueues itself, raise max_runs"
                    )
        return Runs(runs)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Let one call at a time run messages: a second one would find them held."""
        self._check_open()
        if not self._turn.acquire(blocking=False):
            raise BadInput("messages of this testing block are being run already, by a task or thread of it")
        try:
            self._work.set_up()
            yield
        finally:
            self._turn.release()

    def _due(self) -> Iterator[Ran]:
        """Run what is due now, and what it enqueues, until nothing is due or can be received."""
        self._work.restart_schedules()
        given = True
        before: list[int] = []
        while (due := self._due_now()) and (given or before != [one.row.id for _, one in due]):
            given, before = False, [one.row.id for _, one in due]
            for queue, place in dict.fromkeys((queue, one.place) for queue, one in due):
                for ran in self._work.runs(queue, place):
                    given = True
                    yield ran

    def _due_now(self) -> list[tuple[str, QueuedMessage]]:
        """Return due messages with their queues: queue by queue, in the order of due times."""
        now_us = self._clock.now_us()
        return [(queue, one) for queue, one in self._in_tasks() if one.next_us <= now_us]

    def _in_tasks(self) -> Iterator[tuple[str, QueuedMessage]]:
        """Yield all messages of the tasks' queues, each with its queue."""
        return ((queue, one) for queue in list(self._work.queues) for one in self._queued(queue))

    def _until(self, target_us: int) -> Iterator[Ran]:
        """Run what becomes due until that time, and move the clock there."""
        yield from self._due()
        while (next_us := self._next_us()) is not None and next_us <= target_us:
            self._clock.move_to(next_us)
            yield from self._due()
        self._clock.move_to(target_us)

    def _next_us(self) -> int | None:
        """Return when there is something to do after now, in µs since 1970; None if there is nothing.

        A message becomes due then, or a schedule counts as stopped if its firing is gone.
        """
        now_us = self._clock.now_us()
        coming = [one.next_us for _, one in self._in_tasks()] + self._work.checks_us()
        return min((us for us in coming if us > now_us), default=None)

    def _noted(self, ran: Ran, *, reraise: bool) -> Run:
        if reraise and ran.error is not None:
            raise ran.error
        message, settlement = ran.message, ran.settlement
        return Run(
            task=message.task,
            args=self._args(message.task, message.body, message.codec),
            queue=ran.queue,
            attempt=message.attempt,
            outcome=settlement.outcome,
            delay=settlement.delay,
            reason=settlement.reason,
            result=ran.result,
            error=ran.error,
            at=self.now,
            id=message.id,
        )

    def _check_open(self) -> None:
        if self._state != "open":
            raise Closed("this testing block is not open; use it inside `with app.testing() as t:`")


# ── arguments ──


def _check_subset(task: AnyTask | None, subset: Mapping[str, Any]) -> None:
    """Refuse an unknown parameter: it would match nothing, and a test that expects nothing would pass."""
    if task is not None and not isinstance(task, Task):
        raise BadInput(f"{task!r} is not a task; give a function with @app.task")
    if task is None:
        return
    parameters = signature(task.function).parameters
    if any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    if unknown := [name for name in subset if name not in parameters]:
        known = ", ".join(parameters) or "none"
        raise BadArguments(f"task {task.name!r} has no parameter {unknown[0]!r}; it has {known}")


def _fits(one: Job | DeadJob, task: AnyTask | None, subset: Mapping[str, Any]) -> bool:
    if task is not None and one.task != task.name:
        return False
    return all(name in one.args and one.args[name] == value for name, value in subset.items())
