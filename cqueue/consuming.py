"""What others ask of a consumer: a `cqueue.Consumer`, or what records one and stands in its place."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cqueue.drive.blocking import BlockingDriver
from cqueue.protocol.poll import Share
from cqueue.store.operations import WideRow

if TYPE_CHECKING:
    from cqueue.received import Messages, ReceivedMessage


class Found(NamedTuple):
    """How messages were found.

    told: a hint said where. more: others were left where they were found, or elsewhere.
    """

    told: bool = False
    more: bool = False


class Settles(Protocol):
    """Settles messages: what a received message asks."""

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
    """Receives and settles: what a dispatcher asks.

    share: which wide rows it looks at first; None for all.
    """

    share: Share | None

    @property
    def last(self) -> Found:
        """How the last messages were found."""
        ...

    @property
    def driver(self) -> BlockingDriver:
        """Its client's."""
        ...

    @property
    def settles_with(self) -> Hashable:
        """Consumers that give the same may settle each other's messages, so that acks go together."""
        ...

    def receive(self, max_messages: int = 10, wait: timedelta = timedelta()) -> list[ReceivedMessage]:
        """See `Consumer.receive`."""
        ...

    def receive_from(
        self, wide_row: WideRow, priorities: frozenset[int], max_messages: int = 1
    ) -> list[ReceivedMessage]:
        """Messages of one wide row that is known to have some."""
        ...

    def close(self, *, give_back: bool = True) -> None:
        """See `Consumer.close`."""
