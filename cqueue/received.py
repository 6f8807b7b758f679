"""`ReceivedMessage`: a message as a consumer returns it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cqueue import ids
from cqueue.errors import BadInput
from cqueue.message import MessageId, to_datetime
from cqueue.protocol.lease import Lease, Taken

if TYPE_CHECKING:
    from cqueue.receiving.interface import Settles
    from cqueue.receiving.settler import Settler
    from cqueue.store.operations import MessageRow


class Received(Taken):
    """What a received message says of itself, with threads and with asyncio.

    Attributes:
        body: the message's bytes.
        lease: used inside: the lease that the message shares with others of its claim.
        row: used inside: the message as it is stored.
    """

    __slots__ = ("_consumer", "_settler", "body")

    def __init__(self, settler: Settler, row: MessageRow, lease: Lease, body: bytes) -> None:
        self._consumer: Settles = settler  # target of `ack` and the like; a recorder replaces it
        self._settler = settler
        self.row = row
        self.lease = lease
        self.body = body

    @property
    def id(self) -> MessageId:
        """The message's id, the same at every delivery."""
        return MessageId.of(self.lease.wide_row, self.row.priority, self.row.id)

    @property
    def headers(self) -> dict[str, str]:
        """The message's headers as text by name; empty if there are none."""
        return dict(self.row.headers or {})

    @property
    def priority(self) -> int:
        """The message's priority, from 0 (most urgent) to 9."""
        return self.row.priority

    @property
    def task(self) -> str | None:
        """The task's name, if the message was sent with one."""
        return self.row.task

    @property
    def key(self) -> str | None:
        """The key that the message was sent with, if any."""
        return self.row.key

    @property
    def codec(self) -> str | None:
        """How the body is encoded, if the sender said so."""
        return self.row.codec

    @property
    def trigger(self) -> str | None:
        """The schedule's firing that sent the message, as JSON; None for other messages."""
        return self.row.trigger

    @property
    def due(self) -> datetime:
        """When the message was due first, in UTC."""
        return to_datetime(ids.time_us(self.row.id) // 1000)

    @property
    def sent_at(self) -> datetime:
        """When the message was sent, in UTC, by cluster time."""
        return to_datetime(self.row.sent_at)

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1. A claim whose consumer died before it handled the message
        counts.
        """
        return self.lease.attempt

    @property
    def suspect(self) -> bool:
        """Whether the last holder let the message expire, so that the message may have killed it. It comes
        alone.
        """
        return self.lease.suspect

    @property
    def is_held(self) -> bool:
        """Whether the message is still held as far as this process knows: neither settled nor lost."""
        return not self.lease.lost and self.row.id in self.lease.outstanding

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody cancelled the message while it was held here. `extend` and `nack` find it out."""
        return self.row.id in self.lease.cancelled

    @property
    def fence(self) -> int:
        """A fencing token: of two deliveries of a message, the later one has the higher token."""
        return self.lease.fence

    @property
    def visible_again(self) -> datetime:
        """When the visibility timeout passes, in UTC. `extend` moves it."""
        return to_datetime(self.lease.due_ms)

    def __repr__(self) -> str:
        return f"<message {self.id} attempt={self.attempt} bytes={len(self.body)}>"


class ReceivedMessage(Received):
    """A message that a consumer holds until it is settled or its visibility timeout passes.

    Attributes:
        body: the message's bytes.
    """

    __slots__ = ()

    def ack(self) -> None:
        """See `Consumer.ack`."""
        self._consumer.ack(self)

    def nack(self, delay: timedelta = timedelta()) -> None:
        """See `Consumer.nack`."""
        self._consumer.nack(self, delay)

    def snooze(self, delay: timedelta) -> None:
        """See `Consumer.snooze`."""
        self._consumer.snooze(self, delay)

    def extend(self, duration: timedelta) -> None:
        """See `Consumer.extend`."""
        self._consumer.extend(self, duration)

    def dead(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        """See `Consumer.dead`."""
        self._consumer.dead(self, reason, headers)


Messages = Received | Iterable[Received]


def listed(messages: Messages) -> list[Received]:
    """Return one message or several as a list.

    Raises:
        BadInput: an element is not a received message.
    """
    listed = [messages] if isinstance(messages, Received | str) else messages  # an id is one wrong entry
    if not isinstance(listed, Iterable):
        raise BadInput(f"{messages!r} is neither a received message nor several of them")
    listed = list(listed)
    if set(map(type, listed)) <= {ReceivedMessage}:
        return listed
    for message in listed:
        if not isinstance(message, Received):
            raise BadInput(f"{message!r} is not a received message; give what receive returned")
    return listed
