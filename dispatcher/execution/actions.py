"""The actions that a handler may return for a message, and the retry policy of a task."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cqueue.errors import BadInput, ConfigError
from cqueue.message import check_duration

if TYPE_CHECKING:
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base

LONGEST_DELAY = timedelta(days=3650)
"""Longest delay of a message, wait of a policy and timeout of a task: ten years."""


@dataclass(frozen=True, slots=True)
class Snooze:
    """Deliver the message again after `delay` (0 to 10 years); no attempt is used.

    Raises:
        BadInput: the delay is out of range.
    """

    delay: timedelta

    def __post_init__(self) -> None:
        """Check the delay."""
        check_duration("delay", self.delay, timedelta(), LONGEST_DELAY)


@dataclass(frozen=True, slots=True)
class _WithReason:
    reason: str = ""

    def __post_init__(self) -> None:
        """Check the reason."""
        if not isinstance(self.reason, str):
            raise BadInput(f"a reason is text, not {type(self.reason).__name__}: str(…)")


@dataclass(frozen=True, slots=True)
class Cancel(_WithReason):
    """Drop the message: it is acked, and the reason is logged.

    Raises:
        BadInput: the reason is no text.
    """


@dataclass(frozen=True, slots=True)
class Dead(_WithReason):
    """Move the message to the dead-letter queue now.

    Raises:
        BadInput: the reason is no text.
    """


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver the message again; the attempt counts. Returned by a handler, or a task's policy.

    A returned `Retry()` waits as the task's policy says; `Retry(delay)` waits `delay`. As a policy:

    Attributes:
        delay: wait before each attempt, 0 to 10 years; None asks `wait`.
        max_attempts: attempts before the message is dead, the first one included; 1 and up. None takes the
            queue's `max_attempts`, which no policy can exceed.
        wait: a `tenacity.wait_*` object: seconds before the next attempt.
        stop: a `tenacity.stop_*` object: when it returns true, the message is dead.
        rules: actions for exceptions, by class; the most derived class counts. A `Retry` among them replaces
            this policy for that exception.

    Raises:
        ConfigError: both delay and wait are given, `max_attempts` is out of range, or a rule is no action
            for a class of exceptions.
        BadInput: the delay is out of range.
    """

    delay: timedelta | None = None
    max_attempts: int | None = field(default=None, kw_only=True)
    wait: wait_base | None = field(default=None, kw_only=True)
    stop: stop_base | None = field(default=None, kw_only=True)
    rules: Mapping[type[BaseException], Action] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Check that the values fit together."""
        if self.delay is not None:
            check_duration("delay", self.delay, timedelta(), LONGEST_DELAY)
            if self.wait is not None:
                raise ConfigError("give delay or wait, not both")
        if self.max_attempts is not None and (type(self.max_attempts) is not int or self.max_attempts < 1):
            raise ConfigError(f"max_attempts is {self.max_attempts!r}; it takes a whole number from 1 on")
        for name, value in ("wait", self.wait), ("stop", self.stop):
            if value is not None and not callable(value):
                raise ConfigError(f"{name} is {value!r}; it takes a tenacity.{name}_… object")
        if not isinstance(self.rules, Mapping):
            raise ConfigError(f"rules is {self.rules!r}; it takes a mapping of exceptions to actions")
        for error, action in self.rules.items():
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                raise ConfigError(f"rules has an entry for {error!r}, which is no class of exceptions")
            if not isinstance(action, Retry | Snooze | Cancel | Dead):
                raise ConfigError(f"the rule for {error.__name__} is {action!r}; it takes an action: Dead()")


Action = Retry | Snooze | Cancel | Dead
Answer = Action | bool | None
"""What a handler may return about its message. Any other value is a result, and means success."""


def misuse(value: Any) -> str:
    """Return why a returned value shows that the handler's work is not done; empty for all other values."""
    if isinstance(value, type) and issubclass(value, Retry | Snooze | Cancel | Dead):
        return f"the class {value.__name__}; return an object: {value.__name__}(…)"
    if inspect.isawaitable(value) or isinstance(value, Generator | AsyncGenerator | map | filter):
        if inspect.iscoroutine(value):
            value.close()  # the error says it all: Python need not warn that nobody awaited it
        return f"a {type(value).__name__} that has not run; run it, and return what comes of it"
    if isinstance(value, Future) and (not value.done() or value.cancelled() or value.exception() is not None):
        return "a Future whose work is not done, or has failed; return its result()"
    return ""
