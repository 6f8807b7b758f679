"""A message on its way through the dispatcher, and the lease that it shares with others."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher.execution.interrupt import Interruptible
from cqueue.runtime.logs import describe, is_ours

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable

    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.execution.actions import Action
    from cqueue.dispatcher.execution.context import Binding, Context, Firing
    from cqueue.dispatcher.execution.pollers import Poller
    from cqueue.protocol.lease import Lease
    from cqueue.store.control import KeepResult


class Verb(StrEnum):
    """The call that settles a message."""

    ACK = "ack"
    NACK = "nack"
    SNOOZE = "snooze"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The decision about a message.

    Attributes:
        verb: the call that settles the message.
        outcome: counter and event: succeeded, cancelled, left, retried, snoozed, dead, released or
            interrupted.
        delay: time until the next delivery, for NACK and SNOOZE.
        reason: text for the dead letter, and for logs unless `log_reason` stands in for it.
        log_reason: text for logs, where the reason quotes an error whose text is not to be logged.
        traceback: text for the dead letter.
    """

    verb: Verb
    outcome: str
    delay: timedelta = timedelta()
    reason: str = ""
    traceback: str = ""
    log_reason: str = ""


TIME_LIMIT = "time limit"
"""Reason to interrupt a handler: it ran longer than its timeout."""
STOP = "stop"
"""Reason to interrupt a handler: the dispatcher stops, and the grace is over."""

UNDECIDED = Settlement(Verb.NACK, "undecided")
"""State of a delivery that waits to be started, or runs."""
SUCCEEDED = Settlement(Verb.ACK, "succeeded")
"""The handler did its work. One shared object, because nearly every message gets it."""
RELEASED = Settlement(Verb.SNOOZE, "released")
"""The handler was not started: the message is due again at once, and no attempt is used."""
INTERRUPTED = Settlement(Verb.NACK, "interrupted", reason="the dispatcher stopped")
"""A stop ended the handler: the message is due again at once, and the attempt counts."""


