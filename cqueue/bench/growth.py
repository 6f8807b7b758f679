"""Measure whether a queue stays quick as its backlog grows, and as more processes use it.

A drain ends when the last ack is stored. It is of a backlog that is complete before the drain begins, except
where producers and consumers work at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final, NamedTuple

from cqueue.bench.children import Signals, Work, children
from cqueue.bench.options import Options
from cqueue.bench.setup import (
    Bench,
    Figures,
    Progress,
    in_turn,
    medians_of,
    ratios_of,
    silent,
    times_ms,
)
from cqueue.bench.throughput import send_all
from cqueue.errors import NotDone
from cqueue.queue import Queue

FEW, MANY = 2, 10
"""Numbers of consumer processes that are compared."""
PAIRS: Final = (2, 4)
"""Producer processes, and as many consumer processes."""
IDLE: Final = timedelta(seconds=3)
"""A consumer that received nothing for this long takes the queue for empty."""


def backlog(
    bench: Bench, options: Options, large: int, rounds: int = 3, progress: Progress = silent
) -> Figures:
    """The rate at which one consumer drains a large backlog, beside that of a small one, in turn."""
    drain = partial(_drain_alone, bench, options)
    figures = _compared("of", drain, (options.messages, large), rounds, progress)
    return bench.result("backlog", options, figures, rounds=rounds)


def consumers(bench: Bench, options: Options, rounds: int = 3, progress: Progress = silent) -> Figures:
    """The rate at which ten processes drain a backlog, beside that of two, in turn."""
    figures = _compared("with", partial(_drain_together, bench, options), (FEW, MANY), rounds, progress)
    return bench.result("consumers", options, figures, rounds=rounds)


def processes(bench: Bench, options: Options, rounds: int = 3, progress: Progress = silent) -> Figures:
    """The rate of four producer and four consumer processes at once, beside that of two and two, in turn."""
    figures = _compared("pairs", partial(_flow_together, bench, options), PAIRS, rounds, progress)
    return bench.result("processes", options, figures, rounds=rounds)


def _compared(
    word: str, drain: Callable[[int], Figures], counts: tuple[int, int], rounds: int, progress: Progress
) -> Figures:
    """Medians for the few and the many, and of the ratio of their rates, after the few once to warm up."""
    few, many = counts
    drain(few)
    ways = {"few": lambda _part: drain(few), "many": lambda _part: drain(many)}
    found = in_turn(ways, rounds, progress, warm_up=False)
    return {
        **ratios_of(found["many"], found["few"]),
        **{
            f"{word}_{count}": medians_of(results, results[0])
            for count, results in zip(counts, found.values(), strict=True)
        },
    }


class _Share(NamedTuple):
    """The part of one process. messages: those that it acked. Times are of the monotonic clock."""

    messages: int
    began_s: float
    ended_s: float
    took_s: list[float]


def _drain_alone(bench: Bench, options: Options, messages: int) -> Figures:
    options = replace(options, messages=messages)
    with bench.queue(options) as queue:
        send_all(queue, options)
        return _rate([_drain(queue, options.receive, options.messages)], options)


def _drain_together(bench: Bench, options: Options, processes: int) -> Figures:
    with bench.queue(options) as queue:
        send_all(queue, options)
        return _together(bench, [partial(_consume, queue.name, options.receive)] * processes, options)


def _flow_together(bench: Bench, options: Options, pairs: int) -> Figures:
    """Let producers and consumers begin at the same moment; measure from the first send to the last ack."""
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
    send_all(queue, options)
    return _Share(0, began_s, time.monotonic(), [])


def _consume(name: str, receive: int, bench: Bench, signals: Signals) -> _Share:
    queue = bench.client.queue(name)
    signals.begin.wait()
    return _drain(queue, receive, None)


def _drain(queue: Queue, receive: int, expected: int | None) -> _Share:
    """Receive and ack until `expected` messages are acked, or none came for `IDLE`."""
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
    return {"per_s": round(drained / total_s, 1), **times_ms(took_s)}
