"""What a sandbox tells about messages: waiting ones, runs, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cqueue.dispatcher.application.tasks import Task
from cqueue.message import MessageId

SHOWN = 60
"""Characters of an argument in a test's output: a call stays on one line."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job:
    """A message that waits to be run.

    Attributes:
        task: name of the task; None for a message that names none.
        args: arguments of the call by parameter, defaults included; empty if they cannot be decoded.
        queue: name of the queue.
        due: when the message is to be run, in UTC.
        attempt: number of that attempt, from 1.
        priority: 0, the most urgent, to 9.
        headers: headers by name.
        key: key of the message, or None.
        id: id of the message.
        body: the stored body.
    """

    task: str | None
    args: Mapping[str, Any]
    queue: str
    due: datetime
    attempt: int
    priority: int
    headers: Mapping[str, str]
    key: str | None
    id: MessageId
    body: bytes

    def __repr__(self) -> str:
        return f"<job {call(self.task, self.args)} queue={self.queue} due={self.due} attempt={self.attempt}>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """One run of a task.

    Attributes:
        task: name of the task; None for a message that names none.
        args: as in `Job`.
        queue: name of the queue.
        attempt: number of the attempt, from 1.
        outcome: succeeded, retried, snoozed, cancelled, left (to its visibility timeout), or dead.
        delay: time until the next attempt, after retried, snoozed and left.
        reason: why, if there is a reason.
        result: what the task returned.
        error: what the task raised, or None.
        at: time of the block's clock, in UTC.
        id: id of the message.
    """

    task: str | None
    args: Mapping[str, Any]
    queue: str
    attempt: int
    outcome: str
    delay: timedelta
    reason: str
    result: Any
    error: BaseException | None
    at: datetime
    id: MessageId

    def __repr__(self) -> str:
        again = f" in {self.delay}" if self.outcome in {"retried", "snoozed", "left"} else ""
        why = f": {self.error!r}" if self.error is not None else ""
        return f"<run {call(self.task, self.args)} attempt={self.attempt} {self.outcome}{again}{why}>"


class Runs(tuple[Run, ...]):
    """The runs of one call, in order."""

    __slots__ = ()

    @property
    def succeeded(self) -> list[Run]:
        """Runs that did their work."""
        return self._of("succeeded")

    @property
    def retried(self) -> list[Run]:
        """Runs whose message is delivered again, with the attempt counted."""
        return self._of("retried")

    @property
    def dead(self) -> list[Run]:
        """Runs whose message went to the dead-letter queue."""
        return self._of("dead")

    @property
    def failed(self) -> list[Run]:
        """Runs that raised an error, whatever followed."""
        return [run for run in self if run.error is not None]

    def of(self, task: Task[..., Any]) -> list[Run]:
        """Return the runs of one task."""
        return [run for run in self if run.task == task.name]

    def _of(self, outcome: str) -> list[Run]:
        return [run for run in self if run.outcome == outcome]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeadJob:
    """A dead letter.

    Attributes:
        task: name of the task; None for a message that named none.
        args: as in `Job`.
        queue: queue in which the message died.
        attempts: attempts that it used.
        reason: why it died.
        traceback: traceback of the error, as text; empty if there was none.
        died_at: when it died, in UTC.
        headers: headers of the message, without those about its death.
        key: key of the message, or None.
        id: id of the message in its queue; the dead letter has another id.
        body: the body as it was sent.
    """

    task: str | None
    args: Mapping[str, Any]
    queue: str
    attempts: int
    reason: str
    traceback: str = field(repr=False)
    died_at: datetime
    headers: Mapping[str, str]
    key: str | None
    id: MessageId
    body: bytes

    def __repr__(self) -> str:
        return f"<dead {call(self.task, self.args)} queue={self.queue} reason={self.reason!r}>"


def call(task: str | None, args: Mapping[str, Any]) -> str:
    """Return a call in Python's notation, for people."""
    shown = ", ".join(f"{name}={_short(value)}" for name, value in args.items())
    return f"{task or 'without task'}({shown})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
