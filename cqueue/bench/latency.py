"""Latency from send to handler at a steady rate, and what an idle consumer costs."""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from cqueue.bench.counting import CountingStore
from cqueue.bench.sends import bare_insert
from cqueue.bench.setup import Bench, Options, Progress, percentile, silent
from cqueue.client import Client
from cqueue.config import QueueConfig
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.context import Context
from cqueue.dispatcher.dispatcher import Dispatcher
from cqueue.errors import NotDone, QueueNotFound
from cqueue.queue import DEFAULT_MAX_POLL, Queue
from cqueue.store.connection import open_session

RATE_PER_S = 200
SECONDS = 20
IDLE_SECONDS = 10
SETTLE_SECONDS = 5
PATIENCE = timedelta(minutes=1)


def latency(
    bench: Bench, options: Options, progress: Progress = silent, seconds: int = SECONDS
) -> dict[str, Any]:
    """Send 200 messages a second one by one to a dispatcher in this process: send to handler, in ms.

    Afterwards sends and bare inserts in turn, at that pace, while nobody receives.
    """
    count = RATE_PER_S * seconds
    took_s: list[float] = []

    def handle(message: ReceivedMessage, _context: Context) -> None:
        took_s.append(time.perf_counter() - struct.unpack(">d", message.body[:8])[0])

    bench.calm()
    with bench.queue(options) as queue, Dispatcher(queue, handle) as dispatcher:
        sends_s = _send_all(queue, options, count, progress)
        dispatcher.drain(PATIENCE)
    if len(took_s) < count:
        raise NotDone(f"only {len(took_s):,} of {count:,} messages were handled")
    alone_s, bare_s = _beside_bare_inserts(bench, options, count // 4)
    return {
        "bench": "latency",
        "rate_per_s": RATE_PER_S,
        "received": len(took_s),
        "p50_ms": round(percentile(took_s, 50) * 1000, 3),
        "p99_ms": round(percentile(took_s, 99) * 1000, 3),
        "send_p50_ms": round(percentile(sends_s, 50) * 1000, 3),
        "send_p99_ms": round(percentile(sends_s, 99) * 1000, 3),
        "send_alone_p50_ms": round(percentile(alone_s, 50) * 1000, 3),
        "bare_insert_p50_ms": round(percentile(bare_s, 50) * 1000, 3),
        "bare_insert_p99_ms": round(percentile(bare_s, 99) * 1000, 3),
        "send_ratio": round(percentile(alone_s, 50) / percentile(bare_s, 50), 4),
        "histogram": _histogram(took_s),
        **bench.circumstances(options),
    }


def _histogram(values_s: list[float]) -> list[tuple[float, int]]:
    """(Upper bound in ms, how many below it and above the one before); ten bounds to a power of ten."""
    counts: dict[int, int] = {}
    for value_s in values_s:
        place = math.ceil(10 * math.log10(max(value_s * 1000, 0.01)))
        counts[place] = counts.get(place, 0) + 1
    places = range(min(counts) - 1, max(counts) + 1)
    return [(round(10 ** (place / 10), 3), counts.get(place, 0)) for place in places]


def _send_all(queue: Queue, options: Options, count: int, progress: Progress) -> list[float]:
    """Send at the rate; how long each send took, in seconds. Its message carries when it began."""
    sends_s: list[float] = []
    begin = time.perf_counter()
    for index in range(count):
        time.sleep(max(0.0, begin + index / RATE_PER_S - time.perf_counter()))
        sent = time.perf_counter()
        queue.send(struct.pack(">d", sent) + bytes(max(0, options.size - 8)))
        sends_s.append(time.perf_counter() - sent)
        progress((index + 1) / count)
    return sends_s


def _beside_bare_inserts(bench: Bench, options: Options, count: int) -> tuple[list[float], list[float]]:
    """How long each send took, and each bare insert, in seconds."""
    sends_s: list[float] = []
    inserts_s: list[float] = []
    with bench.queue(options) as queue, open_session(bench.settings) as connection:
        ways: list[tuple[Callable[[bytes], Any], list[float]]] = [
            (queue.send, sends_s),
            (bare_insert(connection.session), inserts_s),
        ]
        begin = time.perf_counter()
        for index in range(2 * count):
            time.sleep(max(0.0, begin + index / RATE_PER_S - time.perf_counter()))
            send, took_s = ways[index % 2]
            start = time.perf_counter()
            send(bytes(options.size))
            took_s.append(time.perf_counter() - start)
    return sends_s, inserts_s


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
