"""What follows a handler's failure: pure functions of policy, attempt, age and error.

Waits and stops are tenacity's objects, called with a call state made for one question. tenacity's own loop
does not fit, because processes, not a sleep, lie between two attempts of a message. The answers of an
application's policy are kept within bounds, because a wait of NaN seconds, or one that raises, must not lose
a message.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from tenacity import RetryCallState, Retrying
from tenacity.stop import stop_after_attempt
from tenacity.wait import wait_random_exponential

from cqueue.dispatcher.execution.actions import LONGEST_DELAY, Action, Dead, Retry, Snooze
from cqueue.runtime.logs import DISPATCHER, describe, logger, trace
from cqueue.runtime.texts import storable

DEFAULT_WAIT: Final = wait_random_exponential(multiplier=1, min=1, max=600)
"""1 s to 10 min: random below a limit that doubles, so that messages that failed together spread.

`wait_exponential_jitter` would hardly spread them: it adds one second at most, however long the wait.
"""
DEFAULT_POLICY: Final = Retry(wait=DEFAULT_WAIT)
"""Policy of tasks and handlers that have none."""
UNKNOWN_TASK_WAIT: Final = timedelta(hours=1)
"""How long a message waits, by default, for a version that can run it: longer than a deployment takes."""
MAX_WORDS = 500
"""Characters of an error's own text in a reason: a dead letter and a log line carry it."""

_LONGEST_S = LONGEST_DELAY.total_seconds()
_TRACE: Final = "\nTraceback (most recent call last)"
"""Where a traceback begins in the text of an error, such as one from another process."""
_RETRYING = Retrying()


class RetryAsked(Exception):
    """The error in a policy's call state when a handler returned `Retry()` and raised nothing."""


# ── Decisions ──


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt.

    Attributes:
        attempt: number of the attempt, from 1.
        max_attempts: the queue's limit; 0 is no limit. The smaller of this and the policy's limit counts.
        first_seen_s: seconds since the message was first due, for `stop_after_delay` and the like.
        error: what the handler raised; None if it returned `Retry(...)`.
    """

    attempt: int
    max_attempts: int = 0
    first_seen_s: float = 0.0
    error: BaseException | None = None


def decide(policy: Retry, failure: Failure, error: BaseException) -> Action:
    """Decide about a message whose handler raised this error.

    Returns:
        `Retry` with its delay filled in; or the action of a rule; or `Dead` with the error as its reason.
    """
    action = rule_for(policy, error)
    if isinstance(action, Retry):
        return _again(action, replace(failure, error=error), (action,))
    if isinstance(action, Snooze) or action.reason:
        return action
    return type(action)(reason_of(error, f"attempt {failure.attempt}"))


def answered(policy: Retry, answer: Retry, failure: Failure) -> Retry | Dead:
    """Decide about a message whose handler returned `Retry(...)`.

    The answer's wait outranks the policy's; the limits and stops of both count.
    """
    own = answer if answer.delay is not None or answer.wait is not None else policy
    limit = attempt_limit(failure.max_attempts, policy.max_attempts, answer.max_attempts)
    return _again(own, replace(failure, max_attempts=limit), (policy, answer))


def resolved_delay(policy: Retry, failure: Failure) -> timedelta:
    """Return the wait after this attempt: 0 to 10 years, whatever the policy's `wait` returns."""
    if policy.delay is not None:
        return policy.delay
    return timedelta(seconds=_wait_s(policy, _state(failure)))


def rule_for(policy: Retry, error: BaseException) -> Action:
    """Return the rule for the error's most derived class; the policy itself if no rule matches."""
    for cls in type(error).__mro__:
        if cls in policy.rules:
            return policy.rules[cls]
    return policy


def attempt_limit(*limits: int | None) -> int:
    """Return the smallest of several limits of attempts. 0 and None mean no limit, as does the result 0."""
    return min((limit for limit in limits if limit), default=0)


def attempts_wanted(policy: Retry) -> int:
    """Return how many attempts a policy may use, its rules included; 0 leaves the number to the queue."""
    rules = [rule for rule in policy.rules.values() if isinstance(rule, Retry)]
    return max(_own_attempts(each) for each in (policy, *rules))


def _own_attempts(policy: Retry) -> int:
    by_stop = policy.stop.max_attempt_number if isinstance(policy.stop, stop_after_attempt) else None
    return attempt_limit(policy.max_attempts, by_stop)


def _again(policy: Retry, failure: Failure, stopping: Iterable[Retry]) -> Retry | Dead:
    """Return another attempt with the policy's wait, unless it is one too many, or a `stop` ends them."""
    attempt, limit = failure.attempt, attempt_limit(failure.max_attempts, policy.max_attempts)
    if limit and attempt >= limit:
        return Dead(reason_of(failure.error, f"attempt {attempt} of {limit}"))
    delay = resolved_delay(policy, failure)
    state = _state(failure)
    state.upcoming_sleep = delay.total_seconds()  # for `stop_before_delay`
    if any(_stops(each, state) for each in stopping):
        return Dead(reason_of(failure.error, f"attempt {attempt}, the last by `stop`"))
    return Retry(delay)


# ── Asking tenacity ──


def _state(failure: Failure) -> RetryCallState:
    """Return a call state that answers what a wait or stop may ask."""
    state = RetryCallState(_RETRYING, None, (), {})
    asked = failure.error or RetryAsked("the handler asked for another attempt")
    state.attempt_number = failure.attempt
    state.set_exception((type(asked), asked, None))
    state.start_time, state.outcome_timestamp = 0.0, max(0.0, failure.first_seen_s)
    return state


def _wait_s(policy: Retry, state: RetryCallState) -> float:
    """Return the wait of the policy in seconds, or the default wait if the policy has none or fails."""
    if policy.wait is not None:
        try:
            return _bounded_s(policy.wait(state))
        except Exception as exc:  # noqa: BLE001 - the application's code must lose no message
            log_failure("retry_wait_failed", exc)
    return _bounded_s(DEFAULT_WAIT(state))


def _bounded_s(seconds: Any) -> float:
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if math.isnan(seconds):
        raise ValueError("a wait of NaN seconds")
    return float(min(max(seconds, 0.0), _LONGEST_S))


def _stops(policy: Retry, state: RetryCallState) -> bool:
    """Return whether the policy's stop ends the attempts; a failing stop leaves that to the queue."""
    try:
        return policy.stop is not None and bool(policy.stop(state))
    except Exception as exc:  # noqa: BLE001 - as above
        log_failure("retry_stop_failed", exc)
        return False


def log_failure(event: str, error: Exception, **fields: Any) -> None:
    """Log an error of the application's code, with its traceback."""
    logger(DISPATCHER).error(event, **fields, error=describe(error), **trace(error, is_final=True))


# ── Reasons ──


def reason_of(error: BaseException | None, when: str) -> str:
    """Return why a message dies, in the error's own words; the traceback goes into a header of its own."""
    if error is None:
        return f"{when}: the handler asked for another attempt"
    words = "".join(traceback.format_exception_only(error)).partition(_TRACE)[0].strip()
    return storable(f"{when}: {_cut(words)}")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"
