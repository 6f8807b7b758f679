"""Measure how soon a follower and a subscription in other processes see an append to a log, at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from cqueue.bench.bare import Pace
from cqueue.bench.children import Signals, Work, children
from cqueue.bench.latency import PATIENCE, UNUSED, Asked, listened, note, row, send_all
from cqueue.bench.options import Options
from cqueue.bench.setup import Bench, Progress, silent
from cqueue.errors import NotDone
from cqueue.log.records import LogRecord

RATES: Final = (20,)
"""Appends a second."""
TOPIC: Final = "bench"
LOOK_S: Final = 0.05


def followers(bench: Bench, options: Options, asked: Asked, progress: Progress = silent) -> dict[str, Any]:
    """Append one by one to a log that two other processes read, at each rate: append to listener, in ms."""
    paces = asked.paces()
    rows: list[dict[str, Any]] = []
    for pace in paces:
        rows += _at_rate(bench, options, pace)
        progress(len(rows) / len(paces) / 2)
    return bench.result("followers", options, {"rows": rows}, without=UNUSED)


def _at_rate(bench: Bench, options: Options, pace: Pace) -> list[dict[str, Any]]:
    bench.calm()
    with bench.log(options.shards) as log:
        works: Sequence[Work[list[float]]] = [partial(read, log.name, pace) for read in (_follow, _subscribe)]
        append = partial(send_all, partial(log.append, TOPIC), pace, options.size)
        (followed_s, subscribed_s), appends_s = listened(bench, works, children, append)
    return [
        row("follower", pace, followed_s, appends_s),
        row("subscription", pace, subscribed_s, appends_s),
    ]


def _follow(name: str, pace: Pace, bench: Bench, signals: Signals) -> list[float]:
    """Follow with low latency until all is there; how long each record took."""
    took_s: list[float] = []
    with bench.client.log(name).follow(low_latency=True) as follower:
        signals.begin.wait()
        while len(took_s) < pace.count and (records := follower.poll(PATIENCE)):
            for record in records:
                note(record.body, took_s)
    return took_s


def _subscribe(name: str, pace: Pace, bench: Bench, signals: Signals) -> list[float]:
    """Subscribe until all is there, from when all partitions are read; how long each record took."""
    took_s: list[float] = []
    every = threading.Event()

    def listen(record: LogRecord) -> None:
        note(record.body, took_s)
        if len(took_s) >= pace.count:
            every.set()

    partitions = bench.client.log(name).config.partitions
    made = bench.client.subscribe(name, name="bench", listeners=[listen], start="latest", low_latency=True)
    with made as subscription:
        end_s = time.monotonic() + PATIENCE.total_seconds()
        while len(subscription.partitions) < partitions:
            if time.monotonic() > end_s:
                raise NotDone("the subscription did not get all partitions")
            time.sleep(LOOK_S)
        signals.begin.wait()
        every.wait(pace.seconds + PATIENCE.total_seconds())
    return took_s
