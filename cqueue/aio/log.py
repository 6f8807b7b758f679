"""A log with asyncio: append, scan and follow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial, wraps
from typing import Concatenate, TypeVar

from cqueue.aio.awaited import C, Opening, P, Twin, awaited
from cqueue.aio.bridge import Bridge
from cqueue.log.config import LogConfig
from cqueue.log.follower import Follower
from cqueue.log.log import Log
from cqueue.log.records import LogRecord
from cqueue.log.scanner import Scanner

W = TypeVar("W")


# Awaited calls only read and keep records: a call that is cancelled loses what it returns.
_next_of_scan = awaited(Scanner._read_ahead)  # noqa: SLF001 - its other half
_next_of_follow = awaited(Follower._read_ahead)  # noqa: SLF001 - its other half


class AsyncScanner(Opening[Scanner]):
    """Reads records in the order of ids, as `Scanner`. An asynchronous context manager."""

    seek = awaited(Scanner.seek)

    async def batches(self) -> AsyncIterator[list[LogRecord]]:
        """As `Scanner.batches`, for `async for`."""
        while await _next_of_scan(self):
            yield self._inner._take_kept()  # noqa: SLF001 - its other half

    async def __aiter__(self) -> AsyncIterator[LogRecord]:
        while await _next_of_scan(self):
            for record in self._inner._take_each():  # noqa: SLF001 - its other half
                yield record


class AsyncFollower(Opening[Follower]):
    """Reads records for ever, as `Follower`. An asynchronous context manager."""

    positions = awaited(Follower.positions)

    async def poll(self, wait: timedelta = timedelta()) -> list[LogRecord]:
        """As `Follower.poll`."""
        await _next_of_follow(self, wait)
        return self._inner._take_kept()  # noqa: SLF001 - its other half

    async def _more(self, wait: timedelta) -> Iterator[LogRecord]:
        await _next_of_follow(self, wait)
        return self._inner._take_each()  # noqa: SLF001 - its other half

    def __aiter__(self) -> AsyncIterator[LogRecord]:
        return self._until_closed(self._more)


def opening(
    method: Callable[Concatenate[Log, P], C], twin: Callable[[Bridge, str, Callable[[], C]], W], what: str
) -> Callable[Concatenate[AsyncLog, P], W]:
    """Make a method whose result is used in an `async with` block. Arguments and errors are the method's."""

    @wraps(method)
    def make(self: AsyncLog, /, *args: P.args, **kwargs: P.kwargs) -> W:
        call = partial(method, self._inner, *args, **kwargs)
        return twin(self._bridge, f"{what} of log {self.name!r}", call)

    return make


class AsyncLog(Twin[Log]):
    """One log, as `Log`. What asks Cassandra is awaited, also `config`.

    Example:
        log = await client.log("orders")
        await log.append("paid", b"42")
        async with log.scan() as scanner:
            async for record in scanner:
                print(record.body)
    """

    @property
    def name(self) -> str:
        """The log's name."""
        return self._inner.name

    async def config(self) -> LogConfig:
        """Return the configuration, at most five seconds old."""
        return await self._bridge.call(lambda: self._inner.config)

    alter = awaited(Log.alter)
    stats = awaited(Log.stats)
    append = awaited(Log.append)
    append_many = awaited(Log.append_many)

    scan = opening(Log.scan, AsyncScanner, "scanner")
    follow = opening(Log.follow, AsyncFollower, "follower")
