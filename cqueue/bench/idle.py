"""What a consumer costs that has nothing to do, and a dispatcher of many such queues."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from cqueue.bench.counting import CountingStore
from cqueue.bench.setup import Bench, Options, Progress, silent
from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.context import Context
from cqueue.dispatcher.dispatcher import Dispatcher
from cqueue.errors import NotDone, QueueNotFound
from cqueue.queue import DEFAULT_MAX_POLL, Queue

IDLE_SECONDS = 10
SETTLE_SECONDS = 5
PATIENCE = timedelta(minutes=1)


def idle_queues(
    bench: Bench, options: Options, queues: int, seconds: int = IDLE_SECONDS, progress: Progress = silent
) -> dict[str, Any]:
    """Statements a second of one dispatcher of many idle queues, from 5 s after it has looked at each."""
    counting = CountingStore(bench.store)
    names = [f"bench-idle-{time.time_ns():x}-{number}" for number in range(queues)]
    config = QueueConfig(shards=options.shards)
    try:
        for number, name in enumerate(names):
            bench.client.create_queue(name, config)
            progress(number / queues / 2)
        with Client(counting, on_close=lambda: None) as client:
            opened = [client.queue(name) for name in names]
            with Dispatcher(opened, _nothing):
                time.sleep(SETTLE_SECONDS + queues / 50)  # so that each has been looked at
                before, begin = counting.operations, time.perf_counter()
                time.sleep(seconds)
                took_s = time.perf_counter() - begin
                statements = counting.operations - before
    finally:
        for number, name in enumerate(names):
            with suppress(QueueNotFound):
                bench.client.delete_queue(name)
            progress((1 + number / queues) / 2)
    return {
        "bench": "idle",
        "queues": queues,
        "statements_per_s": round(statements / took_s, 2),
        "seconds": round(took_s, 1),
        **bench.circumstances(options),
    }


def _nothing(_message: ReceivedMessage, _context: Context) -> None:
    """No message comes."""


def idle(
    bench: Bench, options: Options, seconds: int = IDLE_SECONDS, progress: Progress = silent
) -> dict[str, Any]:
    """Statements a second of one consumer that waits, from 5 s after the last message on.

    After so many seconds one message is sent that nothing tells the consumer of: until it is received.
    """
    counting = CountingStore(bench.store)
    silence = _Silence(counting, seconds, progress)
    with bench.queue(options) as queue, Client(counting, on_close=lambda: None) as client:
        queue.send(b"the last one")
        with client.queue(queue.name).consumer() as consumer:
            consumer.ack(consumer.receive(10, wait=timedelta(seconds=10)))
            # Another thread sends, so that Ctrl-C ends the wait of this one.
            threading.Thread(target=silence.end_by, args=(queue,), daemon=True).start()
            messages = consumer.receive(10, wait=timedelta(seconds=SETTLE_SECONDS + seconds) + PATIENCE)
            received_s = time.perf_counter()
            if not messages:
                raise NotDone("no message came after the silence")
            consumer.ack(messages)
    return {
        "bench": "idle",
        "statements_per_s": round(silence.statements / silence.took_s, 2),
        "seconds": round(silence.took_s, 1),
        "first_delivery_ms": round((received_s - silence.sent_s) * 1000, 1),
        "max_poll_interval_ms": DEFAULT_MAX_POLL // timedelta(milliseconds=1),
        **bench.circumstances(options),
    }


class _Silence:
    """A while without messages: how many statements there were, how long it took, and when it was over."""

    def __init__(self, counting: CountingStore, seconds: int, progress: Progress) -> None:
        self._counting = counting
        self._seconds = seconds
        self._progress = progress
        self.statements = 0
        self.took_s = self.sent_s = 0.0

    def end_by(self, queue: Queue) -> None:
        """Wait, then send a message."""
        time.sleep(SETTLE_SECONDS)
        before, begin = self._counting.operations, time.perf_counter()
        for second in range(self._seconds):
            time.sleep(1)
            self._progress((second + 1) / self._seconds)
        self.sent_s = time.perf_counter()
        self.took_s, self.statements = self.sent_s - begin, self._counting.operations - before
        queue.send(b"after a while")
