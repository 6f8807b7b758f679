"""Work that is not measured: a server that has not compiled yet what a benchmark asks of it is slow.

A claim of five messages costs the server nearly what one of five hundred does, so small batches bring every
statement of a queue to its full speed in the shortest time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from cqueue.bench.setup import Bench, Options, Progress, silent
from cqueue.bench.throughput import burndown, floor

THREADS: Final = 2
SMALL: Final = Options(messages=400, batch=5, receive=5, shards=4)
LARGE: Final = Options(messages=5000, batch=100, receive=500, shards=4)


def warm_up(bench: Bench, options: Options, seconds: float, progress: Progress = silent) -> dict[str, Any]:
    """Send and drain in small batches for so long, now and then in large ones, with bodies of that size."""
    begin, over = time.monotonic(), threading.Event()

    def work(_thread: int) -> int:
        sent = 0
        for step in _steps(options.size):
            if over.is_set() or time.monotonic() - begin >= seconds:
                break
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
    return {
        "bench": "warm-up",
        "seconds": round(time.monotonic() - begin, 1),
        **bench.circumstances(options),
        "sent": messages,
    }


def _steps(size: int) -> Iterator[Options]:
    while True:
        for shape in (SMALL, SMALL, SMALL, LARGE):
            yield replace(shape, size=size)
