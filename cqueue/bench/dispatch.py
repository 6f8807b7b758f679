"""The dispatcher beside a bare consumer: the same messages drained by both, in one run.

The handler does nothing, so what is measured is what the dispatcher costs on top of receiving and acking.
Both drain a backlog that is complete before they begin; the ratio is that of the two rates.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from cqueue.bench.setup import Bench, Options, Progress, median_of, ratios_of, silent
from cqueue.bench.throughput import bodies, burndown
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.context import Context
from cqueue.dispatcher.dispatcher import Dispatcher
from cqueue.dispatcher.middleware import Middleware
from cqueue.errors import NotDone
from cqueue.message import Message
from cqueue.queue import Queue

PATIENCE: Final = timedelta(minutes=10)
THREADS: Final = 8


def dispatch(
    bench: Bench, options: Options, rounds: int = 3, threads: int = THREADS, progress: Progress = silent
) -> dict[str, Any]:
    """Burndown and dispatcher in turn, after one round to warm up; medians, and the median of the ratios."""
    bare: list[dict[str, Any]] = []
    ours: list[dict[str, Any]] = []
    for turn in range(rounds + 1):
        bench.calm()
        bare.append(burndown(bench, options, partial(_part, progress, 2 * turn, 2 * (rounds + 1))))
        bench.calm()
        ours.append(_dispatched(bench, options, threads))
        progress((turn + 1) / (rounds + 1))
    del bare[0], ours[0]
    return {
        "bench": "dispatch",
        **ratios_of(ours, bare, "drained_per_s"),
        "dispatcher": {"drained_per_s": median_of(ours, "drained_per_s")},
        "burndown": {"drained_per_s": median_of(bare, "drained_per_s")},
        "threads": threads,
        "rounds": rounds,
        **bench.circumstances(options),
    }


def _part(progress: Progress, at: int, steps: int, done: float) -> None:
    progress((at + done) / steps)


def _dispatched(bench: Bench, options: Options, threads: int) -> dict[str, Any]:
    """Send all, then drain all through a dispatcher, from its start to the last ack."""
    with bench.queue(options) as queue:
        for batch in bodies(options):
            for _, error in queue.send_many([Message(body) for body in batch]).failed:
                raise error
        took_s = drain(queue, options, threads)
    return {"drained_per_s": round(options.messages / took_s, 1)}


class _Acks(Middleware):
    """Says when all acks are stored."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.all = threading.Event()

    def after_ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """So many more."""
        self._left -= len(messages)
        if self._left <= 0:
            self.all.set()


def drain(queue: Queue, options: Options, threads: int = THREADS) -> float:
    """The seconds that a dispatcher takes, from its start to the last ack."""
    acks = _Acks(options.messages)
    dispatcher = Dispatcher(
        queue,
        _nothing,
        threads=threads,
        batch_size=options.receive,
        backlog=2 * options.receive,
        middleware=[acks],
    )
    begin = time.perf_counter()
    with dispatcher:
        if not acks.all.wait(PATIENCE.total_seconds()):
            raise NotDone(f"not all of {options.messages:,} messages were acked")
        took_s = time.perf_counter() - begin
    succeeded = dispatcher.stats().total.succeeded
    if succeeded != options.messages:
        raise NotDone(f"{succeeded:,} messages were handled, {options.messages:,} were sent")
    return took_s


def _nothing(_message: ReceivedMessage, _context: Context) -> None:
    """What the dispatcher calls for each message."""
