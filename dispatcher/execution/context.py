"""What a handler is told beside its message, and how a task asks for it.

A task finds its context in a context variable, not in a parameter. Type checkers would have to remove such a
parameter from the signature that callers of `enqueue` see, and they cannot do that reliably.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.actions import LONGEST_DELAY, Retry
from cqueue.errors import BadInput
from cqueue.message import check_duration

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.results import Keeping

SHORTEST_TIMEOUT = timedelta(milliseconds=1)
"""Shortest timeout of a handler: one that takes less needs none."""


@dataclass(frozen=True, slots=True)
class Firing:
    """The firing of a schedule that a message stands for.

    Attributes:
        key: key of the schedule.
        fired_at: the time that is fired, in UTC; the delivery may come later.
        execution_count: number of the firing, from 1.
        previous: time of the firing before, in UTC, or None.
        next_trigger: time of the firing after, in UTC, or None if this firing is the last.
        manual: `run_now` asked for the firing; its time is none of the schedule's own.
    """

    key: str
    fired_at: datetime
    execution_count: int
    previous: datetime | None
    next_trigger: datetime | None
    manual: bool = False


@dataclass(eq=False, repr=False)
class Context:
    """One run of a handler.

    Attributes:
        queue: name of the queue.
        task: name of the task, or of the handler.
        attempt: number of the attempt, from 1.
        max_attempts: number of the last attempt; 0 means no limit.
        deadline: when the task's own timeout passes, on the clock of `now` (UTC), or None.
        lost: set when the lease is lost and another consumer may have the message; stop, the result is of no
            use.
        cancelled: True once `lost` is set because the message was cancelled; nobody else gets it then.
        stopping: set when the dispatcher stops; a long handler may return `Snooze` then.
        firing: the firing, for a message of a schedule; else None.
        log: a structlog logger that carries queue, task, message id and attempt.
        now: the cluster's time (UTC), by which messages are due; in a testing block the block's time.
    """

    queue: str
    task: str
    attempt: int
    max_attempts: int
    log: Any
    lost: Event = field(default_factory=Event, init=False)
    cancelled: bool = field(default=False, init=False)
    stopping: Event = field(default_factory=Event, kw_only=True)
    deadline: datetime | None = field(default=None, kw_only=True)
    firing: Firing | None = field(default=None, kw_only=True)

    @property
    def now(self) -> datetime:
        """The cluster's time, in UTC; this machine's time in a context that no dispatcher has made."""
        return datetime.now(UTC)

    def __repr__(self) -> str:
        return f"<context of {self.task!r} on {self.queue!r} attempt={self.attempt}>"


@dataclass(frozen=True, slots=True)
class Binding:
    """The function that handles a message, and how to call it.

    Attributes:
        name: name in logs and metrics.
        call: the handler; a coroutine function if `is_async`.
        retry: retry policy of the handler.
        is_async: `call` returns a coroutine.
        timeout: longest run, 1 ms to 10 years, or None.
        log_errors: log lines have the texts of errors too; otherwise only their classes and frames, because a
            text may quote the message.
        keeping: how results are kept; None: not at all.
    """

    name: str
    call: Callable[[ReceivedMessage, Context], Any]
    retry: Retry
    is_async: bool = False
    timeout: timedelta | None = None
    log_errors: bool = False
    keeping: Keeping | None = None

    def __post_init__(self) -> None:
        """Check the timeout, which a resolver of the application's may have chosen.

        Raises:
            BadInput: it is out of range. A time far beyond would overflow the deadline of each run.
        """
        if self.timeout is not None:
            check_duration("timeout", self.timeout, SHORTEST_TIMEOUT, LONGEST_DELAY)


_current_run: ContextVar[tuple[ReceivedMessage, Context]] = ContextVar("cqueue_running")


def current_context() -> Context:
    """Return the context of the current run: attempt, `stopping`, `lost`, the firing of a schedule.

    Raises:
        BadInput: no dispatcher runs a task on this thread or in this coroutine.
    """
    return _current()[1]


def current_message() -> ReceivedMessage:
    """Return the message of the current run: its id, headers and fence. Leave settling to the dispatcher.

    Raises:
        BadInput: as `current_context`.
    """
    return _current()[0]


def _current() -> tuple[ReceivedMessage, Context]:
    try:
        return _current_run.get()
    except LookupError as exc:
        raise BadInput(
            "no task is run by a dispatcher here; threads that a task starts have no context of their own"
        ) from exc


@contextmanager
def run_context(message: ReceivedMessage, context: Context) -> Iterator[None]:
    """Let `current_message` and `current_context` find these two inside the block."""
    token = _current_run.set((message, context))
    try:
        yield
    finally:
        _current_run.reset(token)
