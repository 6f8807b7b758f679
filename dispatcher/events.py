"""What a dispatcher says: stable names with fields, made in one place, never with a payload.

Where structlog is not configured, lines go to the standard library's logger, so that a program that
only uses the dispatcher finds nothing on its standard output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from cqueue import logs
from cqueue.errors import LASTING

if TYPE_CHECKING:
    from cqueue.dispatcher.delivery import Delivery

LOGGER: Final = "cqueue.dispatcher"
REPEAT_S: Final = 30.0
"""A trouble that goes on is told again after so long."""
REPEAT_LASTING_S: Final = 600.0
"""The same of one that lasts until an operator mends something: he has been told."""
LASTING_TOLD: Final = 10
"""So many different texts of one trouble are told at once; there may be one for each of many damaged rows."""
STUCK_FAILURES: Final = 3
STUCK_S: Final = 5.0
"""So many failures in so many seconds are no single node that restarts."""

OnEvent = Callable[[str, Mapping[str, Any]], None]


class Event(StrEnum):
    """The names."""

    STARTED = "dispatcher_started"
    STOPPING = "dispatcher_stopping"
    STOPPED = "dispatcher_stopped"
    RETRIED = "message_retried"
    DEAD = "message_dead"
    CANCELLED = "message_cancelled"
    SNOOZED = "message_snoozed"
    LEFT = "message_left"
    INTERRUPTED = "message_interrupted"
    LOST = "message_lost"
    TIMED_OUT = "handler_timed_out"
    STUCK = "handler_stuck"
    ABANDONED = "handler_abandoned"
    RELEASED = "messages_released"
    SETTLE_FAILED = "settle_failed"
    SETTLE_RESUMED = "settle_resumed"
    RECEIVE_FAILED = "receive_failed"
    RECEIVE_RESUMED = "receive_resumed"
    EXTEND_FAILED = "extend_failed"
    EXTEND_RESUMED = "extend_resumed"
    LOOP_BLOCKED = "loop_blocked"
    LOOP_RESUMED = "loop_resumed"
    UNKNOWN = "task_unknown"
    MISMATCH = "arguments_unknown"
    UNFIRED = "schedule_unfired"
    UNTOLD = "unknown_untold"
    HOOK_FAILED = "middleware_failed"
    BROKEN = "dispatcher_error"


_DEBUG: Final = {Event.SNOOZED, Event.LEFT}
_INFO: Final = {
    Event.STARTED,
    Event.STOPPING,
    Event.STOPPED,
    Event.RELEASED,
    Event.CANCELLED,
    Event.SETTLE_RESUMED,
    Event.EXTEND_RESUMED,
    Event.LOOP_RESUMED,
    Event.RECEIVE_RESUMED,
}
_FAILED: Final = {Event.RECEIVE_FAILED, Event.SETTLE_FAILED, Event.EXTEND_FAILED}
_FINAL: Final = {Event.DEAD, Event.BROKEN, Event.HOOK_FAILED}
_TRACED: Final = {Event.RETRIED, Event.SNOOZED}


def _level(event: Event, error: BaseException | None) -> str:
    if event in _FINAL or (event in _FAILED and isinstance(error, LASTING)):
        return "error"
    return "debug" if event in _DEBUG else "info" if event in _INFO else "warning"


def logger() -> Any:
    """A structlog logger of this package."""
    return logs.logger(LOGGER)


class Events:
    """Where a dispatcher says what happens."""

    def __init__(self, on_event: OnEvent | None = None) -> None:
        self.log = logger()
        self._on_event = on_event

    def say(self, event: Event, *, error: BaseException | None = None, **fields: Any) -> None:
        """Log one event. error: with its traceback where that is final, or where it is asked for."""
        trace: dict[str, Any] = {}
        if error is not None:
            fields["error"] = describe(error)
            if event in _TRACED or event in _FINAL:
                trace = logs.trace(error, is_final=event in _FINAL)
        with suppress(Exception):  # a full disk under the log must not lose a message
            getattr(self.log, _level(event, error))(event.value, **fields, **trace)
        if self._on_event is not None:
            with suppress(Exception):
                self._on_event(event.value, fields)

    def of(self, event: Event, delivery: Delivery, **fields: Any) -> None:
        """Log one event of a message."""
        self.say(event, **about(delivery), **fields)


def about(delivery: Delivery) -> dict[str, Any]:
    """The fields that say which message it is."""
    message = delivery.message
    return {
        "queue": delivery.lane.name,
        "task": delivery.name,
        "message_id": str(message.id),
        "attempt": message.attempt,
    }


def describe(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


class MessageLog:
    """A logger that carries which message it is about, bound only if it is used."""

    _bound: Any = None

    def __init__(self, log: Any, delivery: Delivery) -> None:
        self._log = log
        self._delivery = delivery

    def __getattr__(self, name: str) -> Any:
        if self._bound is None:
            self._bound = self._log.bind(**about(self._delivery))
        return getattr(self._bound, name)


@dataclass(slots=True)
class Failing:
    """What goes on failing. since_s: the first failure; untold: failures that were not told of.

    told: what errors were told of since all was told again: a lasting one by its text, which says what to
        mend, any other by its class.
    """

    since_s: float
    error: BaseException
    failures: int = 0
    told_s: float = float("-inf")
    untold: int = 0
    told: set[str] = field(default_factory=set)


class Trouble:
    """Tells of something that goes on failing once, again after a while, and when it is over."""

    def __init__(
        self, events: Events, failed: Event, resumed: Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._events = events
        self._failed, self._resumed = failed, resumed
        self._clock = clock
        self._failing: dict[str, Failing] = {}  # by subject

    def failed(
        self, subject: str, error: BaseException, *, event: Event | None = None, **fields: Any
    ) -> None:
        """It failed. Another error is told of at once. event: what to tell, if not the usual."""
        now_s = self._clock()
        known = self._failing.setdefault(subject, Failing(now_s, error))
        known.error = error
        known.failures += 1
        known.untold += 1
        is_lasting = isinstance(error, LASTING)
        what = describe(error) if is_lasting else type(error).__name__
        if now_s - known.told_s >= (REPEAT_LASTING_S if is_lasting else REPEAT_S):
            known.told.clear()
        if what not in known.told and len(known.told) < LASTING_TOLD:
            self._events.say(event or self._failed, error=error, failures=known.untold, **fields)
            known.told.add(what)
            known.told_s, known.untold = now_s, 0

    def succeeded(self, subject: str, **fields: Any) -> None:
        """It went well."""
        if self._failing and self._failing.pop(subject, None) is not None:
            self._events.say(self._resumed, **fields)

    @property
    def subjects(self) -> tuple[str, ...]:
        """What failed the last time."""
        return tuple(self._failing.copy())

    @property
    def stuck(self) -> dict[str, str]:
        """What has failed for a while, several times without a success between; with the last error."""
        before_s = self._clock() - STUCK_S
        return {
            subject: describe(one.error)
            for subject, one in self._failing.copy().items()
            if one.failures >= STUCK_FAILURES and one.since_s <= before_s
        }
