"""A message as a consumer hands it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cqueue import ids
from cqueue.errors import BadInput
from cqueue.message import MessageId, to_datetime
from cqueue.protocol.lease import Lease, Taken

if TYPE_CHECKING:
    from cqueue.consuming import Settles
    from cqueue.settler import Settler


class ReceivedMessage:
    """A message, held until its visibility timeout passes or it is acked, nacked, or dead.

    Attributes:
        body: bytes.
    """

    __slots__ = ("_consumer", "_settler", "_taken", "body")

    def __init__(self, settler: Settler, taken: Taken, body: bytes) -> None:
        self._consumer: Settles = settler  # whom its own methods call: a recorder puts itself there
        self._settler = settler
        self._taken = taken
        self.body = body

    @property
    def id(self) -> MessageId:
        """Names the message; the same at every delivery."""
        return MessageId.of(self._taken.lease.wide_row, self._taken.row.priority, self._taken.row.id)

    @property
    def headers(self) -> dict[str, str]:
        """Text by name; empty if there are none."""
        return dict(self._taken.row.headers or {})

    @property
    def priority(self) -> int:
        """0, the most urgent, to 9."""
        return self._taken.row.priority

    @property
    def task(self) -> str | None:
        """The task's name, if it was sent with one."""
        return self._taken.row.task

    @property
    def key(self) -> str | None:
        """The key that it was sent with."""
        return self._taken.row.key

    @property
    def codec(self) -> str | None:
        """How the body is encoded, if it was said."""
        return self._taken.row.codec

    @property
    def trigger(self) -> str | None:
        """Which firing of a schedule it is, as JSON; None for other messages."""
        return self._taken.row.trigger

    @property
    def due(self) -> datetime:
        """When it was due first, in UTC."""
        return to_datetime(ids.time_us(self._taken.row.id) // 1000)

    @property
    def sent_at(self) -> datetime:
        """When it was sent, in UTC, by the cluster's clock."""
        return to_datetime(self._taken.row.sent_at)

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1. A claim whose consumer died before it began counts as well."""
        return self._taken.lease.attempt

    @property
    def suspect(self) -> bool:
        """Whether its last holder let it expire, and may have been killed by it: it comes alone."""
        return self._taken.lease.suspect

    @property
    def lease(self) -> Lease:
        """Used inside: what it is held by, together with those that it was received with."""
        return self._taken.lease

    @property
    def is_held(self) -> bool:
        """Whether, as far as this process knows, it is still held: neither settled nor lost."""
        lease = self._taken.lease
        return not lease.lost and self._taken.row.id in lease.outstanding

    @property
    def fence(self) -> int:
        """A fencing token: of two claims on one wide row, the later has the higher one."""
        return self._taken.lease.fence

    @property
    def visible_again(self) -> datetime:
        """When the visibility timeout passes, in UTC; moved by `extend`."""
        return to_datetime(self._taken.lease.due_ms)

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

    def __repr__(self) -> str:
        return f"<message {self.id} attempt={self.attempt} bytes={len(self.body)}>"


Messages = ReceivedMessage | Iterable[ReceivedMessage]


def listed(messages: Messages) -> list[ReceivedMessage]:
    """One message or several, as a list.

    Raises:
        BadInput: something in it is not a received message.
    """
    listed = [messages] if isinstance(messages, ReceivedMessage) else messages
    if not isinstance(listed, Iterable):
        raise BadInput(f"{messages!r} is neither a received message nor several of them")
    listed = list(listed)
    if set(map(type, listed)) <= {ReceivedMessage}:
        return listed
    for message in listed:
        if not isinstance(message, ReceivedMessage):
            raise BadInput(f"{message!r} is not a received message")
    return listed
