"""One run of a handler: what comes before it, what after it, and what its answer means for the message.

Threads and the event loop share all of it but the call itself.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher import retry
from cqueue.dispatcher.context import Context
from cqueue.dispatcher.delivery import SUCCEEDED, Delivery, Settlement, Verb
from cqueue.dispatcher.deployment import Waiting
from cqueue.dispatcher.events import Event, Events, MessageLog
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.tally import Tallies
from cqueue.dispatcher.verdicts import Answer, Cancel, Dead, Retry, Snooze, Verdict, slip
from cqueue.logs import own_frames

if TYPE_CHECKING:
    from cqueue.dispatcher.firing import ScheduleStep

NEVER_DIES: Final = timedelta(minutes=10)
"""When what cannot die (a dead letter, or a message whose dead-letter queue is gone) comes again."""
INTERRUPTED: Final = Settlement(Verb.NACK, "interrupted", reason="the dispatcher stopped")
"""Ended at a stop: due again at once, and the attempt counts."""
_TRACE: Final = "\nTraceback (most recent call last)"
_VERDICTS: Final = (Retry, Snooze, Cancel, Dead)


class _RunContext(Context):
    """A context whose parts are made when they are asked for, on any thread: most handlers ask for few."""

    def __init__(self, delivery: Delivery, log: Any, stopping: threading.Event) -> None:
        self._delivery = delivery
        self._log = log
        self.stopping = stopping

    @property
    def now(self) -> datetime:
        """The cluster's time."""
        return self._delivery.lane.queue.now

    def __getattr__(self, name: str) -> Any:
        return self.__dict__.setdefault(name, self._part(name))  # another thread may have been quicker

    def _part(self, name: str) -> Any:
        match name:
            case "queue":
                return self._delivery.lane.name
            case "task":
                return self._delivery.name
            case "attempt":
                return self._delivery.message.attempt
            case "max_attempts":
                return _attempts(self._delivery)
            case "log":
                return MessageLog(self._log, self._delivery)
            case "lost":
                return threading.Event()
        raise AttributeError(f"a context has no {name!r}")


def _attempts(delivery: Delivery) -> int:
    """The last attempt's number: the queue's, or the task's own."""
    binding, most = delivery.binding, delivery.lane.max_attempts
    own = binding.retry.max_attempts if binding is not None else None
    return most if own is None else retry.attempt_limit(most, own)


@dataclass(frozen=True, slots=True)
class Plant:
    """What threads and the event loop run handlers with.

    Attributes:
        handover: gives them deliveries.
        runner: surrounds each handler.
        settle: takes what was decided.
        backlog: messages that may wait to be started, however quick handlers are.
        clock: monotonic seconds.
    """

    handover: Handover
    runner: Runner
    settle: Callable[[Delivery, Settlement], None]
    events: Events
    tallies: Tallies
    backlog: int
    clock: Callable[[], float] = time.monotonic


