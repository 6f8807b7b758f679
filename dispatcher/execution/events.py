"""The log events of a dispatcher: stable names with fields, built in one place, never with a payload.

If structlog is not configured, lines go to the standard library's logger, so that a program that only uses
the dispatcher prints nothing to standard output.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

from cqueue.errors import LASTING
from cqueue.runtime import logs
from cqueue.runtime.logs import describe

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.delivery import Delivery

REPEAT_S: Final = 30.0
"""Seconds after which a continuing failure is logged again."""
REPEAT_LASTING_S: Final = 600.0
"""The same for a failure that lasts until an operator mends something: the operator has been told."""
LASTING_TOLD: Final = 10
"""Most different texts of one failure that are logged at once; each of many damaged rows may bring its own.
"""
STUCK_FAILURES: Final = 3
"""Failures in a row, without a success between, before a queue counts as stuck."""
STUCK_S: Final = 5.0
"""Seconds of failures before a queue counts as stuck: a single node that restarts fails for less."""

OnEvent = Callable[[str, Mapping[str, Any]], None]
"""Called with the name and the fields of an event."""


class Event(StrEnum):
    """Names of events, each with the level at which it is logged."""

    level: str

    def __new__(cls, name: str, level: str = "warning") -> Self:
        """Make a member that equals its name."""
        event = str.__new__(cls, name)
        event._value_ = name
        event.level = level
        return event

    STARTED = "dispatcher_started", "info"
    STOPPING = "dispatcher_stopping", "info"
    STOPPED = "dispatcher_stopped", "info"
    RETRIED = "message_retried"
    DEAD = "message_dead", "error"
    CANCELLED = "message_cancelled", "info"
    SNOOZED = "message_snoozed", "debug"
    LEFT = "message_left", "debug"
    INTERRUPTED = "message_interrupted"
    LOST = "message_lost"
    TIMED_OUT = "handler_timed_out"
    STUCK = "handler_stuck"
    ABANDONED = "handler_abandoned"
    RELEASED = "messages_released", "info"
    SETTLE_FAILED = "settle_failed"
    SETTLE_RESUMED = "settle_resumed", "info"
    RECEIVE_FAILED = "receive_failed"
    RECEIVE_RESUMED = "receive_resumed", "info"
    EXTEND_FAILED = "extend_failed"
    EXTEND_RESUMED = "extend_resumed", "info"
    LOOP_BLOCKED = "loop_blocked"
    LOOP_RESUMED = "loop_resumed", "info"
    UNKNOWN = "task_unknown"
    MISMATCH = "arguments_unknown"
    UNFIRED = "schedule_unfired"
    UNTOLD = "unknown_untold"
    HOOK_FAILED = "middleware_failed", "error"
    RESULT_UNKEPT = "result_not_kept", "error"
    HISTORY_LOST = "queue_history_lost"
    HISTORY_RESUMED = "queue_history_resumed", "info"
    BROKEN = "dispatcher_error", "error"


_FAILED: Final = {Event.RECEIVE_FAILED, Event.SETTLE_FAILED, Event.EXTEND_FAILED, Event.HISTORY_LOST}
"""Events that are errors if what failed lasts until an operator mends something."""
_TRACED: Final = {Event.RETRIED, Event.SNOOZED}
"""Events with a traceback if tracebacks are asked for; errors always have one."""


class Events:
    """Logs what happens in a dispatcher, and tells the program's `on_event`."""

    def __init__(self, on_event: OnEvent | None = None) -> None:
        self.log = logs.logger(logs.DISPATCHER)
        self._on_event = on_event

    def say(
        self,
        event: Event,
        *,
        error: BaseException | None = None,
        said: str | None = None,
        texts: bool = False,
        **fields: Any,
    ) -> None:
        """Log one event; with the traceback of `error` if the event is final, or tracebacks are asked for.

        Args:
            event: the event.
            error: what failed.
            said: the error in one line; None: its class, and its text if the class is the library's.
            texts: the traceback may have the texts of all errors.
            fields: further fields.
        """
        is_final = event.level == "error"
        level = "error" if event in _FAILED and isinstance(error, LASTING) else event.level
        if event is Event.STOPPED and fields["unsettled"]:  # work that is done will be done again
            level = "warning"
        trace: dict[str, Any] = {}
        if error is not None:
            fields["error"] = describe(error) if said is None else said
            if is_final or event in _TRACED:
                trace = logs.trace(error, is_final=is_final, said=said, texts=texts)
        with suppress(Exception):  # a full disk under the log must not lose a message
            getattr(self.log, level)(event.value, **fields, **trace)
        if self._on_event is not None:
            with suppress(Exception):
                self._on_event(event.value, fields)

    def of(self, event: Event, delivery: Delivery, **fields: Any) -> None:
        """Log one event of a message; an error as `Delivery.said` says it."""
        error = fields.get("error")
        if error is not None:
            fields |= {"said": delivery.said(error), "texts": delivery.logs_errors}
        self.say(event, **about(delivery), **fields)


