"""A message on its way through the dispatcher, and the timeout that it is held by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from cqueue.dispatcher.interrupt import Interruptible

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.context import Binding, Context
    from cqueue.dispatcher.lanes import Lane
    from cqueue.dispatcher.verdicts import Verdict
    from cqueue.protocol.lease import Lease


class Verb(StrEnum):
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


TIME_LIMIT = "time limit"
STOP = "stop"

UNDECIDED = Settlement(Verb.NACK, "undecided")
"""Of what waits to be started, or runs."""
SUCCEEDED = Settlement(Verb.ACK, "succeeded")
RELEASED = Settlement(Verb.SNOOZE, "released")
"""Not started: due again at once, and no attempt is used."""
INTERRUPTED = Settlement(Verb.NACK, "interrupted", reason="the dispatcher stopped")
"""Ended at a stop: due again at once, and the attempt counts."""


class Delivery(Interruptible):
    """One delivery of one message, and the one run of its handler.

    Each field is written by whoever has the delivery at that moment. There is one for every message, so
    what is the same for nearly all of them stands here in the class.
    """

    hold: Hold | None = None
    binding: Binding | None = None
    is_async = False
    suspect = False

    settlement = UNDECIDED
    is_left = False  # to its timeout, which is not extended for it
    due_s = 0.0  # when a message that is nacked or snoozed is to come again, by the settler's clock

    # Of its run:
    context: Context | None = None
    is_firing = False  # of a schedule
    early: Verdict | None = None  # its schedule's, instead of the handler's
    begun_s = math.inf
    answer: Any = None  # of the handler
    error: BaseException | None = None  # the handler's, or why it is not called
    is_lost = False
    told_s: float | None = None  # when its handler was interrupted, and
    told = ""  # why
    is_abandoned = False  # its handler cannot be ended, and is not waited for any more

    def __init__(self, message: ReceivedMessage, lane: Lane) -> None:
        self.message = message
        self.lane = lane

    @property
    def name(self) -> str:
        """Of the task or handler."""
        return self.binding.name if self.binding is not None else self.message.task or "unknown"

    @property
    def limit_s(self) -> float | None:
        """How long its handler may run."""
        limit = self.binding.timeout if self.binding is not None else None
        return None if limit is None else limit.total_seconds()

    def is_over(self, now_s: float) -> bool:
        """Whether its handler's time limit has passed, and the handler was not told."""
        return self.told_s is None and self.limit_s is not None and now_s - self.begun_s >= self.limit_s

    def end(self, why: str, now_s: float) -> bool:
        """Interrupt its handler; False if that does not run (any more), or was told before."""
        self.told = self.told or why  # before: the worker asks at once
        if not self.interrupt():
            return False
        self.told_s = now_s
        return True

    def lose(self) -> None:
        """It belongs to somebody else: tell the handler, if one is running."""
        self.is_lost = True  # before: who makes the context looks afterwards
        if (context := self.context) is not None:  # its worker may be letting go of it
            context.lost.set()

    def let_go(self) -> None:
        """Of its run, which is over; an error's traceback leads back to the message."""
        self.context = self.answer = self.error = None


class Hold:
    """Deliveries that share a timeout, because one claim gave them."""

    __slots__ = ("again_ms", "busy", "deliveries", "lane", "lease")

    def __init__(self, lane: Lane, lease: Lease, deliveries: list[Delivery]) -> None:
        self.lane = lane
        self.lease = lease
        self.deliveries = deliveries
        for delivery in deliveries:
            delivery.hold = self
        self.busy = False  # an extension is under way
        self.again_ms = 0  # after one that failed: not before

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is ours any more."""
        return not self.lease.is_held

    def forget(self) -> None:
        """Let go of what is done with, and its bodies: one that runs for hours would keep all of them."""
        if len(self.deliveries) > 1:
            self.deliveries = [one for one in self.deliveries if one.message.is_held]

    def end(self) -> None:
        """Let go of all of it."""
        self.deliveries = []

    @property
    def undecided(self) -> list[Delivery]:
        """Those that wait to be started, or run."""
        return [one for one in self.deliveries if one.settlement is UNDECIDED]
