"""What a handler may say about a message, and how a task is retried."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cqueue.errors import ConfigError
from cqueue.message import check_duration

if TYPE_CHECKING:
    from tenacity.stop import stop_base
    from tenacity.wait import wait_base

LONGEST_DELAY = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Snooze:
    """Deliver again after `delay` (0 to 10 years); no attempt is used."""

    delay: timedelta

    def __post_init__(self) -> None:
        """Check the delay."""
        check_duration("delay", self.delay, timedelta(), LONGEST_DELAY)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop the message: it is acked, and the reason is logged."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Dead:
    """Move the message to the dead-letter queue now."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver again; the attempt counts. Returned by a handler, or given to a task as its policy.

    Returned, `Retry()` waits as the task's policy says and `Retry(delay)` waits `delay`. As a policy:

    Attributes:
        delay: wait so long (0 to 10 years) before each attempt; None asks `wait`.
        max_attempts: attempts before the message is dead, the first one included; 1 and up. None leaves
            it to the queue's `max_attempts`, which it cannot pass.
        wait: a `tenacity.wait_*` object: seconds before the next attempt.
        stop: a `tenacity.stop_*` object: when true, the message is dead.
        rules: what to do about an exception, by its class; the most derived class counts. A `Retry` among
            them replaces this policy for that exception.

    Raises:
        ConfigError: both delay and wait, or a value out of range.
    """

    delay: timedelta | None = None
    max_attempts: int | None = field(default=None, kw_only=True)
    wait: wait_base | None = field(default=None, kw_only=True)
    stop: stop_base | None = field(default=None, kw_only=True)
    rules: Mapping[type[BaseException], Verdict] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Check that the values fit together."""
        if self.delay is not None:
            check_duration("delay", self.delay, timedelta(), LONGEST_DELAY)
            if self.wait is not None:
                raise ConfigError("give delay or wait, not both")
        if self.max_attempts is not None and (type(self.max_attempts) is not int or self.max_attempts < 1):
            raise ConfigError(f"max_attempts is {self.max_attempts!r}; it takes a whole number from 1 on")


Verdict = Retry | Snooze | Cancel | Dead
Answer = Verdict | bool | None
"""What a handler may say about its message. Any other value that it returns is a result: it did its work."""


def slip(value: Any) -> str:
    """What is wrong with a value whose handler cannot have done its work; empty for every other value."""
    if isinstance(value, type) and issubclass(value, Retry | Snooze | Cancel | Dead):
        return f"the class {value.__name__}; return an object: {value.__name__}(…)"
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        if inspect.iscoroutine(value):
            value.close()  # nobody will await it, and Python need not warn of that as well
        return f"a {type(value).__name__} that has not run; run it, and return what comes of it"
    return ""
