"""What an open dashboard costs a queue: throughput with two pages open, and with no dashboard, in turn.

    python -m benchmarks.dashboard_cost cassandra://127.0.0.1:9042/bench?local_dc=datacenter1 [10 [http]]

A producer and a consumer process work at full speed all the time. In each round one minute is measured with
the dashboard and one without; which comes first changes from round to round. Ten rounds are ten minutes of an
open dashboard. Pages stand open in Chromium; with `http`, a client asks for them as they would ask.

The browser runs on this machine, so what it takes of the processors counts as well; elsewhere it would not.
"""

from __future__ import annotations

import bisect
import multiprocessing
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import cqueue
from cqueue.bench.children import Signals, children
from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, open_bench
from cqueue.settings import load
from cqueue.web.site import REFRESH_S
from tests.web.browser import CHROMIUM, Browser

WINDOW_S = 60.0
"""A minute, so that each window with a dashboard has one count of the figures over time."""
SETTLE_S = 5.0
"""Seconds before each window, in which the dashboard starts or ends."""
WARM_UP_S = 30.0
BATCH, SIZE = 500, 200
AHEAD = 100
"""Batches that the producer may be ahead of the consumer, so that the backlog stays as it is."""


class Mark(NamedTuple):
    """How many messages were done at a time of the monotonic clock."""

    at_s: float
    done: int


def produce(name: str, room: Any, bench: Bench, signals: Signals) -> list[Mark]:
    """Send batches until all is over, each when there is room for it."""
    queue, body = bench.client.queue(name), secrets.token_bytes(SIZE)
    signals.begin.wait()
    while not signals.over.is_set():
        if room.acquire(timeout=1):
            for _, error in queue.send_many([cqueue.Message(body)] * BATCH).failed:
                raise error
    return []


def consume(name: str, room: Any, bench: Bench, signals: Signals) -> list[Mark]:
    """Receive and acknowledge until all is over; return what was done when."""
    marks, freed = [Mark(time.monotonic(), 0)], 0
    signals.begin.wait()
    with bench.client.queue(name).consumer(prefetch=4 * BATCH) as consumer:
        while not signals.over.is_set():
            if messages := consumer.receive(BATCH, wait=timedelta(seconds=1)):
                consumer.ack(messages)
                marks.append(Mark(time.monotonic(), marks[-1].done + len(messages)))
                for _ in range(marks[-1].done // BATCH - freed):
                    room.release()
                    freed += 1
    return marks


@contextmanager
def dashboard(url: str, directory: Path) -> Iterator[str]:
    """Serve a dashboard from a process of its own; yield its address once it has read the queues."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "cqueue", "--url", url, "web", "--port", str(port)]
    with (directory / "web.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        while not _is_ready(address):
            if process.poll() is not None:
                raise SystemExit((directory / "web.log").read_text())
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


def _is_ready(address: str) -> bool:
    try:
        return bool(_ask(f"{address}/readyz"))
    except (urllib.error.URLError, OSError):
        return False


def _ask(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own server
        body: bytes = answer.read()
        return body


@contextmanager
def shown(pages: list[str], directory: Path) -> Iterator[None]:
    """Keep pages open in Chromium."""
    with Browser(directory) as chromium:
        opened = [chromium.open() for _ in pages]
        for page, url in zip(opened, pages, strict=True):
            page.go(url)
        yield
        for page in opened:
            if page.complaints or "Not up to date" in page.text:
                raise SystemExit(f"a page did not follow: {page.complaints} {page.text}")


@contextmanager
def asked(pages: list[str], _directory: Path) -> Iterator[None]:
    """Ask for pages as often as open ones do."""
    over = Event()

    def ask() -> None:
        while not over.wait(REFRESH_S):
            for url in pages:
                _ask(url)

    thread = Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rate(marks: list[Mark], begin_s: float) -> float:
    """Messages a second in the window that begins then."""
    times_s = [mark.at_s for mark in marks]
    first, last = (bisect.bisect_right(times_s, at_s) - 1 for at_s in (begin_s, begin_s + WINDOW_S))
    return (marks[last].done - marks[first].done) / (marks[last].at_s - marks[first].at_s)


def windows(url: str, queue: str, rounds: int, view: Any) -> list[tuple[bool, float]]:
    """Let the windows pass; return of each whether the dashboard was open, and when it began."""
    found = []
    for is_open in (turn for n in range(rounds) for turn in ((True, False) if n % 2 else (False, True))):
        with ExitStack() as stack:
            if is_open:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
                address = stack.enter_context(dashboard(url, directory))
                stack.enter_context(view([f"{address}/", f"{address}/queue/{queue}"], directory))
            time.sleep(SETTLE_S)
            found.append((is_open, time.monotonic()))
            time.sleep(WINDOW_S)
    return found


def main(url: str, rounds: int, view: Any) -> None:
    """Print the rate of each window, the medians, and the ratio of with to without."""
    config = cqueue.QueueConfig(visibility=timedelta(minutes=1))
    with (
        open_bench(load(url)) as bench,
        bench.queue(Options(), config) as queue,
        multiprocessing.Manager() as manager,
    ):
        name, room = queue.name, manager.Semaphore(AHEAD)
        with children(bench, [partial(produce, name, room), partial(consume, name, room)]) as started:
            started.begin()
            time.sleep(WARM_UP_S)
            found = windows(url, name, rounds, view)
            _, marks = started.results()
    rates: dict[bool, list[float]] = {True: [], False: []}
    for is_open, begin_s in found:
        rates[is_open].append(rate(marks, begin_s))
        print(f"{'with' if is_open else 'without':8} {rates[is_open][-1]:9,.0f} messages a second")
    ratios = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    on, off = statistics.median(rates[True]), statistics.median(rates[False])
    middle, whole = statistics.median(ratios), sum(rates[True]) / sum(rates[False])
    print(f"medians: with {on:,.0f}, without {off:,.0f} messages a second")
    print(f"with/without: {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}); all minutes {whole:.3f}")


if __name__ == "__main__":
    by_http = "http" in sys.argv[2:]
    if CHROMIUM is None and not by_http:
        raise SystemExit("there is no Chromium here: apt-get install chromium, or give `http`")
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 10, asked if by_http else shown)
