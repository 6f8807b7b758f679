"""Latency at a steady rate, and what an idle consumer costs."""

from __future__ import annotations

import struct
import threading
import time
from datetime import timedelta
from typing import Any

from cqueue.bench.setup import Bench, Options, Progress, percentile, silent
from cqueue.queue import Queue
from cqueue.store.operations import Operation, Store

RATE_PER_S = 200
SECONDS = 20
IDLE_SECONDS = 10
SETTLE_SECONDS = 5


def latency(
    bench: Bench, options: Options, progress: Progress = silent, seconds: int = SECONDS
) -> dict[str, Any]:
    """Send 200 messages a second one by one, receive them on another thread: send to receive, in ms."""
    count = RATE_PER_S * seconds
    took_s: list[float] = []
    sends_s: list[float] = []
    failure: list[BaseException] = []
    with bench.queue(options) as queue:
        receiver = threading.Thread(target=_receive_all, args=(queue, count, took_s, failure), daemon=True)
        receiver.start()
        begin = time.perf_counter()
        for index in range(count):
            time.sleep(max(0.0, begin + index / RATE_PER_S - time.perf_counter()))
            sent = time.perf_counter()
            queue.send(struct.pack(">d", sent) + bytes(max(0, options.size - 8)))
            sends_s.append(time.perf_counter() - sent)
            progress((index + 1) / count)
        receiver.join(timeout=60)
    if failure:
        raise failure[0]
    return {
        "bench": "latency",
        "rate_per_s": RATE_PER_S,
        "received": len(took_s),
        "p50_ms": round(percentile(took_s, 50) * 1000, 3),
        "p99_ms": round(percentile(took_s, 99) * 1000, 3),
        "send_p50_ms": round(percentile(sends_s, 50) * 1000, 3),
        "send_p99_ms": round(percentile(sends_s, 99) * 1000, 3),
        **bench.circumstances(options),
    }


def _receive_all(queue: Queue, count: int, took_s: list[float], failure: list[BaseException]) -> None:
    try:
        with queue.consumer() as consumer:
            while len(took_s) < count:
                messages = consumer.receive(100, wait=timedelta(seconds=30))
                now = time.perf_counter()
                took_s.extend(now - struct.unpack(">d", message.body[:8])[0] for message in messages)
                consumer.ack(messages)
                if not messages:
                    return
    except BaseException as exc:  # noqa: BLE001 - raised by the thread that started this one
        failure.append(exc)


class CountingStore:
    """A store that counts the statements that pass through it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.statements = 0

    def execute(self, operation: Operation[Any]) -> Any:
        """Count one, run it."""
        self.statements += 1
        return self._store.execute(operation)

    def together(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        """Count them, run them."""
        self.statements += len(operations)
        return self._store.together(operations)

    def sample_time_us(self) -> list[tuple[int, int]]:
        """Count one for each coordinator that answers."""
        answers = self._store.sample_time_us()
        self.statements += len(answers)
        return answers

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def idle(bench: Bench, options: Options, progress: Progress = silent) -> dict[str, Any]:
    """Statements a second of one consumer that waits, from 5 s after the last message on, for 10 s."""
    from cqueue.client import Client  # noqa: PLC0415 - only this benchmark makes a second client

    counting = CountingStore(bench.store)
    with bench.queue(options) as queue, Client(counting, on_close=lambda: None) as client:
        queue.send(b"the last one")
        with client.queue(queue.name).consumer() as consumer:
            consumer.ack(consumer.receive(10, wait=timedelta(seconds=10)))
            consumer.receive(10, wait=timedelta(seconds=SETTLE_SECONDS))
            before = counting.statements
            begin = time.perf_counter()
            for second in range(IDLE_SECONDS):
                consumer.receive(10, wait=timedelta(seconds=1))
                progress((second + 1) / IDLE_SECONDS)
            took_s = time.perf_counter() - begin
    return {
        "bench": "idle",
        "statements_per_s": round((counting.statements - before) / took_s, 2),
        "seconds": round(took_s, 1),
        **bench.circumstances(options),
    }
