"""One run of a handler: what happens before and after it, and what its answer means for the message.

Worker threads, the event loop and tests share all of this; only the call itself differs.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from cqueue.dispatcher.execution import firing, retry
from cqueue.dispatcher.execution.actions import Action, Cancel, Retry, Snooze, misuse
from cqueue.dispatcher.execution.context import Context
from cqueue.dispatcher.execution.delivery import (
    INTERRUPTED,
    RELEASED,
    STOP,
    SUCCEEDED,
    TIME_LIMIT,
    UNDECIDED,
    Delivery,
    Settlement,
    Verb,
)
from cqueue.dispatcher.execution.events import Event, about
from cqueue.dispatcher.execution.interrupt import Interrupted
from cqueue.dispatcher.execution.middleware import Middleware, hooks
from cqueue.dispatcher.execution.telemetry import Telemetry
from cqueue.dispatcher.execution.unknown_tasks import UnknownTasks
from cqueue.runtime.logs import own_frames

NEVER_DIES: Final = timedelta(minutes=10)
"""When a message that cannot die (a dead letter, or without a dead-letter queue) is due again.

10 min: an operator has to act, and a more frequent delivery would only use up handlers.
"""
STUCK_S: Final = 3.0
"""Seconds after an interrupt for which a handler may go on before it is given up."""


class _RunContext(Context):
    """A context that makes its parts when they are read, on any thread: most handlers read few."""

    def __init__(self, delivery: Delivery, log: Any, stopping: threading.Event) -> None:
        self._delivery = delivery
        self._log = log
        self.stopping = stopping

    @property
    def now(self) -> datetime:
        """The cluster's time, in UTC."""
        return self._delivery.poller.queue.now

    def __getattr__(self, name: str) -> Any:
        return self.__dict__.setdefault(name, self._part(name))  # another thread may have made it first

    def _part(self, name: str) -> Any:
        delivery = self._delivery
        match name:
            case "queue":
                return delivery.poller.name
            case "task":
                return delivery.name
            case "attempt":
                return delivery.message.attempt
            case "max_attempts":  # the queue's limit, or the task's lower one
                own = delivery.binding.retry.max_attempts if delivery.binding is not None else None
                return retry.attempt_limit(delivery.poller.max_attempts, own)
            case "log":
                return self._log.bind(**about(delivery))
            case "lost":
                return threading.Event()
        raise AttributeError(f"a context has no {name!r}")


