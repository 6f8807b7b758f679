"""Count what an idle consumer and an idle dispatcher cost, and a dispatcher of many idle queues.

All that wait do so side by side, each with a client of its own whose statements are counted: with the
doorbell and without, while the wide row of the last message is still there and where there is none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product
from typing import Any

from cqueue.bench.counting import CountingStore
from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Progress, silent
from cqueue.client import Client, address_of
from cqueue.config import QueueConfig
from cqueue.consumer import Consumer
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.errors import CqueueError, NotDone, QueueNotFound
from cqueue.queue import Queue

IDLE_SECONDS = 10
SETTLE_SECONDS = 5
PATIENCE_S = 60.0
UNUSED = ("messages", "size", "batch", "receive")
LONG_TIME_SHARD = timedelta(days=30)
"""Keeps the wide row of the last message for longer than the benchmark takes.

The retirement of one costs some ninety statements, and shards of ten minutes put it into one run in forty.
"""


@dataclass(eq=False, slots=True)
class Waiting:
    """A consumer or dispatcher that waits for a message, and the statements that it sends meanwhile.

    Attributes:
        who: "consumer" or "dispatcher".
        notify: whether other processes can tell it of messages.
        wide_rows: how many there are: that of the last message, or none.
    """

    who: str
    notify: bool
    wide_rows: int
    store: CountingStore
    statements: int = 0
    came_s: float = 0.0
    came: threading.Event = field(default_factory=threading.Event)

    def note(self, *_: object) -> None:
        """Note that a message came."""
        self.came_s = time.perf_counter()
        self.came.set()

    def row(self, sent_s: float, took_s: float) -> dict[str, Any]:
        """Return the figures of one line."""
        return {
            "who": self.who,
            "notify": "on" if self.notify else "off",
            "wide_rows": self.wide_rows,
            "statements_per_s": round(self.statements / took_s, 2),
            "first_delivery_ms": round((self.came_s - sent_s) * 1000, 1),
        }


def idle(
    bench: Bench, options: Options, seconds: int = IDLE_SECONDS, progress: Progress = silent
) -> dict[str, Any]:
    """Count the statements a second of all that wait, from 5 s after the last message on.

    After `seconds`, send each of them a message, and measure until it is received.
    """
    notify = (True, False) if bench.settings.notify else (False,)
    kinds = product(("consumer", "dispatcher"), notify, (1, 0))
    all_ = [Waiting(*kind, CountingStore(bench.store)) for kind in kinds]
    with ExitStack() as stack:
        queues = [stack.enter_context(_begun(waiting, bench, options)) for waiting in all_]
        time.sleep(SETTLE_SECONDS)
        took_s = _count(all_, seconds, progress)
        rows = [
            waiting.row(_send(waiting, queue), took_s) for waiting, queue in zip(all_, queues, strict=True)
        ]
    return bench.result("idle", options, {"rows": rows, "seconds": round(took_s, 1)}, without=UNUSED)


@contextmanager
def _begun(waiting: Waiting, bench: Bench, options: Options) -> Iterator[Queue]:
    """Make a queue, where it needs a wide row with a message that is acked; start what waits for the next."""
    config = QueueConfig(shards=options.shards, time_shard=LONG_TIME_SHARD)
    with (
        bench.queue(options, config) as queue,
        _client(bench, waiting.store, notify=waiting.notify) as client,
    ):
        if waiting.wide_rows:
            queue.send(b"the last one")
            with client.queue(queue.name).consumer() as consumer:
                consumer.ack(consumer.receive(10, wait=timedelta(seconds=10)))
        opened = client.queue(queue.name)
        waits: AbstractContextManager[object] = (
            Dispatcher(opened, waiting.note) if waiting.who == "dispatcher" else _receiving(opened, waiting)
        )
        with waits:
            yield queue


def _client(bench: Bench, store: CountingStore, *, notify: bool) -> Client:
    address = address_of(bench.settings, bench.connection) if notify else None
    return Client(store, on_close=lambda: None, local_dc=bench.settings.local_dc, notify=address)


@contextmanager
def _receiving(queue: Queue, waiting: Waiting) -> Iterator[None]:
    with queue.consumer() as consumer:
        # Another thread waits, so that Ctrl-C ends the wait of this one.
        thread = threading.Thread(target=_receive, args=(consumer, waiting), daemon=True)
        thread.start()
        yield
    thread.join()


def _receive(consumer: Consumer, waiting: Waiting) -> None:
    with suppress(CqueueError):  # it was closed
        if messages := consumer.receive(10, wait=timedelta(days=1)):
            waiting.note()
            consumer.ack(messages)


def _count(all_: Sequence[Waiting], seconds: int, progress: Progress) -> float:
    """Count the statements of all that wait for `seconds`; return how long it took."""
    begin = time.perf_counter()
    before = [waiting.store.operations for waiting in all_]
    for second in range(seconds):
        time.sleep(1)
        progress((second + 1) / seconds)
    took_s = time.perf_counter() - begin
    for waiting, count in zip(all_, before, strict=True):
        waiting.statements = waiting.store.operations - count
    return took_s


def _send(waiting: Waiting, queue: Queue) -> float:
    """Send a message, and wait until it is received; return when it was sent."""
    sent_s = time.perf_counter()
    queue.send(b"after a while")
    if not waiting.came.wait(PATIENCE_S):
        raise NotDone("no message came after the silence")
    return sent_s


def idle_queues(
    bench: Bench, options: Options, queues: int, seconds: int = IDLE_SECONDS, progress: Progress = silent
) -> dict[str, Any]:
    """Statements a second of one dispatcher of many idle queues, from 5 s after it has looked at each."""
    waiting = Waiting("dispatcher", bench.settings.notify, 0, CountingStore(bench.store))
    names = [f"bench-idle-{time.time_ns():x}-{number}" for number in range(queues)]
    config = QueueConfig(shards=options.shards)
    try:
        for number, name in enumerate(names):
            bench.client.create_queue(name, config)
            progress(number / queues / 2)
        with _client(bench, waiting.store, notify=waiting.notify) as client:
            opened = [client.queue(name) for name in names]
            with Dispatcher(opened, waiting.note):
                time.sleep(SETTLE_SECONDS + queues / 50)  # so that each has been looked at
                took_s = _count([waiting], seconds, silent)
    finally:
        for number, name in enumerate(names):
            with suppress(QueueNotFound):
                bench.client.delete_queue(name)
            progress((1 + number / queues) / 2)
    figures = {
        "notify": "on" if waiting.notify else "off",
        "statements_per_s": round(waiting.statements / took_s, 2),
        "seconds": round(took_s, 1),
    }
    return bench.result("idle", options, figures, without=UNUSED, queues=queues)
