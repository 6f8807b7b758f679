"""RQ on Redis, with the worker that does not fork for each job: its fastest."""

from __future__ import annotations

import os
from collections.abc import Sequence

from redis import Redis as RedisClient
from rq import Queue, SimpleWorker
from rq.registry import StartedJobRegistry

from benchmarks.peers.worker_peer import SERVER, RedisPeer

_QUEUE = "bench"
_HANDLER = "benchmarks.peers.tally.handled"


class RqPeer(RedisPeer):
    """`enqueue_many` in batches, which is one Redis pipeline."""

    client = "batches of 100 (enqueue_many); 1 SimpleWorker (does not fork), results not kept"
    library = "rq"

    _queue: Queue | None = None

    def connect(self) -> None:
        """Connect the sender."""
        self._queue = Queue(_QUEUE, connection=RedisClient.from_url(self.server.url))

    def disconnect(self) -> None:
        """Close the connection."""
        if self._queue is not None:
            self._queue.connection.close()
            self._queue = None

    def send(self, bodies: Sequence[str]) -> None:
        """Send messages in one pipeline."""
        assert self._queue is not None  # noqa: S101 - connected
        self._queue.enqueue_many(
            [Queue.prepare_data(_HANDLER, (body,), result_ttl=0, description="") for body in bodies]
        )

    def left(self) -> int:
        """Count ready and started jobs."""
        assert self._queue is not None  # noqa: S101 - connected
        return int(self._queue.count) + len(StartedJobRegistry(queue=self._queue).get_job_ids(cleanup=False))


def work() -> None:
    """Run a worker."""
    connection = RedisClient.from_url(os.environ[SERVER])
    SimpleWorker([Queue(_QUEUE, connection=connection)], connection=connection).work(logging_level="WARNING")


if __name__ == "__main__":
    work()
