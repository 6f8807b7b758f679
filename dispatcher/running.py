"""One run of a handler: what comes before it, what after it, and what its answer means for the message.

Threads, the event loop and tests share all of it but the call itself.
"""

from __future__ import annotations

import threading
import time
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cqueue.dispatcher import retry
from cqueue.dispatcher.context import Context
from cqueue.dispatcher.delivery import INTERRUPTED, RELEASED, STOP, SUCCEEDED, Delivery, Settlement, Verb
from cqueue.dispatcher.deployment import Waiting
from cqueue.dispatcher.events import Event, MessageLog
from cqueue.dispatcher.interrupt import Interrupted
from cqueue.dispatcher.middleware import Middleware, hooks
from cqueue.dispatcher.tally import Account
from cqueue.dispatcher.verdicts import Cancel, Dead, Retry, Snooze, Verdict, slip
from cqueue.logs import own_frames

if TYPE_CHECKING:
    from cqueue.dispatcher.firing import ScheduleStep

NEVER_DIES: Final = timedelta(minutes=10)
"""When what cannot die (a dead letter, or a message whose dead-letter queue is gone) comes again."""
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


class Runner:
    """Makes contexts, calls hooks, moves schedules on, decides, and has it settled.

    Args:
        settle: takes what was decided.
        unknown_task_wait: see `Options`.
    """

    def __init__(
        self,
        account: Account,
        middleware: Sequence[Middleware],
        schedules: ScheduleStep,
        settle: Callable[[Delivery, Settlement], None],
        *,
        unknown_task_wait: timedelta = retry.UNKNOWN_TASK_WAIT,
    ) -> None:
        self.account = account
        self.stopping = threading.Event()  # handlers may look at it
        self._before: Final = hooks(middleware, "before_run")
        self._after: Final = hooks(middleware, "after_run")
        self._schedules = schedules
        self._settle = settle
        self._waiting = Waiting(unknown_task_wait, account)

    # ── before ──

    def begin(self, delivery: Delivery) -> Callable[[], Any] | None:
        """What comes before the handler: its schedule, then hooks. What to call then; None: nothing."""
        context = delivery.context = _RunContext(delivery, self.account.log, self.stopping)
        if delivery.is_lost:
            context.lost.set()
        self.account.count(delivery.lane.name, "started")
        binding, message = delivery.binding, delivery.message
        if message.trigger is not None:
            delivery.is_firing = True
        if binding is None or delivery.error is not None:
            return None
        if binding.timeout is not None:
            context.deadline = datetime.now(UTC) + binding.timeout
        try:
            if delivery.is_firing:
                delivery.early = self._schedules.before(message, context)
                if delivery.early is not None:
                    return None
            for before in self._before:
                before(message, context)
        except BaseException as exc:  # noqa: BLE001 - others' code; nothing of it may end a worker
            delivery.error = exc
            return None
        delivery.begun_s = time.monotonic()
        return partial(binding.call, message, context)

    # ── after ──

    def end(self, delivery: Delivery) -> None:
        """What comes after the handler has answered or failed, until it is on its way to the queue."""
        settlement, context = self._decided(delivery), delivery.context
        if delivery.is_firing and context and delivery.early is None and settlement is not INTERRUPTED:
            settlement = self._moved_on(delivery, context, settlement)
        self.account.settled(delivery, settlement)
        if settlement.verb is Verb.ACK or not delivery.is_abandoned:  # else it was settled long ago
            self._settle(delivery, settlement)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """They were not started, and are not to be."""
        for delivery in deliveries:
            self.account.count(delivery.lane.name, RELEASED.outcome)
            self._settle(delivery, RELEASED)
        if deliveries:
            self.account.say(Event.RELEASED, messages=len(deliveries))

    def give_up(self, delivery: Delivery, settlement: Settlement, event: Event) -> None:
        """Wait no more for a handler that cannot be ended."""
        delivery.is_abandoned = True
        delivery.lose()
        self.account.count(delivery.lane.name, "interrupted")
        self._settle(delivery, settlement)
        self.account.of(event, delivery)

    # ── what becomes of a message ──

    def _decided(self, delivery: Delivery) -> Settlement:
        """What becomes of the message, its schedule aside."""
        if delivery.early is not None:
            return self._of_verdict(delivery, delivery.early)
        is_stopped = delivery.told == STOP and isinstance(delivery.error, Interrupted | CancelledError)
        if not is_stopped and (delivery.error is not None or delivery.answer is not None):
            delivery.error = _error_of(delivery)
        for after in self._after:
            try:
                after(delivery.message, delivery.context, delivery.answer, delivery.error)
            except BaseException as exc:  # noqa: BLE001 - as above
                self.account.of(Event.HOOK_FAILED, delivery, error=exc, hook="after_run")
        if is_stopped:
            delivery.error = None  # no failure of the handler
            return INTERRUPTED
        if delivery.error is not None:
            return self._after_error(delivery, delivery.error)
        return self._of_answer(delivery, delivery.answer)

    def _moved_on(self, delivery: Delivery, context: Context, settlement: Settlement) -> Settlement:
        """Move the schedule on; what becomes of the firing then."""
        try:
            return self._schedules.after(delivery.message, context, settlement)
        except BaseException as exc:  # noqa: BLE001 - as above
            delivery.error = exc
            return self._after_error(delivery, exc)

    def _of_answer(self, delivery: Delivery, answer: Any) -> Settlement:
        if answer is False:
            return left_to_timeout(delivery)
        if answer is None or not isinstance(answer, _VERDICTS):
            return SUCCEEDED
        try:
            if isinstance(answer, Retry) and delivery.binding is not None:
                answer = retry.answered(delivery.binding.retry, answer, _failure(delivery))
            return self._of_verdict(delivery, answer)
        except Exception as exc:  # noqa: BLE001 - a policy is the application's
            delivery.error = exc
            return self._after_error(delivery, exc)

    def _after_error(self, delivery: Delivery, error: BaseException) -> Settlement:
        """What the policy says about an error; what it cannot say, the default one does."""
        if (snooze := self._waiting.verdict(delivery, error)) is not None:
            return self._of_verdict(delivery, snooze)
        policy = delivery.binding.retry if delivery.binding is not None else retry.DEFAULT_POLICY
        try:
            verdict = retry.decide(policy, _failure(delivery), error)
        except Exception as exc:  # noqa: BLE001 - as above
            self.account.of(Event.HOOK_FAILED, delivery, error=exc, hook="retry")
            verdict = retry.decide(retry.DEFAULT_POLICY, _failure(delivery), error)
        if isinstance(verdict, Dead):  # its reason ends in a traceback, too, but in less of it
            verdict = Dead(verdict.reason.partition(_TRACE)[0])
        return self._of_verdict(delivery, verdict, error)

    def _of_verdict(
        self, delivery: Delivery, verdict: Verdict, error: BaseException | None = None
    ) -> Settlement:
        match verdict:
            case Snooze(delay):
                return Settlement(Verb.SNOOZE, "snoozed", delay)
            case Cancel(reason):
                return Settlement(Verb.ACK, "cancelled", reason=reason)
            case Dead(reason) if delivery.lane.is_dead_letter:
                return Settlement(Verb.NACK, "retried", NEVER_DIES, reason=reason)
            case Dead(reason):
                trace = trace_of(error) if error is not None else ""
                return Settlement(Verb.DEAD, "dead", reason=reason, traceback=trace)
        return Settlement(Verb.NACK, "retried", retry.resolved_delay(verdict, _failure(delivery)))


def _error_of(delivery: Delivery) -> BaseException | None:
    """The error of a run, also of one that was ended, or whose answer shows that nothing was done."""
    if isinstance(delivery.error, Interrupted) and delivery.told:
        limit = delivery.binding.timeout if delivery.binding is not None else None
        error = TimeoutError(f"{delivery.name!r} ran longer than its timeout of {limit}")
        error.__cause__ = delivery.error
        return error
    if delivery.error is None and (what := slip(delivery.answer)):
        return TypeError(f"handler {delivery.name!r} returned {what}")
    return delivery.error


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
