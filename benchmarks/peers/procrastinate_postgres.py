"""Procrastinate on PostgreSQL, through psycopg."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import procrastinate

from benchmarks.peers import tally
from benchmarks.peers.servers import Postgres
from benchmarks.peers.worker_peer import SERVER, WorkerPeer

_CONCURRENCY = 10
_LEFT = "SELECT count(*) AS jobs FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"


async def handle(body: str) -> None:
    """Handle a message: note it in the tally."""
    tally.handled(body)


class ProcrastinatePeer(WorkerPeer):
    """`batch_defer`, which is one statement."""

    client = f"batches of 100 (batch_defer); 1 worker, concurrency {_CONCURRENCY}, finished jobs deleted"
    durability = "fsync on, synchronous_commit on"
    library = "procrastinate"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Postgres(directory))
        self._app: procrastinate.App | None = None

    def connect(self) -> None:
        """Open Procrastinate's connection pool, and make the tables."""
        connector = procrastinate.SyncPsycopgConnector(conninfo=self.server.url, min_size=1, max_size=1)
        self._app = procrastinate.App(connector=connector)
        self._task = self._app.task(name="handle")(handle)
        self._app.open()
        self._app.schema_manager.apply_schema()

    def disconnect(self) -> None:
        """Close the pool."""
        if self._app is not None:
            self._app.close()
            self._app = None

    def send(self, bodies: Sequence[str]) -> None:
        """Send messages in one statement."""
        arguments: list[dict[str, Any]] = [{"body": body} for body in bodies]
        self._task.batch_defer(*arguments)

    def left(self) -> int:
        """Count jobs that wait or run."""
        assert self._app is not None  # noqa: S101 - connected
        return int(self._app.connector.get_sync_connector().execute_query_one(_LEFT)["jobs"])


def work() -> None:
    """Run a worker."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ[SERVER]))
    app.task(name="handle")(handle)
    app.run_worker(concurrency=_CONCURRENCY, delete_jobs="always")


if __name__ == "__main__":
    work()
