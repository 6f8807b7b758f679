"""What becomes of a message whose handler failed: pure functions of policy, attempt, age and error.

The waits and stops are tenacity's objects, asked through a call state made for one question, because
nothing of tenacity's own loop fits: between two attempts of a message lie processes, not a sleep. What
a policy of the application answers is kept within bounds here, since a wait of NaN seconds, or one that
raises, must not decide whether a message is ever seen again.
"""

from __future__ import annotations

import logging
import math
import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from tenacity import RetryCallState, Retrying
from tenacity.stop import stop_after_attempt
from tenacity.wait import wait_random_exponential

from cqueue.dispatcher.verdicts import LONGEST_DELAY, Dead, Retry, Snooze, Verdict

DEFAULT_WAIT: Final = wait_random_exponential(multiplier=1, min=1, max=600)
"""1 s to 10 min: at random between 1 s and a limit that doubles, so that what failed together is spread.

`wait_exponential_jitter` would not spread much: it adds one second at most, however long the wait.
"""
DEFAULT_POLICY: Final = Retry(wait=DEFAULT_WAIT)
UNKNOWN_TASK_WAIT: Final = timedelta(hours=1)
"""How long a message waits, by default, for a version of the application that can run it: a deployment."""
MAX_WORDS = 500
"""Characters of an error's own text in a reason."""

_LONGEST_S = LONGEST_DELAY.total_seconds()
_RETRYING = Retrying()
_log = logging.getLogger("cqueue.dispatcher")


class RetryAsked(Exception):
    """Stands for the error in a policy's call state when a handler returned `Retry()` without one."""


# ── Decisions ──


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that is to be followed by another one, or by none.

    Attributes:
        attempt: which one failed, from 1.
        max_attempts: the queue's; 0 is no limit. The smaller of it and the policy's counts.
        first_seen_s: seconds since the message was due first, for `stop_after_delay` and the like.
        error: what was raised; None if the handler returned `Retry(...)`.
    """

    attempt: int
    max_attempts: int = 0
    first_seen_s: float = 0.0
    error: BaseException | None = None


def decide(policy: Retry, failure: Failure, error: BaseException) -> Verdict:
    """What to do about a handler that raised this error.

    Returns:
        `Retry` with its delay filled in; or what a rule says; or `Dead` with the error as its reason.
    """
    verdict = rule_for(policy, error)
    if isinstance(verdict, Retry):
        return _again(verdict, replace(failure, error=error))
    if isinstance(verdict, Snooze) or verdict.reason:
        return verdict
    return type(verdict)(reason_of(error, f"attempt {failure.attempt}"))


def answered(policy: Retry, answer: Retry, failure: Failure) -> Retry | Dead:
    """What to do about a handler that returned `Retry(...)`: as `decide`, the answer before the policy."""
    own = answer if answer.delay is not None or answer.wait is not None else policy
    limit = attempt_limit(failure.max_attempts, policy.max_attempts, answer.max_attempts)
    return _again(own, replace(failure, max_attempts=limit))


def resolved_delay(policy: Retry, failure: Failure) -> timedelta:
    """How long to wait after this attempt: 0 to 10 years, whatever the policy's `wait` says."""
    if policy.delay is not None:
        return policy.delay
    return timedelta(seconds=_wait_s(policy, _state(failure)))


def rule_for(policy: Retry, error: BaseException) -> Verdict:
    """The rule of the most derived class that the error is of; the policy itself if there is none."""
    for cls in type(error).__mro__:
        if cls in policy.rules:
            return policy.rules[cls]
    return policy


def attempt_limit(*limits: int | None) -> int:
    """The smallest of several numbers of attempts; 0 and None are no limit, and 0 says so."""
    smallest = 0
    for limit in limits:  # a generator would cost more, and this is asked for every message
        if limit and (not smallest or limit < smallest):
            smallest = limit
    return smallest


def attempts_wanted(policy: Retry) -> int:
    """How many attempts a policy may use, its rules included; 0 leaves it to the queue."""
    rules = [rule for rule in policy.rules.values() if isinstance(rule, Retry)]
    return max(_own_attempts(each) for each in (policy, *rules))


def _own_attempts(policy: Retry) -> int:
    by_stop = policy.stop.max_attempt_number if isinstance(policy.stop, stop_after_attempt) else None
    return attempt_limit(policy.max_attempts, by_stop)


def _again(policy: Retry, failure: Failure) -> Retry | Dead:
    attempt, limit = failure.attempt, attempt_limit(failure.max_attempts, policy.max_attempts)
    if limit and attempt >= limit:
        return Dead(reason_of(failure.error, f"attempt {attempt} of {limit}"))
    delay = resolved_delay(policy, failure)
    state = _state(failure)
    state.upcoming_sleep = delay.total_seconds()  # `stop_before_delay` looks at it
    if _stops(policy, state):
        return Dead(reason_of(failure.error, f"attempt {attempt}, stopped by its policy"))
    return Retry(delay)


# ── Asking tenacity ──


def _state(failure: Failure) -> RetryCallState:
    """A call state that says what a wait or stop may ask."""
    state = RetryCallState(_RETRYING, None, (), {})
    asked = failure.error or RetryAsked("the handler asked for another attempt")
    state.attempt_number = failure.attempt
    state.set_exception((type(asked), asked, None))
    state.start_time, state.outcome_timestamp = 0.0, max(0.0, failure.first_seen_s)
    return state


def _wait_s(policy: Retry, state: RetryCallState) -> float:
    """What the policy's wait says, or the default's if it says nothing of use."""
    if policy.wait is not None:
        try:
            return _bounded_s(policy.wait(state))
        except Exception:  # noqa: BLE001 - the application's code, which must cost no message
            _log.exception("retry_wait_failed")
    return _bounded_s(DEFAULT_WAIT(state))


def _bounded_s(seconds: Any) -> float:
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if math.isnan(seconds):
        raise ValueError("a wait of NaN seconds")
    return float(min(max(seconds, 0.0), _LONGEST_S))


def _stops(policy: Retry, state: RetryCallState) -> bool:
    """Whether the policy's stop says so; one that fails stops nothing, as attempts are limited anyway."""
    try:
        return policy.stop is not None and bool(policy.stop(state))
    except Exception:  # noqa: BLE001 - as above
        _log.exception("retry_stop_failed")
        return False


# ── Reasons ──


def reason_of(error: BaseException | None, when: str) -> str:
    """Why a message dies, in the error's own words; its traceback goes into a header of its own."""
    if error is None:
        return f"{when}: the handler asked for another attempt"
    words = "".join(traceback.format_exception_only(error)).strip()
    return f"{when}: {_cut(words)}".encode(errors="backslashreplace").decode()  # a header is valid text


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"
