"""The options of a dispatcher: one object, validated whole when it is made.

The defaults suit handlers of some milliseconds to some seconds on a few queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from cqueue.dispatcher.execution.actions import LONGEST_DELAY
from cqueue.dispatcher.execution.retry import UNKNOWN_TASK_WAIT
from cqueue.errors import ConfigError
from cqueue.message import MAX_RECEIVE
from cqueue.runtime.durations import given, show_duration

SECOND: Final = timedelta(seconds=1)
MS: Final = timedelta(milliseconds=1)
IDLE_POLL_S: Final = 0.02
"""Seconds that each queue adds to the default `max_poll_interval`: all idle queues get 50 polls a second."""

_NUMBERS: Final = (
    ("batch_size", 1, MAX_RECEIVE),
    ("consumers", 1, 64),
    ("threads", 1, 1000),
    ("coroutines", 1, 100_000),
    ("backlog", 1, 100_000),
    ("ack_batch", 1, 10_000),
)
_DURATIONS: Final = (
    ("poll_interval", MS, 60 * SECOND),
    ("ack_interval", timedelta(), 10 * SECOND),
    ("unknown_task_wait", timedelta(), LONGEST_DELAY),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How many of each thing a dispatcher has, and how often it acts.

    Raises:
        ConfigError: a value is out of range, or does not fit another one.
    """

    # Messages of one receive, 1 to 1,000.
    batch_size: int = 100
    # Threads that receive, 1 to 64: at most as many as `threads`.
    consumers: int = 2
    # Threads that run handlers, 1 to 1,000.
    threads: int = 8
    # Coroutine handlers that run at the same time, 1 to 100,000.
    coroutines: int = 100
    # Pause after a poll that found nothing, 1 ms to 1 min; doubled each time up to max_poll_interval.
    poll_interval: timedelta = 5 * MS
    # Up to 1 h. None: 2 s (1 s with notify=off), or with more than 100 queues 20 ms a queue.
    max_poll_interval: timedelta | None = None
    # How long acks are collected before they are sent together, 0 to 10 s.
    ack_interval: timedelta = 100 * MS
    # Collected acks that are sent without waiting for ack_interval, with all others by then, 1 to 10,000.
    ack_batch: int = 500
    # Messages that may wait in this process to be started, 1 to 100,000; fewer when handlers are slow.
    backlog: int = 1000
    # How long a message waits, without using an attempt, for a version of the application that has its task
    # or takes its arguments, 0 to 10 years. 0: it fails at once, and is retried as after any other failure.
    unknown_task_wait: timedelta = UNKNOWN_TASK_WAIT

    def __post_init__(self) -> None:
        """Check every field, then how they fit together."""
        for name, low, high in _NUMBERS:
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ConfigError(f"{name} is {value!r}; it takes a whole number from {low:,} to {high:,}")
        for name, least, most in _DURATIONS:
            self._check_duration(name, least, most)
        if self.max_poll_interval is not None:
            self._check_duration("max_poll_interval", self.poll_interval, 3600 * SECOND)
        if self.consumers > self.threads:
            raise ConfigError(
                f"consumers is {self.consumers} and threads {self.threads}; more threads that receive than "
                "threads that run handlers would only claim what cannot be started"
            )

    def _check_duration(self, name: str, low: timedelta, high: timedelta) -> None:
        value = getattr(self, name)
        if not isinstance(value, timedelta) or not low <= value <= high:
            raise ConfigError(
                f"{name} is {given(value)}; it goes from {show_duration(low)} to {show_duration(high)}"
            )

    def longest_poll_s(self, queues: int, default: timedelta = SECOND) -> float:
        """Return the longest pause between two polls of an idle queue, in seconds; `default`: of a single
        queue.
        """
        if self.max_poll_interval is not None:
            return self.max_poll_interval.total_seconds()
        return max(default.total_seconds(), self.poll_interval.total_seconds(), IDLE_POLL_S * queues)
