"""A message on its way through the dispatcher, and the timeout that it is held by."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.context import Binding, Context
    from cqueue.dispatcher.lanes import Lane
    from cqueue.protocol.spec import Lease


class Stage(IntEnum):
    """How far a delivery has come; it never goes back."""

    WAITING = 0  # to be started
    RUNNING = 1
    SETTLING = 2  # the handler has decided, and what it decided is not yet stored
    LEFT = 3  # to its timeout, which is not extended for it
    DONE = 4


class Verb(Enum):
    """What is told to the queue about a message."""

    ACK = "ack"
    NACK = "nack"
    SNOOZE = "snooze"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What was decided about a message.

    Attributes:
        verb: what to tell the queue.
        outcome: what it is counted as: succeeded, cancelled, left, retried, snoozed, dead, released.
        delay: until the next delivery, for NACK and SNOOZE.
        reason: in logs, and in the dead letter.
        traceback: for the dead letter.
    """

    verb: Verb
    outcome: str
    delay: timedelta = timedelta()
    reason: str = ""
    traceback: str = ""


SUCCEEDED = Settlement(Verb.ACK, "succeeded")
RELEASED = Settlement(Verb.SNOOZE, "released")
"""Not started: due again at once, and no attempt is used."""


class Delivery:
    """One delivery of one message. Each field is written by whoever has the delivery at that stage."""

    __slots__ = ("binding", "context", "error", "is_async", "lane", "message", "stage")

    def __init__(self, message: ReceivedMessage, lane: Lane) -> None:
        self.message = message
        self.lane = lane
        self.stage = Stage.WAITING
        self.binding: Binding | None = None
        self.error: BaseException | None = None  # why there is no binding
        self.is_async = False
        self.context: Context | None = None

    @property
    def name(self) -> str:
        """Of the task or handler."""
        return self.binding.name if self.binding is not None else self.message.task or "unknown"

    def lose(self) -> None:
        """It belongs to somebody else: tell the handler, if one is running."""
        if self.context is not None:
            self.context.lost.set()


class Hold:
    """Deliveries that share a timeout, because one claim gave them."""

    __slots__ = ("again_ms", "busy", "deliveries", "lane", "lease")

    def __init__(self, lane: Lane, lease: Lease, deliveries: list[Delivery]) -> None:
        self.lane = lane
        self.lease = lease
        self.deliveries = deliveries
        self.busy = False  # an extension is under way
        self.again_ms = 0  # after one that failed: not before

    def forget(self) -> None:
        """Let go of what is done with, and its bodies: one that runs for hours would keep all of them."""
        if len(self.deliveries) > 1:
            self.deliveries = [one for one in self.deliveries if one.stage is not Stage.DONE]

    def of(self, *stages: Stage) -> list[Delivery]:
        """Those deliveries that are at one of these stages."""
        return [delivery for delivery in self.deliveries if delivery.stage in stages]
