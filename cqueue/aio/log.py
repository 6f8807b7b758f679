"""A log with asyncio: append, scan and follow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import timedelta
from functools import partial

from cqueue.aio.awaited import Opening, Twin, awaited, each
from cqueue.errors import Closed
from cqueue.log.config import LogConfig
from cqueue.log.follower import Follower
from cqueue.log.log import Log
from cqueue.log.positions import Point, Start
from cqueue.log.records import LogRecord
from cqueue.log.scanner import Scanner

POLL = timedelta(minutes=1)
"""How long one poll of an iteration waits; then another one follows."""


class AsyncScanner(Opening[Scanner]):
    """Reads records in the order of ids, as `Scanner`. An asynchronous context manager."""

    seek = awaited(Scanner.seek)

    def batches(self) -> AsyncIterator[list[LogRecord]]:
        """As `Scanner.batches`, for `async for`."""
        return each(self._bridge, self._inner.batches)

    async def __aiter__(self) -> AsyncIterator[LogRecord]:
        async for batch in self.batches():
            for record in batch:
                yield record


class AsyncFollower(Opening[Follower]):
    """Reads records for ever, as `Follower`. An asynchronous context manager."""

    poll = awaited(Follower.poll)
    positions = awaited(Follower.positions)

    async def __aiter__(self) -> AsyncIterator[LogRecord]:
        while True:
            try:
                records = await self.poll(POLL)
            except Closed:
                return
            for record in records:
                yield record


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

    def scan(
        self,
        start: Start = "earliest",
        end: Point | None = None,
        *,
        partitions: Sequence[int] | None = None,
        topics: Iterable[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
        on_expired: str = "error",
    ) -> AsyncScanner:
        """Read records in order, in an `async with` block. Arguments and errors as of `Log.scan`."""
        make = partial(
            self._inner.scan,
            start,
            end,
            partitions=partitions,
            topics=topics,
            limit=limit,
            reverse=reverse,
            on_expired=on_expired,
        )
        return AsyncScanner(self._bridge, f"scanner of log {self.name!r}", make)

    def follow(
        self,
        start: Start = "latest",
        *,
        partitions: Sequence[int] | None = None,
        topics: Iterable[str] | None = None,
        low_latency: bool = False,
        poll_interval: timedelta = timedelta(milliseconds=100),
        on_expired: str = "error",
    ) -> AsyncFollower:
        """Read records for ever, in an `async with` block. Arguments and errors as of `Log.follow`."""
        make = partial(
            self._inner.follow,
            start,
            partitions=partitions,
            topics=topics,
            low_latency=low_latency,
            poll_interval=poll_interval,
            on_expired=on_expired,
        )
        return AsyncFollower(self._bridge, f"follower of log {self.name!r}", make)
