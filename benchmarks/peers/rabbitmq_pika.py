"""RabbitMQ with pika: persistent messages, publisher confirms, a durable queue of either kind.

A message is sent when the server has confirmed it. A batch is published at once and then waits for its
last confirm, which pika's blocking channel cannot do; so the sender is its asyncio connection.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pika
from pika.adapters.asyncio_connection import AsyncioConnection

from benchmarks.peers import tally
from benchmarks.peers.servers import RabbitMQ
from benchmarks.peers.worker_peer import RECEIVE, SERVER, WorkerPeer
from benchmarks.peers.workload import PeerError

_QUEUE = "bench"
_ACK_EVERY = 50
_IDLE_S = 0.02
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


class _Publisher:
    """A channel in confirm mode on a loop that runs only during calls."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._unconfirmed = 0
        self._highest = 0
        self._published = 0
        self._settled: asyncio.Future[None] | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        self._connection = AsyncioConnection(
            pika.URLParameters(self._url),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(error),
            custom_ioloop=loop,
        )
        await opened
        channel: asyncio.Future[Any] = loop.create_future()
        self._connection.channel(on_open_callback=channel.set_result)
        self._channel = await channel
        confirming: asyncio.Future[Any] = loop.create_future()
        self._channel.confirm_delivery(self._on_confirm, confirming.set_result)
        await confirming

    async def declare(self, kind: str) -> int:
        """Declare the queue, and count the messages that are ready in it."""
        declared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._channel.queue_declare(
            _QUEUE, durable=True, arguments={"x-queue-type": kind}, callback=declared.set_result
        )
        return int((await declared).method.message_count)

    async def publish(self, bodies: Sequence[str]) -> None:
        """Publish all, then wait for the last confirm."""
        self._settled = asyncio.get_running_loop().create_future()
        self._published += len(bodies)
        for body in bodies:
            self._channel.basic_publish("", _QUEUE, body.encode(), _PERSISTENT)
        await self._settled

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        settled = self._settled
        if settled is None or settled.done():
            return
        if method.NAME != "Basic.Ack":
            settled.set_exception(PeerError("the server refused a message"))
            return
        # Confirms may come out of order, and one may stand for many.
        self._unconfirmed += method.delivery_tag - self._highest if method.multiple else 1
        self._highest = max(self._highest, method.delivery_tag) if method.multiple else self._highest
        if self._unconfirmed >= self._published:
            settled.set_result(None)

    async def close(self) -> None:
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection.add_on_close_callback(lambda *_: closed.set_result(None))
        self._connection.close()
        await closed


class RabbitMQPeer(WorkerPeer):
    """Batches of 100 published at once, then awaited."""

    client = (
        f"100 published, then their confirms awaited; 1 consumer, prefetch {RECEIVE}, "
        f"acks every {_ACK_EVERY} (multiple)"
    )
    library = "pika"

    def __init__(self, directory: Path, kind: str = "classic") -> None:
        super().__init__(directory, RabbitMQ(directory))
        self.durability = f"durable {kind} queue, persistent, confirms"
        self._kind = kind
        self._runner: asyncio.Runner | None = None
        self._publisher: _Publisher | None = None

    def connect(self) -> None:
        """Open one connection, and declare the queue."""
        self._runner = asyncio.Runner()
        publisher = _Publisher(self.server.url)
        self._runner.run(publisher.open())
        self._publisher = publisher
        self.left()

    def disconnect(self) -> None:
        """Close the connection."""
        if self._runner is not None:
            try:
                if self._publisher is not None:
                    self._runner.run(self._publisher.close())
            finally:
                self._publisher = None
                self._runner.close()
                self._runner = None

    def send(self, bodies: Sequence[str]) -> None:
        """Publish messages at once; return when all are confirmed."""
        assert self._runner is not None  # noqa: S101 - connected
        assert self._publisher is not None  # noqa: S101 - connected
        self._runner.run(self._publisher.publish(bodies))

    def left(self) -> int:
        """Count ready messages, among them those that a worker which has ended did not acknowledge."""
        assert self._runner is not None  # noqa: S101 - connected
        assert self._publisher is not None  # noqa: S101 - connected
        return self._runner.run(self._publisher.declare(self._kind))


def work() -> None:
    """Run a worker: acknowledge every 50 messages, and what is left in each pause."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    connection = pika.BlockingConnection(pika.URLParameters(os.environ[SERVER]))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=RECEIVE)
    pending = last = 0
    for method, _, content in channel.consume(_QUEUE, inactivity_timeout=_IDLE_S):
        if method is not None:
            tally.handled(content)
            last = method.delivery_tag
            pending += 1
        if pending >= _ACK_EVERY or (method is None and pending):
            channel.basic_ack(last, multiple=True)
            pending = 0
        if method is None and stopping.is_set():
            break
    connection.close()


if __name__ == "__main__":
    work()
