"""What a test is told about messages: those that wait, those that were run, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cqueue.dispatcher.tasks import Task
from cqueue.message import MessageId

SHOWN = 60
"""Characters of an argument in a test's output."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Job:
    """A message that waits to be run.

    Attributes:
        task: the task's name; None for a message that names none.
        args: what the function is called with, by parameter, defaults included; empty if it cannot be read.
        queue: the queue's name.
        due: when it is to be run, in UTC.
        attempt: which one that will be, from 1.
        priority: 0, the most urgent, to 9.
        headers: by name.
        key: as it was sent with, or None.
        id: of the message.
        body: as it is stored.
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
        task: the task's name; None for a message that names none.
        args: as in `Job`.
        queue: the queue's name.
        attempt: which one it was, from 1.
        outcome: succeeded, retried, snoozed, cancelled, left (to its visibility timeout), or dead.
        delay: until the next attempt, after retried, snoozed and left.
        reason: why, where there is one.
        result: what the task returned.
        error: what it raised, or None.
        at: the time of the block's clock, in UTC.
        id: of the message.
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
    """What a call has run, in order."""

    __slots__ = ()

    @property
    def succeeded(self) -> list[Run]:
        """Those that did their work."""
        return self._of("succeeded")

    @property
    def retried(self) -> list[Run]:
        """Those that come again, with the attempt counted."""
        return self._of("retried")

    @property
    def dead(self) -> list[Run]:
        """Those that ended in the dead-letter queue."""
        return self._of("dead")

    @property
    def failed(self) -> list[Run]:
        """Those that raised something, whatever followed."""
        return [run for run in self if run.error is not None]

    def of(self, task: Task[..., Any]) -> list[Run]:
        """The runs of one task."""
        return [run for run in self if run.task == task.name]

    def _of(self, outcome: str) -> list[Run]:
        return [run for run in self if run.outcome == outcome]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeadJob:
    """A dead letter.

    Attributes:
        task: the task's name; None for a message that named none.
        args: as in `Job`.
        queue: the queue in which it died.
        attempts: how many it had.
        reason: why it died.
        traceback: of the error, as text; empty if there was none.
        died_at: when, in UTC.
        headers: its own, without those that say why it died.
        key: as it was sent with, or None.
        id: the message's in its queue; the dead letter has another one.
        body: as it was sent.
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
    """A call as Python writes it, for people."""
    shown = ", ".join(f"{name}={_short(value)}" for name, value in args.items())
    return f"{task or 'without task'}({shown})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
