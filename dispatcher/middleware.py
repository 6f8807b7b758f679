"""Hooks around sending, running and acking; and the way out of an application, which passes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.context import Context
    from cqueue.message import Message, MessageId
    from cqueue.producer import SendResult
    from cqueue.queue import Queue

_log = logging.getLogger("cqueue.dispatcher")


class Middleware:
    """Does nothing; override what you need. Called from many threads.

    Hooks of several run in the order in which they were given, the `after_` ones in the opposite order.
    An exception in a `before_` hook stops what it precedes: nothing is sent, or the run has failed with
    it. One in an `after_` hook is logged, and changes nothing.
    """

    def before_send(self, queue: str, message: Message) -> Message:
        """The message to send, this one or another."""
        return message

    def after_send(self, queue: str, message: Message, message_id: MessageId) -> None:
        """The message is stored."""

    def before_run(self, message: ReceivedMessage, context: Context) -> None:
        """The handler is about to be called, on this thread or event loop."""

    def after_run(
        self, message: ReceivedMessage, context: Context, answer: Any, error: BaseException | None
    ) -> None:
        """The handler has returned `answer`, a verdict or any other value, or failed with `error`."""

    def before_ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """These are about to be acked together. An exception here is logged; they are acked all the same."""

    def after_ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Their acks are stored."""


Hook = Callable[..., Any]


def hooks(middleware: Sequence[Middleware], name: str) -> list[Hook]:
    """The hooks of that name in the order of their calls; those that do nothing are left out."""
    base = getattr(Middleware, name)
    found = [getattr(one, name) for one in middleware if getattr(type(one), name, None) is not base]
    return found[::-1] if name.startswith("after_") else found


class Outbox:
    """Sends to queues by name. Thread-safe.

    Args:
        queue: gives the queue of a name; the same one to all senders, as it keeps what they may use again.
        middleware: hooks around every send.
    """

    def __init__(self, queue: Callable[[str], Queue], middleware: Sequence[Middleware]) -> None:
        self._queue = queue
        self._before, self._after = hooks(middleware, "before_send"), hooks(middleware, "after_send")

    def send(self, queue: str, message: Message) -> MessageId:
        """Store one message; as `Queue.send`."""
        result = self.send_many(queue, [message])
        for _, error in result.failed:
            raise error
        id_ = result.ids[0]
        if id_ is None:
            raise AssertionError("a send without error has an id")
        return id_

    def send_many(self, queue: str, messages: Iterable[Message]) -> SendResult:
        """Store many; as `Queue.send_many`. Should a `before_send` fail, nothing is sent."""
        prepared = [self._prepared(queue, message) for message in messages]
        result = self._queue(queue).send_many(prepared)
        for hook in self._after:
            for message, id_ in zip(prepared, result.ids, strict=True):
                try:
                    if id_ is not None:
                        hook(queue, message, id_)
                except Exception:  # noqa: BLE001 - the message is stored, and its sender must be told so
                    _log.exception("after_send_failed")
        return result

    def _prepared(self, queue: str, message: Message) -> Message:
        for hook in self._before:
            message = hook(queue, message)
        return message
