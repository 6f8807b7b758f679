"""Sending for an application: by the name of a queue, through the application's middleware."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from cqueue.dispatcher.execution import retry
from cqueue.dispatcher.execution.middleware import Middleware, hooks
from cqueue.errors import BadInput
from cqueue.message import Message
from cqueue.sending.results import listed

if TYPE_CHECKING:
    from cqueue.message import MessageId
    from cqueue.producer import SendResult, SendStatement
    from cqueue.queue import Queue


class Sender:
    """Sends messages to queues by name. Thread-safe.

    Args:
        queue: return the queue of a name; always the same object, because a queue keeps what later sends can
            reuse.
        middleware: hooks around every send.
    """

    def __init__(self, queue: Callable[[str], Queue], middleware: Sequence[Middleware]) -> None:
        self.queue = queue
        self._before, self._after = hooks(middleware, "before_send"), hooks(middleware, "after_send")

    def send(self, queue: str, message: Message) -> MessageId:
        """Store one message; as `Queue.send`."""
        result = self.send_many(queue, [message])
        for _, error in result.failed:
            raise error
        (id_,) = filter(None, result.ids)  # without an error it has one
        return id_

    def send_many(self, queue: str, messages: Iterable[Message]) -> SendResult:
        """Store many messages; as `Queue.send_many`. If a `before_send` hook raises, nothing is sent."""
        prepared = [self._prepared(queue, message) for message in listed(messages, Message, "send_many")]
        result = self.queue(queue).send_many(prepared)
        for hook in self._after:
            for message, id_ in zip(prepared, result.ids, strict=True):
                try:
                    if id_ is not None and not id_.skipped:
                        hook(queue, message, id_)
                except Exception as exc:  # noqa: BLE001 - the message is stored, and its sender must be told so
                    retry.log_failure("after_send_failed", exc, queue=queue)
        return result

    def send_statement(self, queue: str, message: Message) -> SendStatement:
        """Return the INSERT of a message; as `Queue.send_statement`. No `after_send` hook is called."""
        return self.queue(queue).send_statement(self._prepared(queue, message))

    def _prepared(self, queue: str, message: Message) -> Message:
        for hook in self._before:
            made: object = hook(queue, message)
            if not isinstance(made, Message):  # as of a hook without a `return`
                what = f"{hook.__qualname__} returned {None if made is None else type(made).__name__}"
                raise BadInput(f"{what}; a hook before a send returns the message to send")
            message = made
        return message
