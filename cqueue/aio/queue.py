"""A queue with asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from cqueue.aio.awaited import Twin, awaited, each
from cqueue.aio.consumer import AsyncConsumer
from cqueue.config import QueueConfig
from cqueue.dead_letters import DeadLetter, DeadLetters
from cqueue.dispatcher.schedules.schedules import Schedules
from cqueue.doorbell import HintCounts
from cqueue.message import MessageId
from cqueue.queue import Queue

IDS_AT_A_TIME = 1000
"""Ids that one call of an iteration fetches: as many as one read gives."""


class AsyncDeadLetters(Twin[DeadLetters]):
    """The dead letters of one queue, as `DeadLetters`. `async for` gives all letters, the oldest first."""

    redrive = awaited(DeadLetters.redrive)
    drop = awaited(DeadLetters.drop)
    groups = awaited(DeadLetters.groups)

    async def list(
        self,
        limit: int = 100,
        *,
        reason: str | None = None,
        task: str | None = None,
        kind: str | None = None,
    ) -> list[DeadLetter]:
        """As `DeadLetters.list`. Each body is read at once, also a large one."""
        letters = partial(self._inner.list, limit, reason=reason, task=task, kind=kind)
        return await self._bridge.call(lambda: [_loaded(letter) for letter in letters()])

    async def get(self, letter_id: str) -> DeadLetter:
        """As `DeadLetters.get`."""
        return await self._bridge.call(lambda: _loaded(self._inner.get(letter_id)))

    def __aiter__(self) -> AsyncIterator[DeadLetter]:
        return each(self._bridge, lambda: map(_loaded, self._inner))


def _loaded(letter: DeadLetter) -> DeadLetter:
    """Return a letter whose body is in memory: a property cannot be awaited."""
    body = letter.body
    return replace(letter, _load=lambda: body)


class AsyncSchedules(Twin[Schedules]):
    """The schedules of one queue, as `Schedules`."""

    add = awaited(Schedules.add)
    list = awaited(Schedules.list)
    get = awaited(Schedules.get)
    pause = awaited(Schedules.pause)
    resume = awaited(Schedules.resume)
    run_now = awaited(Schedules.run_now)
    remove = awaited(Schedules.remove)


class AsyncQueue(Twin[Queue]):
    """One queue of a client, as `Queue`. What asks Cassandra is awaited, also `config`, `paused` and `now`.

    There is no `send_many_async`, and no `prefetch` of a consumer: start several calls side by side with
    `asyncio.gather` or `asyncio.create_task`.

    Example:
        queue = await client.queue("mails")
        await queue.send(b"hello", delay=timedelta(minutes=5))
    """

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._inner.name

    @property
    def dead_letter_name(self) -> str:
        """The name of the queue's dead-letter queue, which `client.queue(…)` opens like any other."""
        return self._inner.dead_letter_name

    @property
    def hints(self) -> HintCounts:
        """See `Queue.hints`."""
        return self._inner.hints

    @property
    def default_max_poll(self) -> timedelta:
        """See `Queue.default_max_poll`."""
        return self._inner.default_max_poll

    @property
    def dead_letters(self) -> AsyncDeadLetters:
        """See `Queue.dead_letters`."""
        return AsyncDeadLetters(self._bridge, self._inner.dead_letters)

    @property
    def schedules(self) -> AsyncSchedules:
        """See `Queue.schedules`."""
        return AsyncSchedules(self._bridge, self._inner.schedules)

    async def config(self) -> QueueConfig:
        """Return the configuration, at most two seconds old."""
        return await self._bridge.call(lambda: self._inner.config)

    async def paused(self) -> bool:
        """Return whether the queue is paused, so that consumers receive nothing."""
        return await self._bridge.call(lambda: self._inner.paused)

    async def now(self) -> datetime:
        """Return cluster time in UTC. Raises as `Queue.now`."""
        return await self._bridge.call(lambda: self._inner.now)

    send = awaited(Queue.send)
    send_many = awaited(Queue.send_many)
    send_statement = awaited(Queue.send_statement)
    find = awaited(Queue.find)
    peek = awaited(Queue.peek)
    stats = awaited(Queue.stats)
    alter = awaited(Queue.alter)
    pause = awaited(Queue.pause)
    resume = awaited(Queue.resume)
    cancel = awaited(Queue.cancel)
    purge = awaited(Queue.purge)
    find_many = awaited(Queue.find_many)
    cancel_many = awaited(Queue.cancel_many)
    reschedule = awaited(Queue.reschedule)
    reschedule_many = awaited(Queue.reschedule_many)
    set_priority = awaited(Queue.set_priority)
    set_priority_many = awaited(Queue.set_priority_many)
    extend = awaited(Queue.extend)
    extend_many = awaited(Queue.extend_many)
    get_by_key = awaited(Queue.get_by_key)
    list_by_key = awaited(Queue.list_by_key)
    delete_by_key = awaited(Queue.delete_by_key)
    reschedule_by_key = awaited(Queue.reschedule_by_key)
    list = awaited(Queue.list)
    exists = awaited(Queue.exists)
    result = awaited(Queue.result)
    history = awaited(Queue.history)

    def ids(self) -> AsyncIterator[MessageId]:
        """As `Queue.ids`, for `async for`."""
        return each(self._bridge, self._inner.ids, IDS_AT_A_TIME)

    def consumer(
        self,
        *,
        poll_interval: timedelta = timedelta(milliseconds=5),
        max_poll_interval: timedelta | None = None,
    ) -> AsyncConsumer:
        """Make a consumer, for an `async with` block. Arguments and errors as of `Queue.consumer`."""
        make = partial(self._inner.consumer, poll_interval=poll_interval, max_poll_interval=max_poll_interval)
        return AsyncConsumer(self._bridge, self.name, make)