class Runner:
    """Makes contexts, calls hooks, moves schedules on, decides, and has the decision stored.

    Args:
        telemetry: counters and log events.
        middleware: hooks around runs.
        settle: stores a decision.
        unknown_task_wait: see `Options`.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        middleware: Sequence[Middleware],
        settle: Callable[[Delivery, Settlement], None],
        *,
        unknown_task_wait: timedelta = retry.UNKNOWN_TASK_WAIT,
    ) -> None:
        self.telemetry = telemetry
        self.stopping = threading.Event()  # handlers may read it
        self._before: Final = hooks(middleware, "before_run")
        self._after: Final = hooks(middleware, "after_run")
        self._settle = settle
        self._unknown_tasks = UnknownTasks(unknown_task_wait, telemetry)

    # ── before ──

    def ask_schedule(self, delivery: Delivery) -> None:
        """Ask the schedule of a firing, before `begin`. It takes requests to Cassandra."""
        if delivery.binding is None or delivery.error is not None:
            return
        try:
            started = firing.begin(delivery.poller.queue.schedules.store, delivery.message)
        except BaseException as exc:  # noqa: BLE001 - as below
            delivery.error = exc
            return
        if isinstance(started, Cancel | Snooze):
            delivery.override = started
        else:
            delivery.firing = started

    def begin(self, delivery: Delivery) -> Callable[[], Any] | None:
        """Make the run's context, and call the hooks before the run. Return the handler's call, or None to
        call nothing.
        """
        context = delivery.context = _RunContext(delivery, self.telemetry.log, self.stopping)
        if delivery.is_lost:
            delivery.lose()
        self.telemetry.count(delivery.poller.name, "started")
        binding, message = delivery.binding, delivery.message
        if binding is None or delivery.error is not None or delivery.override is not None:
            return None
        try:
            context.firing = delivery.firing
            if binding.timeout is not None:
                context.deadline = context.now + binding.timeout
            for before in self._before:
                before(message, context)
        except BaseException as exc:  # noqa: BLE001 - the application's code must not end a worker
            delivery.error = exc
            return None
        delivery.begun_s = time.monotonic()
        call, tracing = partial(binding.call, message, context), delivery.poller.driver.tracing
        if tracing is None:
            return call
        more = {
            "messaging.cqueue.task": delivery.name,
            "messaging.cqueue.message.delivery_attempt": message.attempt,
        }
        name, is_async = delivery.poller.name, binding.is_async
        delivery.end_span, traced = tracing.run(name, message, call, more, is_async=is_async)
        return traced

    # ── after ──

    def move_on(self, delivery: Delivery, settlement: Settlement) -> Settlement:
        """Move the schedule of a firing on, after `decide`. Return the decision about the firing.

        It takes requests to Cassandra.
        """
        is_void = delivery.is_abandoned and settlement is not SUCCEEDED
        if is_void or delivery.override is not None or settlement is INTERRUPTED:
            return settlement
        try:
            store = delivery.poller.queue.schedules.store
            return firing.finish(store, delivery.message, delivery.firing, settlement)
        except BaseException as exc:  # noqa: BLE001 - as above
            delivery.error = exc
            return self._after_error(delivery, exc)

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """Count and log the decision, and have it stored."""
        if delivery.is_abandoned and settlement is not SUCCEEDED:
            return  # `give_up` has settled the message, and only a success counts after that
        self.telemetry.count(delivery.poller.name, settlement.outcome)
        if settlement is not SUCCEEDED:
            self.telemetry.decided(delivery, settlement)
        _end_span(delivery, settlement)
        self._settle(delivery, settlement)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries that were not started and will not be."""
        for delivery in deliveries:
            self.telemetry.count(delivery.poller.name, RELEASED.outcome)
            self._settle(delivery, RELEASED)
        if deliveries:
            self.telemetry.say(Event.RELEASED, messages=len(deliveries))

    def watch(self, called: Iterable[Delivery], now_s: float) -> list[Delivery]:
        """Interrupt handlers whose time limit has passed; give up, and return, those that do not end.

        Args:
            called: deliveries whose handlers are being called.
            now_s: monotonic seconds.
        """
        given_up = []
        for delivery in called:
            if delivery.told_s is not None and now_s - delivery.told_s >= STUCK_S:
                if self.give_up(delivery, left_to_timeout(delivery), Event.STUCK):
                    given_up.append(delivery)
            elif delivery.is_over(now_s) and delivery.end(TIME_LIMIT, now_s):
                self.telemetry.of(Event.TIMED_OUT, delivery, limit_s=delivery.limit_s)
        return given_up

    def give_up(self, delivery: Delivery, settlement: Settlement, event: Event) -> bool:
        """Stop waiting for a handler that cannot be ended, and settle its message.

        Return False, and do nothing, if the message is settled already: the handler has just ended, or
        another thread has given it up.
        """
        if not delivery.give_up():
            return False
        delivery.lose()
        self.telemetry.count(delivery.poller.name, "interrupted")
        try:
            self._settle(delivery, settlement)
        except Exception as exc:  # noqa: BLE001 - the thread is to be replaced all the same
            self.broken(delivery, exc)
        self.telemetry.of(event, delivery)
        _end_span(delivery, settlement)
        return True

    def broken(self, delivery: Delivery, error: BaseException) -> None:
        """Log an error of the dispatcher itself; give back an undecided message until its timeout."""
        self.telemetry.say(Event.BROKEN, error=error, queue=delivery.poller.name)
        if delivery.settlement is UNDECIDED and delivery.note_end():
            with suppress(Exception):  # that may be what is broken
                self._settle(delivery, left_to_timeout(delivery))
        delivery.is_left = True  # the lease is not extended for it

    # ── decisions ──

    def decide(self, delivery: Delivery) -> Settlement:
        """Call the hooks after the run. Return the decision about the message, apart from its schedule."""
        delivery.note_end()
        if delivery.override is not None:
            return self._of_verdict(delivery, delivery.override)
        is_stopped = delivery.told == STOP and isinstance(delivery.error, Interrupted)
        if not is_stopped and (delivery.error is not None or delivery.answer is not None):
            delivery.error = _error_of(delivery)
        for after in self._after:
            try:
                after(delivery.message, delivery.context, delivery.answer, delivery.error)
            except BaseException as exc:  # noqa: BLE001 - as above
                self.telemetry.of(Event.HOOK_FAILED, delivery, error=exc, hook="after_run")
        if is_stopped:
            delivery.error = None  # no failure of the handler
            return INTERRUPTED
        if delivery.error is not None:
            return self._after_error(delivery, delivery.error)
        return SUCCEEDED if delivery.answer is None else self._of_answer(delivery, delivery.answer)

    def _of_answer(self, delivery: Delivery, answer: Any) -> Settlement:
        if answer is False and (delivery.binding is None or delivery.binding.keeping is None):
            return left_to_timeout(delivery)
        if not isinstance(answer, Action):
            return SUCCEEDED
        try:
            if isinstance(answer, Retry) and delivery.binding is not None:
                answer = retry.answered(delivery.binding.retry, answer, _failure(delivery))
            return self._of_verdict(delivery, answer)
        except Exception as exc:  # noqa: BLE001 - a policy is the application's
            delivery.error = exc
            return self._after_error(delivery, exc)

    def _after_error(self, delivery: Delivery, error: BaseException) -> Settlement:
        """Return what the policy says about an error; if the policy fails, what the default policy says."""
        if (snooze := self._unknown_tasks.snooze_for(delivery, error)) is not None:
            return self._of_verdict(delivery, snooze)
        policy = delivery.binding.retry if delivery.binding is not None else retry.DEFAULT_POLICY
        try:
            action = retry.decide(policy, _failure(delivery), error)
        except Exception as exc:  # noqa: BLE001 - as above
            self.telemetry.of(Event.HOOK_FAILED, delivery, error=exc, hook="retry")
            action = retry.decide(retry.DEFAULT_POLICY, _failure(delivery), error)
        return self._of_verdict(delivery, action, error)

    def _of_verdict(
        self, delivery: Delivery, action: Action, error: BaseException | None = None
    ) -> Settlement:
        if isinstance(action, Snooze):
            return Settlement(Verb.SNOOZE, "snoozed", action.delay)
        if isinstance(action, Retry):
            return Settlement(Verb.NACK, "retried", retry.resolved_delay(action, _failure(delivery)))
        reason, told = action.reason, _for_logs(delivery, action.reason, error)
        if isinstance(action, Cancel):
            return Settlement(Verb.ACK, "cancelled", reason=reason, log_reason=told)
        if delivery.poller.is_dead_letter:
            return Settlement(Verb.NACK, "retried", NEVER_DIES, reason=reason, log_reason=told)
        trace = trace_of(error) if error is not None else ""
        return Settlement(Verb.DEAD, "dead", reason=reason, traceback=trace, log_reason=told)