_GIVING_UP: Final = threading.Lock()
"""Held while a run is given up, which is rare."""


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Delivery(Interruptible):
    """One delivery of one message, and the one run of its handler.

    Only the thread that has the delivery at the moment writes its fields. The fields are slots, because to
    read defaults from the class took a fifth of the time of a run.
    """

    message: ReceivedMessage
    poller: Poller
    batch: LeasedBatch | None = None
    binding: Binding | None = None
    is_async: bool = False
    is_firing: bool = False  # a schedule sent the message
    is_suspect: bool = False  # its last holder let it expire

    settlement: Settlement = UNDECIDED
    is_left: bool = False  # the message is left to its timeout; the lease is not extended for it
    result: KeepResult | None = None  # what is stored about the message, if its task keeps results
    due_s: float = 0.0  # when a nacked or snoozed message is due again, by the settlement writer's clock

    # The run:
    context: Context | None = None
    firing: Firing | None = None  # of a schedule that has it run
    override: Action | None = None  # the schedule's action, in place of the handler's
    begun_s: float = math.inf  # when the handler was called, monotonic
    answer: Any = None  # what the handler returned
    error: BaseException | None = None  # what the handler raised, or why no handler is called
    is_own_error: bool = False  # the dispatcher has written the error's text
    is_told: bool = False  # the history says that it runs
    is_lost: bool = False  # another consumer may have the message
    task: Task[Any] | None = None  # of a coroutine function, while it is called
    told_s: float | None = None  # when the handler was interrupted
    told: str = ""  # why the handler was interrupted: TIME_LIMIT or STOP
    is_abandoned: bool = False  # given up: another thread settles the message, nobody waits for the run
    _has_ended: bool = False
    _is_doubtful: bool = False  # whether the run is given up is being decided, or was
    end_span: Callable[..., None] | None = None  # ends the span of the run; None if nobody traces

    @property
    def name(self) -> str:
        """Name of the task or handler."""
        return self.binding.name if self.binding is not None else self.message.task or "unknown"

    @property
    def logs_errors(self) -> bool:
        """Whether log lines may have the texts of what the handler raises."""
        return self.binding is not None and self.binding.log_errors

    def said(self, error: BaseException) -> str:
        """Return an error in one line for logs: with its text if the task allows that, or if the text is the
        library's own.
        """
        is_own = self.is_own_error and error is self.error
        return describe(error, texts=self.logs_errors or is_own or is_ours(error))

    @property
    def limit_s(self) -> float | None:
        """Longest run of the handler, in seconds; None: no limit."""
        limit = self.binding.timeout if self.binding is not None else None
        return None if limit is None else limit.total_seconds()

    def is_over(self, now_s: float) -> bool:
        """Return whether the handler's time limit has passed, and nobody has interrupted it yet."""
        return self.told_s is None and self.limit_s is not None and now_s - self.begun_s >= self.limit_s

    @property
    def is_called(self) -> bool:
        """Whether the handler is being called."""
        return self.task is not None or self.is_interruptible

    def end(self, why: str, now_s: float) -> bool:
        """Interrupt the handler; return False if it does not run, or was interrupted before.

        A coroutine is interrupted on the thread of its event loop.
        """
        self.told = self.told or why  # written first: the worker may read it at once
        if self.told_s is not None or not (self.interrupt() if self.task is None else self.task.cancel()):
            return False
        self.told_s = now_s
        return True

    def note_end(self) -> bool:
        """Note that the run has ended; return whether it settles the message: unless it was given up."""
        # The run takes no lock, as hardly any is given up. Here and in `give_up` a thread first writes, then
        # looks at what the other one writes: at least one of them sees the other.
        self._has_ended = True
        if not self._is_doubtful:
            return True
        with _GIVING_UP:
            return not self.is_abandoned

    def give_up(self) -> bool:
        """Give the run up; return False if it has just ended, or was given up before."""
        with _GIVING_UP:
            if self.is_abandoned:
                return False
            self._is_doubtful = True
            self.is_abandoned = not self._has_ended
            return self.is_abandoned

    def lose(self) -> None:
        """Mark the message as lost to another consumer, and tell the handler if one is running."""
        self.is_lost = True  # written first: `Runner.begin` makes the context, then reads this
        if (context := self.context) is not None:  # its worker may clear the field at any moment
            context.cancelled = self.message.is_cancelled
            context.lost.set()

    def let_go(self) -> None:
        """Drop the finished run's objects; an error's traceback would keep the message alive."""
        self.context = self.answer = self.error = None


class LeasedBatch:
    """The deliveries of one claim, which share one lease."""

    __slots__ = ("again_ms", "busy", "deliveries", "lease", "poller")

    def __init__(self, poller: Poller, lease: Lease, deliveries: list[Delivery]) -> None:
        self.poller = poller
        self.lease = lease
        self.deliveries = deliveries
        is_suspect = lease.suspect
        for delivery in deliveries:
            delivery.batch = self
            if is_suspect:
                delivery.is_suspect = True
        self.busy = False  # a thread is extending the lease
        self.again_ms = 0  # no further extension before this cluster time

    def forget(self) -> None:
        """Drop settled deliveries: one that runs for hours would keep the bodies of the whole batch.

        Those of a lost lease, and cancelled ones, stay until their handlers are told.
        """
        lease = self.lease
        if not (lease.outstanding or lease.lost or lease.cancelled):
            self.end()
            return
        held = {one for one in self.deliveries if one.message.is_held}
        lost, untold = lease.lost, self.cancelled  # after that: it may be lost at any moment
        self.deliveries = [one for one in self.deliveries if one in held or lost or one in untold]

    def end(self) -> None:
        """Drop all deliveries."""
        self.deliveries = []

    @property
    def cancelled(self) -> list[Delivery]:
        """Cancelled deliveries that wait to be started, or run, and were not told yet."""
        if not self.lease.cancelled:
            return []
        return [one for one in self.undecided if one.message.is_cancelled and not one.is_lost]

    @property
    def undecided(self) -> list[Delivery]:
        """Deliveries that wait to be started, or run."""
        return [one for one in self.deliveries if one.settlement is UNDECIDED]
