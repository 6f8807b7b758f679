"""The asyncio client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Self

from cqueue.aio.awaited import Opening, awaited
from cqueue.aio.bridge import Bridge
from cqueue.aio.log import AsyncLog
from cqueue.aio.queue import AsyncQueue
from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.log.config import LogConfig
from cqueue.runtime import waiting
from cqueue.runtime.call_metrics import CallMetrics


class AsyncClient(Opening[Client]):
    """Opens queues and logs, as `Client`, for asyncio tasks of one event loop. Made by `connect_async`.

    A task that is cancelled in a call gets `CancelledError` at once. The outcome of the call is unknown to
    it, as after `OutcomeUnknown`: the rest of the call runs in the background, which `close` waits for.

    Spools, subscriptions and dispatchers have threads of their own; they take a `Client`.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._what = "client"
        self._make = partial(waiting.in_thread, connect)

    async def queue(self, name: str, *, linger: timedelta | None = None) -> AsyncQueue:
        """Open a queue. Arguments and errors as of `Client.queue`.

        `linger` stores together what several asyncio tasks send at the same time.
        """
        return AsyncQueue(
            self._bridge, await self._bridge.call(partial(self._inner.queue, name, linger=linger))
        )

    async def create_queue(
        self, name: str, config: QueueConfig | None = None, *, exist_ok: bool = False
    ) -> AsyncQueue:
        """Create a queue, with its dead-letter queue, and open it. Errors as of `Client.create_queue`."""
        create = partial(self._inner.create_queue, name, config, exist_ok=exist_ok)
        return AsyncQueue(self._bridge, await self._bridge.call(create))

    async def log(self, name: str) -> AsyncLog:
        """Open a log. Errors as of `Client.log`."""
        return AsyncLog(self._bridge, await self._bridge.call(partial(self._inner.log, name)))

    async def create_log(
        self, name: str, config: LogConfig | None = None, *, exist_ok: bool = False
    ) -> AsyncLog:
        """Create a log, and open it. Errors as of `Client.create_log`."""
        create = partial(self._inner.create_log, name, config, exist_ok=exist_ok)
        return AsyncLog(self._bridge, await self._bridge.call(create))

    delete_queue = awaited(Client.delete_queue)
    queues = awaited(Client.queues)
    delete_log = awaited(Client.delete_log)
    logs = awaited(Client.logs)
    subscriptions = awaited(Client.subscriptions)
    delete_subscription = awaited(Client.delete_subscription)

    @property
    def metrics(self) -> CallMetrics:
        """See `Client.metrics`."""
        return self._inner.metrics

    async def __aenter__(self) -> Self:
        if "_bridge" not in vars(self):
            self._bridge = Bridge()
        return await super().__aenter__()

    async def close(self) -> None:
        """Finish the rest of cancelled calls, then close all connections. Close consumers before."""
        await self._bridge.finish(partial(self._let_go, self._inner))

    @staticmethod
    def _let_go(opened: Client) -> None:
        waiting.in_thread(opened.close)  # it waits for threads
