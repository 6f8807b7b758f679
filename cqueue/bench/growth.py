"""Whether a queue stays as quick as it grows: by its backlog, and by the number of its processes.

A drain ends when the last ack is stored. It is of a backlog that is complete before the drain begins, except
where producers and consumers work at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from cqueue.bench.children import Signals, Work, children
from cqueue.bench.setup import Bench, Options, Progress, median_of, percentile, ratios_of, silent
from cqueue.bench.throughput import bodies
from cqueue.errors import NotDone
from cqueue.message import Message
from cqueue.queue import Queue

FEW, MANY = 2, 10
"""Consumer processes."""
PAIRS: Final = (2, 4)
"""Producer processes, and as many consumer processes."""
IDLE: Final = timedelta(seconds=3)
"""A consumer that got nothing for so long takes the queue for empty."""

Figures = dict[str, float]


def backlog(
    bench: Bench, options: Options, large: int, rounds: int = 3, progress: Progress = silent
) -> dict[str, Any]:
    """The rate at which one consumer drains a large backlog, beside that of a small one, in turn."""

    def drain(count: int) -> Figures:
        return _drain_alone(bench, replace(options, messages=count))

    drain(options.messages)  # to warm up
    figures = _compared("of", drain, options.messages, large, rounds, progress)
    return {"bench": "backlog", **figures, "rounds": rounds, **bench.circumstances(options)}


def consumers(bench: Bench, options: Options, rounds: int = 3, progress: Progress = silent) -> dict[str, Any]:
    """The rate at which ten processes drain a backlog, beside that of two, in turn."""

    def drain(processes: int) -> Figures:
        return _drain_together(bench, options, processes)

    drain(FEW)  # to warm up
    figures = _compared("with", drain, FEW, MANY, rounds, progress)
    return {"bench": "consumers", **figures, "rounds": rounds, **bench.circumstances(options)}


def processes(bench: Bench, options: Options, rounds: int = 3, progress: Progress = silent) -> dict[str, Any]:
    """The rate of four producer and four consumer processes at once, beside that of two and two, in turn."""

    def flow(pairs: int) -> Figures:
        return _flow_together(bench, options, pairs)

    flow(PAIRS[0])  # to warm up
    figures = _compared("pairs", flow, *PAIRS, rounds, progress)
    return {"bench": "processes", **figures, "rounds": rounds, **bench.circumstances(options)}


def _compared(  # noqa: PLR0917 - all of it says what is compared
    word: str, drain: Callable[[int], Figures], few: int, many: int, rounds: int, progress: Progress
) -> dict[str, Any]:
    """Medians of both, and of the ratio of their rates."""
    small: list[Figures] = []
    large: list[Figures] = []
    for turn in range(rounds):
        small.append(drain(few))
        progress((2 * turn + 1) / (2 * rounds))
        large.append(drain(many))
        progress((2 * turn + 2) / (2 * rounds))
    return {
        **ratios_of(large, small),
        f"{word}_{few}": {key: median_of(small, key) for key in small[0]},
        f"{word}_{many}": {key: median_of(large, key) for key in large[0]},
    }


class _Share(NamedTuple):
    """What one process did; times of the monotonic clock. messages: those that it acked."""

    messages: int
    began_s: float
    ended_s: float
    took_s: list[float]


def _fill(queue: Queue, options: Options) -> None:
    for batch in bodies(options):
        for _, error in queue.send_many([Message(body) for body in batch]).failed:
            raise error


def _drain_alone(bench: Bench, options: Options) -> Figures:
    with bench.queue(options) as queue:
        _fill(queue, options)
        return _rate([_drain(queue, options.receive, options.messages)], options)


def _drain_together(bench: Bench, options: Options, processes: int) -> Figures:
    with bench.queue(options) as queue:
        _fill(queue, options)
        return _together(bench, [partial(_consume, queue.name, options.receive)] * processes, options)


def _flow_together(bench: Bench, options: Options, pairs: int) -> Figures:
    """Producers and consumers begin at the same moment; from the first send to the last ack."""
    with bench.queue(options) as queue:
        each, rest = divmod(options.messages, pairs)
        shares = [replace(options, messages=each + (number < rest)) for number in range(pairs)]
        producers = [partial(_produce, queue.name, share) for share in shares]
        consumers = [partial(_consume, queue.name, options.receive)] * pairs
        return _together(bench, [*producers, *consumers], options)


def _together(bench: Bench, works: Sequence[Work[_Share]], options: Options) -> Figures:
    with children(bench, works) as started:
        started.begin()
        return _rate(started.results(), options)


def _produce(name: str, options: Options, bench: Bench, signals: Signals) -> _Share:
    queue = bench.client.queue(name)
    signals.begin.wait()
    began_s = time.monotonic()
    _fill(queue, options)
    return _Share(0, began_s, time.monotonic(), [])


def _consume(name: str, receive: int, bench: Bench, signals: Signals) -> _Share:
    queue = bench.client.queue(name)
    signals.begin.wait()
    return _drain(queue, receive, None)


def _drain(queue: Queue, receive: int, expected: int | None) -> _Share:
    """Receive and ack until `expected` messages are acked, or nothing comes any more."""
    took_s: list[float] = []
    drained, began_s = 0, time.monotonic()
    ended_s = began_s
    with queue.consumer() as consumer:
        while drained != expected:
            begin = time.monotonic()
            messages = consumer.receive(receive, wait=IDLE)
            if not messages:
                break
            consumer.ack(messages)
            ended_s = time.monotonic()
            took_s.append(ended_s - begin)
            drained += len(messages)
    return _Share(drained, began_s, ended_s, took_s)


def _rate(shares: list[_Share], options: Options) -> Figures:
    drained = sum(share.messages for share in shares)
    if drained < options.messages:
        raise NotDone(f"only {drained:,} of {options.messages:,} messages came back")
    total_s = max(share.ended_s for share in shares) - min(share.began_s for share in shares)
    took_s = [one for share in shares for one in share.took_s]
    return {
        "per_s": round(drained / total_s, 1),
        "p50_ms": round(percentile(took_s, 50) * 1000, 3),
        "p99_ms": round(percentile(took_s, 99) * 1000, 3),
    }
