"""Work that is not measured: a server is slow until it has compiled the code that a benchmark needs.

A claim of five messages costs the server nearly what one of five hundred does, so small batches bring every
statement of a queue to its full speed in the shortest time. What a dispatcher asks for that handles message
after message as they are sent is more, smaller, and in another order: the compiler has to see that as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Progress, silent
from cqueue.bench.throughput import burndown, floor
from cqueue.consumer import ReceivedMessage
from cqueue.dispatcher.execution.context import Context
from cqueue.dispatcher.execution.dispatcher import Dispatcher
from cqueue.errors import NotDone

THREADS: Final = 2
SMALL: Final = Options(messages=400, batch=5, receive=5, shards=4)
LARGE: Final = Options(messages=5000, batch=100, receive=500, shards=4)
SINGLE: Final = Options(messages=400, batch=1, receive=1, shards=4)
PATIENCE_S: Final = 60.0


def warm_up(bench: Bench, options: Options, seconds: float, progress: Progress = silent) -> dict[str, Any]:
    """Send and drain for `seconds`: in small batches, in large ones, and one by one."""
    begin, over = time.monotonic(), threading.Event()

    def work(_thread: int) -> int:
        sent = 0
        for step in _steps(options.size):
            if over.is_set() or time.monotonic() - begin >= seconds:
                break
            if step.batch == 1:
                one_by_one(bench, step)
            else:
                burndown(bench, step)
                floor(bench, step)
            sent += step.messages
            progress(min(1.0, (time.monotonic() - begin) / seconds))
        return sent

    with ThreadPoolExecutor(THREADS, thread_name_prefix="cqueue-warm-up") as pool:
        try:
            messages = sum(pool.map(work, range(THREADS)))
        finally:
            over.set()  # Ctrl-C, or an error: the threads end after their step
    figures = {"seconds": round(time.monotonic() - begin, 1), "sent": messages}
    return bench.result("warm-up", options, figures, without=("messages", "batch", "receive"))


def one_by_one(bench: Bench, options: Options) -> None:
    """Send messages to a dispatcher in this process, each as soon as the one before it was handled.

    Raises:
        NotDone: one was not handled within a minute.
    """
    handled = threading.Semaphore(0)

    def handle(_message: ReceivedMessage, _context: Context) -> None:
        handled.release()

    with bench.queue(options) as queue, Dispatcher(queue, handle) as dispatcher:
        for _ in range(options.messages):
            queue.send(bytes(options.size))
            if not handled.acquire(timeout=PATIENCE_S):
                raise NotDone(f"a message was not handled within {PATIENCE_S:.0f} s")
        dispatcher.drain(timedelta(seconds=PATIENCE_S))


def _steps(size: int) -> Iterator[Options]:
    while True:
        for shape in (SMALL, SINGLE, SMALL, SINGLE, SMALL, SINGLE, LARGE):
            yield replace(shape, size=size)
