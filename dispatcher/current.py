"""What runs here and now: the context and the message of the task that is asking.

A variable of the thread or coroutine, and no parameter: a parameter that only the dispatcher fills in would
have to be taken out of the signature for those who enqueue and left in for those who call, and type checkers
do that only by guessing from the first argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.context import Context
from cqueue.errors import BadInput

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
