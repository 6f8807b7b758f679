"""Tasks that a schedule calls: what `App.periodic` declares, and how it becomes a schedule.

The next start creates or changes schedules that the code declares. A schedule that the code no longer
declares is only reported: the starting process may be an old version, or one of several applications of the
queue.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.application.payload import Arguments, encode
from cqueue.dispatcher.application.tasks import Task
from cqueue.dispatcher.execution.context import Context
from cqueue.dispatcher.schedules.definition import FiringId, check_key
from cqueue.dispatcher.schedules.triggers import Cron, Trigger
from cqueue.errors import ConfigError
from cqueue.queue import Queue
from cqueue.runtime.logs import DISPATCHER, logger

P = ParamSpec("P")
R = TypeVar("R")

FIRED_AT: Final = "fired_at"
"""Parameter through which a periodic task gets the time that is fired."""
HEADER: Final = "cqueue-periodic"
"""Header of messages of declared schedules, with the task's name."""


class PeriodicTask(Task[P, R]):
    """A task that a schedule calls; made by `App.periodic`."""

    def check(self) -> None:
        """Check that a schedule can call the task.

        Raises:
            ConfigError: the function takes other parameters than `fired_at`.
        """
        try:
            self._signature.bind(**self._told(None))
        except TypeError as exc:
            raise ConfigError(
                f"periodic task {self.name!r}: {exc}; a schedule passes {FIRED_AT} and nothing else"
            ) from exc

    def put(self, queue: Queue, key: str, trigger: Trigger) -> None:
        """Create or replace the schedule that calls the task; its messages carry no arguments."""
        queue.schedules.add(
            key,
            trigger,
            encode(Arguments((), {}), self._codec),
            task=self.name,
            codec=self._codec.name,
            headers={HEADER: self.name},
            replace=True,
        )

    def _arguments(self, message: ReceivedMessage, context: Context) -> Arguments:
        """Return the message's arguments, and for a firing its time."""
        found = super()._arguments(message, context)
        if FiringId.parse(message.trigger) is None or found.args or FIRED_AT in found.kwargs:
            return found
        fired_at = context.firing.fired_at if context.firing is not None else message.due
        return Arguments((), {**found.kwargs, **self._told(fired_at)})

    def _told(self, fired_at: Any) -> dict[str, Any]:
        parameter = self._signature.parameters.get(FIRED_AT)
        takes_it = parameter is not None and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        return {FIRED_AT: fired_at} if takes_it else {}


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule as the code declares it."""

    key: str
    trigger: Trigger
    task: PeriodicTask[..., Any]

    def __post_init__(self) -> None:
        """Check the values where they are written, not where they are first used."""
        check_key(self.key)
        self.task.check()


def trigger_of(when: str | Trigger, options: dict[str, Any]) -> Trigger:
    """Return the trigger of a decorator: a cron expression with options, or a trigger that has its own.

    Raises:
        ConfigError: `when` is neither, options are given with a trigger, or a value is wrong.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(when, str):
        return Cron(when, **given)
    if not isinstance(when, Trigger):
        raise ConfigError(f"periodic takes a cron expression or a trigger, not {type(when).__name__}")
    if given:
        raise ConfigError(
            f"give {', '.join(given)} to the trigger, or a cron expression instead of a trigger"
        )
    return when


def declare(queues: Iterable[Queue], declared: Sequence[Declared]) -> None:
    """Create or change the declared schedules; log those that were declared once and are no longer."""
    for queue in queues:
        own = {each.key: each for each in declared if each.task.queue == queue.name}
        for each in own.values():
            each.task.put(queue, each.key, each.trigger)
        left = [row.key for row in queue.schedules.list() if HEADER in row.headers and row.key not in own]
        if left:
            logger(DISPATCHER).warning("schedules_undeclared", queue=queue.name, schedules=left)
