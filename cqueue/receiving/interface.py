"""Interfaces of a consumer, implemented by `cqueue.Consumer` and by recorders that wrap one."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cqueue.protocol.poll import Share
from cqueue.runtime.driver import BlockingDriver
from cqueue.store.operations import WideRow

if TYPE_CHECKING:
    from cqueue.received import Messages, ReceivedMessage


class Found(NamedTuple):
    """Messages, and how they were found.

    told: a hint named their wide row. more: another receive may find more at once: messages are left, or a
    search is due. left: the consumer knows where more messages are. left_until_ms: cluster time until which
    the consumer may hold messages that it could not deliver, or 0.
    """

    messages: Sequence[ReceivedMessage] = ()
    told: bool = False
    more: bool = False
    left: bool = False
    left_until_ms: int = 0


class Settles(Protocol):
    """Settles messages: the methods that a received message calls."""

    def ack(self, messages: Messages) -> None:
        """See `Consumer.ack`."""

    def nack(self, messages: Messages, delay: timedelta = timedelta()) -> None:
        """See `Consumer.nack`."""

    def snooze(self, messages: Messages, delay: timedelta) -> None:
        """See `Consumer.snooze`."""

    def extend(self, messages: Messages, duration: timedelta) -> None:
        """See `Consumer.extend`."""

    def dead(self, messages: Messages, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """See `Consumer.dead`."""


class Consuming(Settles, Protocol):
    """Receives and settles messages: the methods that a dispatcher calls."""

    @property
    def driver(self) -> BlockingDriver:
        """The client's driver."""
        ...

    @property
    def settles_with(self) -> Hashable:
        """Equal for consumers that may settle each other's messages, so that their acks go together."""
        ...

    def fetch(self, max_messages: int, share: Share | None) -> Found:
        """Receive without a wait. share: the wide rows to look at first; None for all."""
        ...

    def receive_from(
        self, wide_row: WideRow, priorities: frozenset[int], max_messages: int = 1
    ) -> list[ReceivedMessage]:
        """Receive from one wide row that is known to have messages, without a search."""
        ...

    def close(self, *, give_back: bool = True) -> None:
        """See `Consumer.close`."""
