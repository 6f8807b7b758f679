"""Hooks around sending, running and acking, for what every task of an application needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.context import Context
    from cqueue.message import Message, MessageId


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