class Runner:
    """Makes contexts, calls hooks, moves schedules on, and decides."""

    def __init__(
        self,
        events: Events,
        middleware: Sequence[Middleware],
        schedules: ScheduleStep,
        stopping: threading.Event,
        *,
        tallies: Tallies,
        unknown_task_wait: timedelta = retry.UNKNOWN_TASK_WAIT,
    ) -> None:
        self._events = events
        self._before: Final = _overriding(middleware, "before_run")
        self._after: Final = _overriding(middleware, "after_run")[::-1]
        self._schedules = schedules
        self._stopping = stopping
        self._tallies = tallies
        self._waiting = Waiting(unknown_task_wait, events)

    # ── before ──

    def prepare(self, delivery: Delivery) -> Context:
        """The context; no code of others is called."""
        context = delivery.context = _RunContext(delivery, self._events.log, self._stopping)
        if delivery.is_lost:
            context.lost.set()
        binding = delivery.binding
        if binding is not None and binding.timeout is not None:
            context.deadline = datetime.now(UTC) + binding.timeout
        if delivery.message.trigger is not None:
            delivery.step = self._schedules
        return context

    def enter(self, delivery: Delivery, context: Context) -> bool:
        """What comes before the handler: its schedule, then hooks; whether its turn comes. Never raises."""
        if delivery.error is not None:
            return False
        message = delivery.message
        try:
            if delivery.step is not None:
                delivery.early = delivery.step.before(message, context)
                if delivery.early is not None:
                    return False
            for before in self._before:
                before(message, context)
        except BaseException as exc:  # noqa: BLE001 - others' code; nothing of it may end a worker
            delivery.error = exc
            return False
        return True

    # ── after ──

    def leave(
        self, delivery: Delivery, context: Context, answer: Any, error: BaseException | None
    ) -> Settlement:
        """What becomes of the message, once its handler has answered or failed. Never raises."""
        if delivery.early is not None:
            return self._counted(delivery, self._of_verdict(delivery, delivery.early), None)
        error = error or delivery.error
        is_verdict = answer is not None and isinstance(answer, _VERDICTS)
        if not is_verdict and answer is not None and (what := slip(answer)):
            error = TypeError(f"handler {delivery.name!r} returned {what}")
        if self._after:
            self._hooks(delivery, context, answer, error)
        settlement = SUCCEEDED
        if error is not None or is_verdict or answer is False:
            settlement, error = self._decide(delivery, answer, error)
        if delivery.step is not None:
            try:
                settlement = delivery.step.after(delivery.message, context, settlement)
            except BaseException as exc:  # noqa: BLE001 - as above
                error = exc
                settlement = self._after_error(delivery, exc)
        return self._counted(delivery, settlement, error)

    def stop(self, delivery: Delivery, context: Context, error: BaseException) -> Settlement:
        """What becomes of a message whose handler was ended because the dispatcher stops. Never raises."""
        self._hooks(delivery, context, None, error)
        return self._counted(delivery, INTERRUPTED, None)

    def _hooks(self, delivery: Delivery, context: Context, answer: Any, error: BaseException | None) -> None:
        for after in self._after:
            try:
                after(delivery.message, context, answer, error)
            except BaseException as exc:  # noqa: BLE001 - as above
                self._events.of(Event.HOOK_FAILED, delivery, error=exc, hook="after_run")

    def _decide(
        self, delivery: Delivery, answer: Answer, error: BaseException | None
    ) -> tuple[Settlement, BaseException | None]:
        if error is not None:
            return self._after_error(delivery, error), error
        try:
            return self._of_answer(delivery, answer), None
        except Exception as exc:  # noqa: BLE001 - a policy is the application's
            return self._after_error(delivery, exc), exc

    def _of_answer(self, delivery: Delivery, answer: Answer) -> Settlement:
        if isinstance(answer, Retry) and delivery.binding is not None:
            answer = retry.answered(delivery.binding.retry, answer, _failure(delivery))
        if answer is False:
            return left_to_timeout(delivery)
        return self._of_verdict(delivery, answer)  # type: ignore[arg-type]

    def _after_error(self, delivery: Delivery, error: BaseException) -> Settlement:
        """What the policy says about an error; what it cannot say, the default one does."""
        binding = delivery.binding
        if (snooze := self._waiting.verdict(delivery, error)) is not None:
            return self._of_verdict(delivery, snooze)
        for policy in (binding.retry if binding is not None else retry.DEFAULT_POLICY, retry.DEFAULT_POLICY):
            try:
                verdict = retry.decide(policy, _failure(delivery), error)
            except Exception as exc:  # noqa: BLE001 - as above
                self._events.of(Event.HOOK_FAILED, delivery, error=exc, hook="retry")
            else:
                if isinstance(verdict, Dead):  # its reason ends in a traceback, too, but in less of it
                    dead = Dead(verdict.reason.partition(_TRACE)[0])
                    return self._of_verdict(delivery, dead, trace_of(error))
                return self._of_verdict(delivery, verdict)
        return Settlement(Verb.NACK, "retried", timedelta(minutes=1))

    def _of_verdict(self, delivery: Delivery, verdict: Verdict, trace: str = "") -> Settlement:
        match verdict:
            case Snooze(delay):
                return Settlement(Verb.SNOOZE, "snoozed", delay)
            case Cancel(reason):
                return Settlement(Verb.ACK, "cancelled", reason=reason)
            case Dead(reason):
                if delivery.lane.is_dead_letter:
                    return Settlement(Verb.NACK, "retried", NEVER_DIES, reason=reason)
                return Settlement(Verb.DEAD, "dead", reason=reason, traceback=trace)
        return Settlement(Verb.NACK, "retried", retry.resolved_delay(verdict, _failure(delivery)))

    def _counted(self, delivery: Delivery, settlement: Settlement, error: BaseException | None) -> Settlement:
        """Count and log it."""
        self._tallies.add(delivery.lane.name, settlement.outcome)
        if settlement is SUCCEEDED:
            return settlement
        if (event := _EVENTS.get(settlement.outcome)) is not None:
            fields: dict[str, Any] = (
                {"reason": settlement.reason.partition("\n")[0]} if settlement.reason else {}
            )
            if error is not None:
                fields["error"] = error
            if settlement.verb in {Verb.NACK, Verb.SNOOZE}:
                fields["delay_s"] = settlement.delay.total_seconds()
            self._events.of(event, delivery, **fields)
        return settlement


def left_to_timeout(delivery: Delivery) -> Settlement:
    """It comes again when its timeout would have passed."""
    left_ms = max(0, delivery.message.lease.due_ms - delivery.lane.now_ms())
    return Settlement(Verb.NACK, "left", timedelta(milliseconds=left_ms))


def _failure(delivery: Delivery) -> retry.Failure:
    """The attempt; its message has been due since then, or since it was sent again."""
    message, lane = delivery.message, delivery.lane
    age = lane.queue.now - max(message.due, message.sent_at)
    return retry.Failure(message.attempt, lane.max_attempts, max(0.0, age.total_seconds()))


def trace_of(error: BaseException) -> str:
    """The traceback, from where the dispatcher called the handler on."""
    return "".join(traceback.format_exception(type(error), error, own_frames(error)))


_EVENTS: Final = {
    "retried": Event.RETRIED,
    "dead": Event.DEAD,
    "cancelled": Event.CANCELLED,
    "snoozed": Event.SNOOZED,
    "left": Event.LEFT,
    "interrupted": Event.INTERRUPTED,
}


def _overriding(middleware: Sequence[Middleware], name: str) -> list[Callable[..., Any]]:
    """The hooks of that name that do something: most middlewares need not be called most of the time."""
    base = getattr(Middleware, name)
    return [getattr(one, name) for one in middleware if getattr(type(one), name, None) is not base]
