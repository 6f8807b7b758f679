"""A log: appends in batches, scans as records and to Arrow.

Beside each rate stands what it cost this process in CPU time: on a machine that does other things as well,
or that runs the server too, that is the figure to compare.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Final

from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Progress, silent
from cqueue.bench.throughput import bodies
from cqueue.errors import NotDone
from cqueue.log.log import Log
from cqueue.log.records import Record

PATIENCE: Final = timedelta(seconds=30)
TOPIC: Final = "bench"


def log(
    bench: Bench, options: Options, partitions: int = 16, threads: int = 4, progress: Progress = silent
) -> dict[str, Any]:
    """Append all in batches from several threads; scan them all twice."""
    with bench.log(partitions) as target:
        figures = _figures("appended", options.messages, lambda: _append(target, options, threads))
        progress(0.5)
        until_stable(target)
        figures |= _figures("scanned", options.messages, lambda: _count(target, options, _records))
        progress(0.75)
        if find_spec("pyarrow"):
            figures |= _figures("to_arrow", options.messages, lambda: _count(target, options, _rows))
    unused = ("receive", "shards")
    return bench.result("log", options, figures, without=unused, partitions=partitions, threads=threads)


def _figures(what: str, count: int, work: Callable[[], None]) -> dict[str, float]:
    """The rate, and the CPU time of this process for each record in µs."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    work()
    took_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {f"{what}_per_s": round(count / took_s, 1), f"{what}_cpu_us": round(cpu_s / count * 1e6, 3)}


def _append(target: Log, options: Options, threads: int) -> None:
    def send(batch: list[bytes]) -> None:
        for _, error in target.append_many([Record(TOPIC, body) for body in batch]).failed:
            raise error

    under_way = deque[Future[None]]()
    with ThreadPoolExecutor(threads) as pool:
        for batch in bodies(options):  # made as they are taken: all of them may be more than the memory holds
            if len(under_way) >= 2 * threads:
                under_way.popleft().result()
            under_way.append(pool.submit(send, batch))
        for future in under_way:
            future.result()


def until_stable(target: Log) -> None:
    """Append one more record, and wait until a scan can read it, and so all before it.

    A scan of the end tells, without reading what is measured later.

    Raises:
        NotDone: the record did not become stable in time.
    """
    last = target.append("end", b"")
    end = time.monotonic() + PATIENCE.total_seconds()
    while time.monotonic() < end:
        with target.scan(reverse=True, limit=1) as scanner:
            if [record.id for record in scanner] == [last]:
                return
        time.sleep(0.1)
    raise NotDone("what was appended did not become stable")


def _records(target: Log, limit: int) -> int:
    with target.scan(limit=limit) as scanner:
        return sum(map(len, scanner.batches()))


def _rows(target: Log, limit: int) -> int:
    with target.scan(limit=limit) as scanner:
        return sum(batch.num_rows for batch in scanner.to_arrow())


def _count(target: Log, options: Options, read: Callable[[Log, int], int]) -> None:
    found = read(target, options.messages)
    if found != options.messages:
        raise NotDone(f"{found:,} records came back, {options.messages:,} were appended")
