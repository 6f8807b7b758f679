"""Messages that this version of the application cannot run wait for a version that can.

If producers are deployed before dispatchers, a message names a task, or has arguments, that the dispatchers
do not know yet. Retries would use up its attempts within seconds and bury the message. So it is snoozed,
which uses no attempt, for an hour by default; then it fails like any other.

A firing waits for as long as its schedule waits for it: after a burial only the next firing would follow.
Nothing is written to the schedule, because other workers may know its task.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher.execution.actions import Snooze
from cqueue.dispatcher.execution.events import Event, Events
from cqueue.dispatcher.execution.retry import DEFAULT_POLICY
from cqueue.dispatcher.schedules.definition import FiringId
from cqueue.errors import PayloadMismatch, UnknownTask

if TYPE_CHECKING:
    from cqueue.consumer import ReceivedMessage
    from cqueue.dispatcher.execution.context import Binding
    from cqueue.dispatcher.execution.delivery import Delivery

FIRST_PAUSE: Final = timedelta(seconds=1)
"""Shortest snooze, 1 s: a deployment under way often finishes within seconds."""
LONGEST_PAUSE: Final = timedelta(minutes=1)
"""Longest snooze, 1 min: few deliveries for a long wait, and at most a minute after the deployment."""
REMEMBERED: Final = 1000
"""Tasks and schedules (1,000) that are logged once each: their names come from messages, without a limit.

Beyond this limit the wait is measured from when the message is due or was sent. No known name makes room for
a new one: all of them come again and again, and each would count as new again.
"""
_ANY_OTHER: Final = ("", "", "")
"""Stands for all tasks and schedules beyond this limit."""


def is_too_new(message: ReceivedMessage, error: BaseException, binding: Binding | None) -> bool:
    """Return whether another version of the application may run the message.

    False if the task has a rule of its own for arguments that it does not take.
    """
    if binding is not None:
        rule = binding.retry.rules.get(PayloadMismatch)
        return isinstance(error, PayloadMismatch) and rule is DEFAULT_POLICY
    may_be_known = message.task is not None or waiting_schedule(message, binding) is not None
    return isinstance(error, UnknownTask) and may_be_known


def waiting_schedule(message: ReceivedMessage, binding: Binding | None) -> str | None:
    """Return the key of the schedule that waits for this firing of an unknown task, or None."""
    firing_id = None if binding is not None else FiringId.parse(message.trigger)
    return None if firing_id is None or firing_id.runs_on_its_own else firing_id.key


def pause_for(wait: timedelta, waited: timedelta) -> Snooze | None:
    """Return the snooze of a message that has waited `waited` of its `wait`; None if its time is over."""
    if waited >= wait:
        return None
    return Snooze(min(wait - waited, max(FIRST_PAUSE, min(waited, LONGEST_PAUSE))))


class UnknownTasks:
    """The unknown tasks that this process has met, and how long their messages are snoozed.

    Args:
        wait: how long a message waits: from when it is due, or from when this process first met its task if
            that is later. So the backlog of a time without dispatchers gets the whole wait too.
        events: where each unknown task is logged once.
    """

    def __init__(self, wait: timedelta, events: Events) -> None:
        self._wait = wait
        self._events = events
        self._since: dict[tuple[str, str, str], datetime] = {}
        self._mutex = Lock()

    def snooze_for(self, delivery: Delivery, error: BaseException) -> Snooze | None:
        """Return the snooze of a message; None if its failure counts like any other."""
        if not is_too_new(delivery.message, error, delivery.binding):
            return None
        schedule = waiting_schedule(delivery.message, delivery.binding)
        wait = self._wait if schedule is None else timedelta.max
        if not wait:
            return None
        now = delivery.poller.queue.now
        since = self._met(delivery, error, schedule, now)
        message = delivery.message
        return pause_for(wait, max(timedelta(), now - max(since, message.due, message.sent_at)))

    def _met(self, delivery: Delivery, error: BaseException, schedule: str | None, now: datetime) -> datetime:
        """Return when the task was first met, and log it then; beyond REMEMBERED, when it was sent."""
        subject = (delivery.poller.name, delivery.name, schedule or "")
        with self._mutex:
            if len(self._since) >= REMEMBERED and subject not in self._since:
                subject = _ANY_OTHER
            is_new = subject not in self._since
            since = self._since.setdefault(subject, now)
        fields: dict[str, Any] = {"wait_s": self._wait.total_seconds()}
        event = Event.UNKNOWN if delivery.binding is None else Event.MISMATCH
        if subject is _ANY_OTHER:
            since, event, fields = delivery.message.sent_at, Event.UNTOLD, {"remembered": REMEMBERED}
        elif schedule is not None:
            event, fields = Event.UNFIRED, {"schedule": schedule}
        if is_new:
            self._events.of(event, delivery, error=error, **fields)
        return since
