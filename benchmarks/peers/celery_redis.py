"""Celery on Redis. Late acknowledgement, since its default loses what a killed worker held."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from celery import Celery
from redis import Redis as RedisClient

from benchmarks.peers import tally
from benchmarks.peers.worker_peer import SERVER, RedisPeer

_QUEUE = "bench"

app = Celery("peers", broker=os.environ.get(SERVER))
app.conf.update(
    task_acks_late=True,
    task_default_queue=_QUEUE,
    task_ignore_result=True,
    worker_prefetch_multiplier=100,
    broker_connection_retry_on_startup=True,
)


def note(body: str) -> None:
    """Handle a message: note it in the tally."""
    tally.handled(body)


handle: Any = app.task(note, name="bench.handle")


class CeleryPeer(RedisPeer):
    """One `apply_async` a message, over one producer: Celery has no batches."""

    client = "one call a message; 2 prefork workers, acks_late, prefetch 100 each"
    library = "celery"

    _producer: Any = None

    def connect(self) -> None:
        """Open one producer, and keep it."""
        app.conf.broker_url = self.server.url
        self._producer = app.amqp.Producer(app.connection_for_write())
        self._redis = RedisClient.from_url(self.server.url)

    def disconnect(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            self._producer.connection.release()
            self._redis.close()
            self._producer = None

    def send(self, bodies: Sequence[str]) -> None:
        """Send messages one by one."""
        for body in bodies:
            handle.apply_async((body,), producer=self._producer)

    def worker_command(self) -> list[str]:
        """Return the command that Celery's documentation names."""
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.peers.celery_redis", "worker"]
        command += ["--concurrency", "2", "--loglevel", "WARNING"]
        return [*command, "--without-gossip", "--without-mingle", "--without-heartbeat"]

    def left(self) -> int:
        """Count ready messages and those that wait for an acknowledgement."""
        return int(self._redis.llen(_QUEUE)) + int(self._redis.hlen("unacked"))
