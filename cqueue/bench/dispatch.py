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

from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Figures, Progress, Way, in_turn, medians_of, ratios_of, silent
from cqueue.bench.throughput import burndown, send_all
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.context import Context
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.dispatcher.execution.middleware import Middleware
from cqueue.errors import NotDone
from cqueue.queue import Queue

PATIENCE: Final = timedelta(minutes=10)
THREADS: Final = 8


def dispatch(
    bench: Bench, options: Options, rounds: int = 3, threads: int = THREADS, progress: Progress = silent
) -> dict[str, Any]:
    """Burndown and dispatcher in turn, after one round to warm up; medians, and the median of the ratios."""

    def ours(_part: Progress) -> Figures:
        with bench.queue(options) as queue:
            send_all(queue, options)
            return {"drained_per_s": round(options.messages / drain(queue, options, threads), 1)}

    ways: dict[str, Way] = {"burndown": partial(burndown, bench, options), "dispatcher": ours}
    found = in_turn(ways, rounds, progress, before=bench.calm)
    figures = {
        **ratios_of(found["dispatcher"], found["burndown"], "drained_per_s"),
        **{name: medians_of(found[name], ("drained_per_s",)) for name in ("dispatcher", "burndown")},
    }
    return bench.result("dispatch", options, figures, threads=threads, rounds=rounds)


class _Acks(Middleware):
    """Sets an event when all acks are stored."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.all = threading.Event()

    def after_ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Count acked messages."""
        self._left -= len(messages)
        if self._left <= 0:
            self.all.set()


def drain(queue: Queue, options: Options, threads: int = THREADS) -> float:
    """Drain a queue through a dispatcher; return the seconds from its start to the last ack."""
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
    """Handle a message by doing nothing."""
