"""PgQueuer on PostgreSQL, through asyncpg."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Job, Queries, QueueManager

from benchmarks.peers import tally
from benchmarks.peers.servers import Postgres
from benchmarks.peers.worker_peer import RECEIVE, SERVER, WorkerPeer

_ENTRYPOINT = "bench"


class PgQueuerPeer(WorkerPeer):
    """`enqueue` with lists, which is one statement."""

    client = f"batches of 100 (enqueue of lists); 1 worker, asyncpg, uvloop, dequeues of {RECEIVE}"
    durability = "fsync on, synchronous_commit on, logged tables"
    library = "pgqueuer"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Postgres(directory))
        self._runner: asyncio.Runner | None = None

    def connect(self) -> None:
        """Open one connection, and make the tables."""
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._connect())

    async def _connect(self) -> None:
        self._connection = await asyncpg.connect(self.server.url)
        self._queries = Queries(AsyncpgDriver(self._connection))
        await self._queries.install()

    def disconnect(self) -> None:
        """Close the connection."""
        if self._runner is not None:
            self._runner.run(self._connection.close())
            self._runner.close()
            self._runner = None

    def send(self, bodies: Sequence[str]) -> None:
        """Send messages in one statement."""
        assert self._runner is not None  # noqa: S101 - connected
        count = len(bodies)
        payloads: list[bytes | None] = [body.encode() for body in bodies]
        self._runner.run(self._queries.enqueue([_ENTRYPOINT] * count, payloads, [0] * count))

    def left(self) -> int:
        """Count the rows of PgQueuer's table: the row of a handled job is deleted."""
        assert self._runner is not None  # noqa: S101 - connected
        return int(self._runner.run(self._connection.fetchval("SELECT count(*) FROM pgqueuer")))


async def work() -> None:
    """Run a worker."""
    connection = await asyncpg.connect(os.environ[SERVER])
    driver = AsyncpgDriver(connection)
    manager = QueueManager(Queries(driver))

    @manager.entrypoint(_ENTRYPOINT)
    async def handle(job: Job) -> None:
        tally.handled(job.payload or b"")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
    await manager.run(batch_size=RECEIVE)


if __name__ == "__main__":
    uvloop.run(work())
