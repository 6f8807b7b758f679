"""Queues as tasks need them: made where they are missing, never changed where they are not.

A queue may be shared with other applications, and its `max_attempts` is a promise to all of them; so where it
is too low for a task this says how to raise it, and does not raise it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.dispatcher.retry import attempts_wanted
from cqueue.dispatcher.tasks import Task
from cqueue.errors import ConfigError, QueueExists, QueueNotFound
from cqueue.queue import Queue

Tasks = Sequence[Task[..., Any]]


def provision(client: Client, tasks_by_queue: Mapping[str, Tasks]) -> list[Queue]:
    """Create missing queues, and check the others; all of them, opened.

    Raises:
        ConfigError: a queue allows fewer attempts than a task of it may use; the text says how to alter it.
    """
    queues = [_opened(client, name, tasks) for name, tasks in tasks_by_queue.items()]
    complaints = [_complaint(queue, tasks_by_queue[queue.name]) for queue in queues]
    if found := [complaint for complaint in complaints if complaint]:
        raise ConfigError("\n".join(found))
    return queues


def _opened(client: Client, name: str, tasks: Tasks) -> Queue:
    try:
        return client.queue(name)
    except QueueNotFound:
        try:
            return client.create_queue(name, _config(tasks))
        except QueueExists:  # another process was quicker
            return client.queue(name)


def _config(tasks: Tasks) -> QueueConfig:
    """As many attempts as the most patient of its tasks wants, and no fewer than by default."""
    default = QueueConfig()
    wanted = max((attempts_wanted(task.retry) for task in tasks), default=0)
    return default.altered({"max_attempts": max(default.max_attempts, wanted)})


def _complaint(queue: Queue, tasks: Tasks) -> str | None:
    allowed = queue.config.max_attempts
    wanted, name = max(((attempts_wanted(task.retry), task.name) for task in tasks), default=(0, ""))
    if not allowed or wanted <= allowed:
        return None
    return (
        f"queue {queue.name!r} allows {allowed} attempts, and task {name!r} may use {wanted}; "
        f"raise it: cqueue queue alter {queue.name} --max-attempts {wanted}"
    )
