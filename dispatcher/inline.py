"""Tasks run here and now, one after another: for tests, which want no threads and no waiting.

It receives, decides and settles as the dispatcher does, by the same pure functions, and leaves out what takes
threads: no timeouts, no extending, no acks together.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cqueue.consumer import Consumer, ReceivedMessage
from cqueue.dispatcher.context import Binding, Context
from cqueue.dispatcher.deployment import is_too_new, pause_for, waiting_schedule
from cqueue.dispatcher.events import logger
from cqueue.dispatcher.firing import Begun, FiringStage
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.retry import DEFAULT_POLICY, answered, attempt_limit, decide
from cqueue.dispatcher.verdicts import Dead, Retry, Snooze, slip
from cqueue.message import MessageId
from cqueue.protocol.dead import HEADER_TRACEBACK
from cqueue.queue import Queue

if TYPE_CHECKING:
    from cqueue.dispatcher.app import App

LOOK = timedelta(milliseconds=20)
"""A retry without delay is due in the next millisecond."""
WAIT = timedelta(seconds=2)
"""For a message that is known to be there."""


@dataclass(frozen=True, slots=True)
class InlineRun:
    """One run of a task by `App.run_inline`.

    Attributes:
        task: its name.
        message_id: of the message that asked for it.
        attempt: which one it was, from 1.
        answer: what became of the message: what the task returned, or what followed from its error.
        error: what it raised, or None.
    """

    task: str
    message_id: MessageId
    attempt: int
    answer: Any
    error: Exception | None


def run_inline(app: App, *, reraise: bool, max_runs: int) -> list[InlineRun]:
    """See `App.run_inline`."""
    queues = app.setup()
    runs: list[InlineRun] = []
    with contextlib.ExitStack() as stack:
        consumers = [(queue, stack.enter_context(queue.consumer())) for queue in queues]
        for queue, message in _due(consumers):
            run = _run(app, queue, message)
            runs.append(run)
            if reraise and run.error is not None:
                raise run.error
            if len(runs) >= max_runs:
                break
    return runs


def _due(consumers: Sequence[tuple[Queue, Consumer]]) -> Iterator[tuple[Queue, ReceivedMessage]]:
    """Messages one by one until no queue has any that is due."""
    found = True
    while found:
        found = False
        for queue, consumer in consumers:
            while messages := _receive(queue, consumer):
                found = True
                for message in messages:
                    yield queue, message


def _receive(queue: Queue, consumer: Consumer) -> list[ReceivedMessage]:
    """One message, if there is one. What was given back is not among the ready ones: only a look tells."""
    messages = consumer.receive(1, wait=LOOK)
    if not messages and queue.stats(exact=True).ready:
        messages = consumer.receive(1, wait=WAIT)
    return messages


def _run(app: App, queue: Queue, message: ReceivedMessage) -> InlineRun:
    """Run a message; that of a schedule moves it on, or is dropped where it has moved on already."""
    stage = FiringStage(queue.schedules.ledger)
    begun = stage.begin(message) if message.task in app.tasks else stage.unfired(message)
    if begun is None or isinstance(begun, Begun):
        run = _run_task(app, queue, message, begun)
        if begun is not None:
            stage.commit(begun)
    else:
        run = InlineRun(message.task or "", message.id, message.attempt, begun, None)
    _settle(app.middleware, message, run.answer, run.error)
    return run


def _run_task(app: App, queue: Queue, message: ReceivedMessage, firing: Begun | None) -> InlineRun:
    waited = max(timedelta(), datetime.now(UTC) - message.due)
    first_seen_s = waited.total_seconds()
    limits = {"attempt": message.attempt, "max_attempts": queue.config.max_attempts}
    answer: Any = None
    error: Exception | None = None
    policy, binding = DEFAULT_POLICY, None
    try:
        binding = app.resolve(message)
        policy = binding.retry
        context = _context(queue, binding, message)
        context.firing = firing
        answer = _call(app.middleware, binding, message, context)
    except Exception as exc:  # noqa: BLE001 - that a task may fail with anything is what its policy is for
        error = exc
        if is_too_new(message, exc, binding):
            is_firing = waiting_schedule(message, binding) is not None
            answer = pause_for(timedelta.max if is_firing else app.unknown_task_wait, waited)
        answer = answer or decide(policy, first_seen_s=first_seen_s, error=exc, **limits)
    if isinstance(answer, Retry) and error is None:
        answer = answered(policy, answer, first_seen_s=first_seen_s, **limits)
    return InlineRun(message.task or "", message.id, message.attempt, answer, error)


def _call(
    middleware: Sequence[Middleware], binding: Binding, message: ReceivedMessage, context: Context
) -> Any:
    """Run the task between the hooks."""
    answer: Any = None
    error: Exception | None = None
    try:
        for each in middleware:
            each.before_run(message, context)
        answer = _answer(binding, message, context)
    except Exception as exc:
        error = exc
        raise
    finally:
        for each in reversed(middleware):
            with _logged("after_run"):
                each.after_run(message, context, answer, error)
    return answer


def _answer(binding: Binding, message: ReceivedMessage, context: Context) -> Any:
    value = binding.call(message, context)
    if binding.is_async:
        value = asyncio.run(value)
    if what := slip(value):
        raise TypeError(f"task {binding.name!r} returned {what}")
    return value


@contextlib.contextmanager
def _logged(hook: str) -> Iterator[None]:
    """Hooks around what has happened already change nothing about it."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, it is the hook's
        logger().exception("middleware_failed", hook=hook)


def _context(queue: Queue, binding: Binding, message: ReceivedMessage) -> Context:
    log = logger().bind(queue=queue.name, task=binding.name, message_id=message.id, attempt=message.attempt)
    limit = attempt_limit(queue.config.max_attempts, binding.retry.max_attempts)
    return Context(queue.name, binding.name, message.attempt, limit, log)


def _settle(
    middleware: Sequence[Middleware], message: ReceivedMessage, answer: Any, error: Exception | None
) -> None:
    if isinstance(answer, Retry):
        message.nack(answer.delay or timedelta())
    elif isinstance(answer, Snooze):
        message.snooze(answer.delay)
    elif isinstance(answer, Dead):
        trace = {HEADER_TRACEBACK: "".join(traceback.format_exception(error))} if error else None
        message.dead(answer.reason, trace)
    elif answer is not False:
        for each in middleware:
            with _logged("before_ack"):
                each.before_ack([message])
        message.ack()
        for each in reversed(middleware):
            with _logged("after_ack"):
                each.after_ack([message])
