"""The handle of an enqueued task: its id, which also says how far the task is and what it returned.

A program that waits polls, with pauses that grow: datagrams may be lost, so polls are needed anyhow, and one
costs two reads or so. A handle holds no thread and no connection, and may be made again from the id, in any
process that has the task.
"""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cqueue.dispatcher.application.payload import decode_value
from cqueue.dispatcher.execution.actions import LONGEST_DELAY
from cqueue.errors import BadInput, LetterNotFound, NoResult, ResultTimeout, TaskFailed
from cqueue.message import MessageId, check_duration
from cqueue.queue import TaskResult
from cqueue.runtime import waiting

if TYPE_CHECKING:
    from cqueue.dispatcher.application.tasks import Task
    from cqueue.queue import Queue

R = TypeVar("R")

FIRST_PAUSE_S: Final = 0.01
"""Seconds after the first look at a result; each further pause is half as long again."""
LONGEST_PAUSE_S: Final = 1.0
"""The longest such pause: a waiting program costs two reads a second."""


class TaskHandle(MessageId, Generic[R]):
    """An enqueued task, as `Task.enqueue` returns it: the message's id as text, with methods.

    Example:
        handle = total.enqueue([1, 2, 3])
        print(handle.result(timedelta(seconds=10)))
    """

    _task: Task[..., Any]

    def __new__(cls, message_id: str, task: Task[..., Any]) -> TaskHandle[R]:
        """Make the handle of a message of this task."""
        made = super().__new__(cls, message_id)
        made._task = task
        return made

    def __reduce__(self) -> Any:
        """Pickle as a plain id: a task cannot be pickled, and `Task.handle` makes a handle of the id."""
        return MessageId, (str(self),)

    @property
    def id(self) -> MessageId:
        """The message's id."""
        return MessageId(self)

    def state(self) -> str:
        """Return how far the message is.

        Returns:
            succeeded, failed or cancelled, from a stored result; else ready, claimed, waiting, delayed,
            expired or quarantined, as `StoredMessage.state`; spooled while it may be in the application's
            spool; failed if it is a dead letter; else gone: without `result_ttl` that is all that is known of
            a task that ended.

        Raises:
            NotDone: Cassandra does not answer.
        """
        found = self._look()
        return found.state if isinstance(found, TaskResult) else found

    def result(self, timeout: timedelta | None = None) -> R:
        """Wait until the task has ended, and return what it returned.

        A task that ran twice, as at-least-once delivery allows, has the result of the run that ended last.
        A redriven dead letter is another message: `LettersResult.sent` has its id, for `Task.handle`.

        Args:
            timeout: how long to wait, 0 (look once) to 10 years; None: until there is an outcome.

        Raises:
            TaskFailed: the task failed for good.
            ResultTimeout: the time is over; asking again is safe.
            NoResult: there will be no result: it has expired, or the message is gone without one.
            BadInput: the task has no `result_ttl`, or the timeout is out of range.
            PayloadMismatch: the stored result cannot be read.
            NotDone: Cassandra does not answer.
        """
        if self._task.result_ttl is None:
            raise BadInput(
                f"task {self._task.name!r} keeps no results; give it one: @app.task(result_ttl=...)"
            )
        deadline_s = math.inf
        if timeout is not None:
            deadline_s = time.monotonic() + check_duration("timeout", timeout, timedelta(), LONGEST_DELAY)
        pause_s = FIRST_PAUSE_S
        while not isinstance(found := self._look(), TaskResult):
            if found == "gone":
                raise NoResult(f"message {self} is gone, and there is no result of it; it may have expired")
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ResultTimeout(f"task {self._task.name!r} has not ended after {timeout}; it is {found}")
            waiting.sleep(min(pause_s, left_s))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)
        return self._value(found)  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Delete the message, as `Queue.cancel`. Return False if it was acked, dead, expired or cancelled
        before.
        """
        return self._queue.cancel(self.id)

    @property
    def _queue(self) -> Queue:
        return self._task._sender.queue(self._task.queue)  # noqa: SLF001 - the same package

    def _look(self) -> TaskResult | str:
        """Return what became of the message, or the state that it has now.

        A result is stored before its message is acked, and a dead letter before its message is deleted. So
        each is looked for after the message was found to be gone.
        """
        queue, keeps = self._queue, self._task.result_ttl is not None
        if keeps and (found := queue.result(self)) is not None:
            return found
        # Read first: what is forwarded after this is found below
        is_spooled = getattr(queue, "waiting", 0) > 0
        if (message := queue.find(self)) is not None:
            return message.state
        if is_spooled:
            return "spooled"
        if keeps and (found := queue.result(self)) is not None:
            return found
        try:
            letter = queue.dead_letters.get(self)
        except LetterNotFound:
            return "gone"
        return TaskResult(self.id, "failed", letter.died_at, reason=letter.reason)

    def _value(self, found: TaskResult) -> Any:
        match found.state:
            case "failed":
                what = f"task {self._task.name!r} failed: {found.reason}"
                raise TaskFailed(what, error=found.error, reason=found.reason or "")
            case "cancelled":
                raise NoResult(f"the task cancelled its message {self}: {found.reason or 'without a reason'}")
        if found.value is None:
            raise NoResult(f"the task ended, but its result was not kept: {found.reason}")
        return decode_value(found.value, found.codec)


class SkippedHandle(TaskHandle[R]):
    """The result of an `enqueue` that was skipped: the handle of the unique message in the way."""

    skipped = True