def _error_of(delivery: Delivery) -> BaseException | None:
    """Return the error of a run, also of an interrupted run, or of an answer that shows that nothing was
    done.
    """
    if isinstance(delivery.error, Interrupted) and delivery.told:
        limit = delivery.binding.timeout if delivery.binding is not None else None
        what = "was interrupted" if limit is None else f"ran longer than its timeout of {limit}"
        error = TimeoutError(f"{delivery.name!r} {what}")
        error.__cause__ = delivery.error
        delivery.is_own_error = True
        return error
    if delivery.error is None and (what := misuse(delivery.answer)):
        delivery.is_own_error = True
        return TypeError(f"handler {delivery.name!r} returned {what}")
    return delivery.error


def _end_span(delivery: Delivery, settlement: Settlement) -> None:
    """End the span of a run, if there is one that has not ended."""
    if (end := delivery.end_span) is not None:
        delivery.end_span, error = None, delivery.error
        end(error, None if error is None else delivery.said(error), cqueue_outcome=settlement.outcome)


def _for_logs(delivery: Delivery, reason: str, error: BaseException | None) -> str:
    """Return a reason with the error as logs may say it, in place of the error's own words."""
    if error is None or delivery.logs_errors:
        return ""
    words = retry.reason_of(error, "")
    return f"{reason.removesuffix(words)}: {delivery.said(error)}" if reason.endswith(words) else ""


def left_to_timeout(delivery: Delivery) -> Settlement:
    """Return the decision to deliver the message again when its timeout would have passed."""
    left_ms = max(0, delivery.message.lease.due_ms - delivery.poller.now_ms())
    return Settlement(Verb.NACK, "left", timedelta(milliseconds=left_ms))


def _failure(delivery: Delivery) -> retry.Failure:
    """Return the failed attempt; its age counts from when the message was due, or sent again."""
    message, poller = delivery.message, delivery.poller
    age = poller.queue.now - max(message.due, message.sent_at)
    return retry.Failure(message.attempt, poller.max_attempts, max(0.0, age.total_seconds()))


def trace_of(error: BaseException) -> str:
    """Return the traceback as text, from where the dispatcher called the handler."""
    return "".join(traceback.format_exception(type(error), error, own_frames(error)))