def about(delivery: Delivery) -> dict[str, Any]:
    """Return the fields that identify a message."""
    message = delivery.message
    return {
        "queue": delivery.poller.name,
        "task": delivery.name,
        "message_id": str(message.id),
        "attempt": message.attempt,
    }


@dataclass(slots=True)
class Failing:
    """A failure that continues.

    Attributes:
        since_s: monotonic time of the first failure.
        error: the last error.
        failures: failures since the first.
        told_s: when a failure was logged last.
        untold: failures since then.
        told: errors logged since `told` was last cleared: a lasting error by its text, which says what to
            mend, any other by its class.
    """

    since_s: float
    error: BaseException
    failures: int = 0
    told_s: float = float("-inf")
    untold: int = 0
    told: set[str] = field(default_factory=set)


class Trouble:
    """Logs a continuing failure once, again after a while, and when it is over."""

    def __init__(
        self, events: Events, failed: Event, resumed: Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._events = events
        self._failed, self._resumed = failed, resumed
        self._clock = clock
        self._telling = threading.Lock()
        self._failing: dict[str, Failing] = {}  # by subject: a queue, a verb or the event loop

    def failed(
        self, subject: str, error: BaseException, *, event: Event | None = None, **fields: Any
    ) -> None:
        """Note a failure of the subject; another kind of error is logged at once. `event` replaces the usual
        one.
        """
        now_s = self._clock()
        is_lasting = isinstance(error, LASTING)
        what = describe(error) if is_lasting else type(error).__name__
        with self._telling:  # two threads that fail at once tell it once
            known = self._failing.setdefault(subject, Failing(now_s, error))
            known.error = error
            known.failures += 1
            known.untold += 1
            if now_s - known.told_s >= (REPEAT_LASTING_S if is_lasting else REPEAT_S):
                known.told.clear()
            if what in known.told or len(known.told) >= LASTING_TOLD:
                return
            known.told.add(what)
            failures, known.told_s, known.untold = known.untold, now_s, 0
        self._events.say(event or self._failed, error=error, failures=failures, **fields)

    def succeeded(self, subject: str, **fields: Any) -> None:
        """Note a success of the subject, and log the end of a failure."""
        if self._failing and self._failing.pop(subject, None) is not None:
            self._events.say(self._resumed, **fields)

    @property
    def subjects(self) -> tuple[str, ...]:
        """Subjects that failed the last time."""
        return tuple(self._failing.copy())

    @property
    def stuck(self) -> dict[str, str]:
        """Subjects that have failed several times over some seconds without a success, with the error."""
        before_s = self._clock() - STUCK_S
        return {
            subject: describe(one.error)
            for subject, one in self._failing.copy().items()
            if one.failures >= STUCK_FAILURES and one.since_s <= before_s
        }
