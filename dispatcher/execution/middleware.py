"""Hooks around sending, running and acking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher.execution.handlers import check_runs, is_async
from cqueue.errors import ConfigError

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.execution.context import Context
    from cqueue.message import Message, MessageId


class Middleware:
    """Base class of hooks, which do nothing; override those you need. Called from many threads.

    Hooks of several objects run in the given order, `after_` hooks in the opposite order. An exception in a
    `before_` hook stops what follows: nothing is sent, or the run fails with the exception. An exception in
    an `after_` hook is logged, and changes nothing.
    """

    def before_send(self, queue: str, message: Message) -> Message:
        """Return the message to send: this one or another."""
        return message

    def after_send(self, queue: str, message: Message, message_id: MessageId) -> None:
        """Called when the message is stored."""

    def before_run(self, message: ReceivedMessage, context: Context) -> None:
        """Called before the handler, on the same thread or event loop."""

    def after_run(
        self, message: ReceivedMessage, context: Context, answer: Any, error: BaseException | None
    ) -> None:
        """Called when the handler has returned `answer` (an action or other value), or raised `error`."""

    def before_ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Called before these messages are acked together. An exception is logged, and stops nothing."""

    def after_ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Called when the acks are stored."""


Hook = Callable[..., Any]
HOOKS: Final = ("before_send", "after_send", "before_run", "after_run", "before_ack", "after_ack")


def checked_middleware(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Return the objects of a `middleware=` argument.

    Raises:
        ConfigError: it is anything else, or a hook is no plain function: calling it would run nothing.
    """
    found = tuple(middleware) if isinstance(middleware, Iterable) else (middleware,)
    for one in found:
        if not isinstance(one, Middleware):
            raise ConfigError(f"middleware has {one!r}; it takes several objects of classes of Middleware")
        for name in HOOKS:
            hook, where = getattr(one, name), f"{type(one).__name__}.{name}"
            check_runs(hook, where)
            if is_async(hook):
                raise ConfigError(
                    f"{where} is a coroutine function; nobody would await it: write a plain one"
                )
    return found


def hooks(middleware: Sequence[Middleware], name: str) -> list[Hook]:
    """Return the hooks of that name in the order of their calls, without those not overridden."""
    base = getattr(Middleware, name)
    found = [getattr(one, name) for one in middleware if getattr(type(one), name, None) is not base]
    return found[::-1] if name.startswith("after_") else found
