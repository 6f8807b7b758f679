"""Messages that this version of the application cannot run wait for a version that can.

Where those who enqueue are deployed before those who run, a message names a task, or has arguments, that the
dispatchers do not know yet. Retries would use up its attempts within seconds and bury it. So it is snoozed,
which uses none, for an hour by default; then it fails as any other.

A firing of a schedule waits for as long as its schedule waits for it: buried, it would only be followed by
the next one. Nothing is written to the schedule, because the other workers may know its task.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Final

from cqueue.dispatcher.definition import Ticket
from cqueue.dispatcher.events import Event, Events
from cqueue.dispatcher.retry import DEFAULT_POLICY
from cqueue.dispatcher.verdicts import Snooze
from cqueue.errors import PayloadMismatch, UnknownTask

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.context import Binding
    from cqueue.dispatcher.delivery import Delivery

FIRST_PAUSE: Final = timedelta(seconds=1)
LONGEST_PAUSE: Final = timedelta(minutes=1)
"""Between two looks whether the task is known by now; what has waited long is looked at rarely."""
REMEMBERED: Final = 1000
"""Tasks and schedules that are told once each; their names come from messages, so there may be any number.

What comes beyond them is not remembered: its wait is measured from when the message is due or was sent. None
of those that are known makes room for it, because all are met again and again, and each would be new again.
"""


def is_too_new(message: ReceivedMessage, error: BaseException, binding: Binding | None) -> bool:
    """Whether another version of the application may know what to do, and the task has no rule of its own."""
    if binding is not None:
        rule = binding.retry.rules.get(PayloadMismatch)
        return isinstance(error, PayloadMismatch) and rule is DEFAULT_POLICY
    may_be_known = message.task is not None or waiting_schedule(message, binding) is not None
    return isinstance(error, UnknownTask) and may_be_known


def waiting_schedule(message: ReceivedMessage, binding: Binding | None) -> str | None:
    """The schedule that waits for this firing of an unknown task; None: nothing waits for the message."""
    ticket = None if binding is not None else Ticket.parse(message.trigger)
    return None if ticket is None or ticket.is_manual else ticket.key


def pause_for(wait: timedelta, waited: timedelta) -> Snooze | None:
    """How long to snooze a message that has waited so long already; None: as long as it may."""
    if waited >= wait:
        return None
    return Snooze(min(wait - waited, max(FIRST_PAUSE, min(waited, LONGEST_PAUSE))))


class Waiting:
    """What waits for another version, as this process has met it.

    Args:
        wait: how long a message waits: from when it is due, or from when this process first met its task if
            that is later, so that a backlog from a time without dispatchers has its time as well.
    """

    _is_full = False

    def __init__(self, wait: timedelta, events: Events) -> None:
        self._wait = wait
        self._events = events
        self._since: dict[tuple[str, str, str], datetime] = {}
        self._mutex = Lock()

    def verdict(self, delivery: Delivery, error: BaseException) -> Snooze | None:
        """How long the message is to be snoozed; None: its failure is one like any other."""
        if not is_too_new(delivery.message, error, delivery.binding):
            return None
        schedule = waiting_schedule(delivery.message, delivery.binding)
        wait = self._wait if schedule is None else timedelta.max
        if not wait:
            return None
        now = delivery.lane.queue.now
        since = self._met(delivery, error, schedule, now)
        message = delivery.message
        return pause_for(wait, max(timedelta(), now - max(since, message.due, message.sent_at)))

    def _met(self, delivery: Delivery, error: BaseException, schedule: str | None, now: datetime) -> datetime:
        """When this was met first; it is told then, and not again. Beyond REMEMBERED: when it was sent."""
        subject = (delivery.lane.name, delivery.name, schedule or "")
        with self._mutex:
            known = self._since.get(subject)
            if known is not None:
                return known
            is_remembered = len(self._since) < REMEMBERED
            if is_remembered:
                self._since[subject] = now
            is_told = is_remembered or not self._is_full
            self._is_full = not is_remembered
        if is_told:
            self._tell(delivery, error, schedule, is_remembered=is_remembered)
        return now if is_remembered else delivery.message.sent_at

    def _tell(
        self, delivery: Delivery, error: BaseException, schedule: str | None, *, is_remembered: bool
    ) -> None:
        if not is_remembered:
            self._events.of(Event.UNTOLD, delivery, error=error, remembered=REMEMBERED)
        elif schedule is not None:
            self._events.of(Event.UNFIRED, delivery, error=error, schedule=schedule)
        else:
            event = Event.UNKNOWN if delivery.binding is None else Event.MISMATCH
            self._events.of(event, delivery, error=error, wait_s=self._wait.total_seconds())
