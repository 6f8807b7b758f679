"""What a handler is told beside its message, and how a task asks for it.

A task finds its context in a variable of the thread or coroutine, and not in a parameter: type checkers would
have to take such a parameter out of the signature for those who enqueue, and can only guess it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.verdicts import Retry
from cqueue.errors import BadInput


@dataclass(frozen=True, slots=True)
class Firing:
    """Which firing of which schedule a message is.

    Attributes:
        key: the schedule's.
        fired_at: the time that is fired, in UTC; a delivery may come later.
        execution_count: which firing it is, from 1.
        previous: the one before, or None.
        next_trigger: the one after, or None if this is the last.
        manual: asked for by `run_now`: it is none of the schedule's own times.
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
        queue: the queue's name.
        task: the task's name, or that of the handler.
        attempt: from 1.
        max_attempts: the last attempt's number; 0 if there is none.
        deadline: when the task's own timeout passes (UTC), or None.
        lost: set when the message belongs to somebody else; stop, the result is of no use.
        stopping: set when the dispatcher stops; a long handler may return `Snooze` then.
        firing: for a message of a schedule.
        log: a structlog logger that carries queue, task, message id and attempt.
        now: the cluster's time (UTC), by which messages are due; in a testing block the block's.
    """

    queue: str
    task: str
    attempt: int
    max_attempts: int
    log: Any
    lost: Event = field(default_factory=Event, init=False)
    stopping: Event = field(default_factory=Event, kw_only=True)
    deadline: datetime | None = field(default=None, kw_only=True)
    firing: Firing | None = field(default=None, kw_only=True)

    @property
    def now(self) -> datetime:
        """The cluster's time, in UTC; this machine's for a context that no dispatcher has made."""
        return datetime.now(UTC)

    def __repr__(self) -> str:
        return f"<context of {self.task!r} on {self.queue!r} attempt={self.attempt}>"


@dataclass(frozen=True, slots=True)
class Binding:
    """What to call for a message, and how.

    Attributes:
        name: in logs and metrics.
        call: the handler; a coroutine function if `is_async`.
        retry: its policy.
        timeout: longest run, or None.
    """

    name: str
    call: Callable[[ReceivedMessage, Context], Any]
    retry: Retry
    is_async: bool = False
    timeout: timedelta | None = None


_running: ContextVar[tuple[ReceivedMessage, Context]] = ContextVar("cqueue_running")


def current_context() -> Context:
    """The context of the run that calls this: attempt, `stopping`, `lost`, the firing of a schedule.

    Raises:
        BadInput: no task of the dispatcher runs on this thread or in this coroutine.
    """
    return _current()[1]


def current_message() -> ReceivedMessage:
    """The message of the run that calls this: its id, headers and fence. Leave settling to the dispatcher.

    Raises:
        BadInput: as `current_context`.
    """
    return _current()[0]


def _current() -> tuple[ReceivedMessage, Context]:
    try:
        return _running.get()
    except LookupError as exc:
        raise BadInput(
            "no task is run by a dispatcher here; threads that a task starts have no context of their own"
        ) from exc


@contextmanager
def running(message: ReceivedMessage, context: Context) -> Iterator[None]:
    """Let what is called inside find the two."""
    token = _running.set((message, context))
    try:
        yield
    finally:
        _running.reset(token)
