"""Counting without locks: each thread counts for itself, and who asks adds up.

A counter that all threads share would be a lock, or a lost update, per message.
What queues hold is estimated by a thread that looks after schedules anyway, twice a minute, and
not when somebody scrapes: a monitor that asks often, or an outage of Cassandra, holds up no scrape.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from cqueue.dispatcher.events import describe, logger
from cqueue.doorbell import HintCounts

if TYPE_CHECKING:
    from cqueue.queue import Queue


class Tally:
    """Counts by queue and name; one thread adds, any may read."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, dict[str, int]] = {}

    def add(self, queue: str, name: str, count: int = 1) -> None:
        """Count."""
        counts = self.counts.get(queue)
        if counts is None:
            counts = self.counts[queue] = dict.fromkeys(COUNTERS, 0)
        counts[name] += count


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Counters of one queue since the dispatcher was made, or their sums. Every one only grows.

    Attributes:
        received: messages taken from the queue.
        found_by_hint: of those received, how many were found by a look that a hint has caused, and not by a
            poll: this or another process had told of messages.
        started: calls of handlers.
        succeeded, left, retried, snoozed, cancelled, dead: what handlers, and policies, decided.
        released: given back unstarted.
        lost: whose timeout had passed when something else than an ack was to be stored, or extended.
        interrupted: calls that were ended for their time limit, or at a stop.
        acked: acks known to be stored.
        ack_failures: calls to ack that have to be repeated.
        receive_failures: receives that failed.
    """

    received: int = 0
    found_by_hint: int = 0
    started: int = 0
    succeeded: int = 0
    left: int = 0
    retried: int = 0
    snoozed: int = 0
    cancelled: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    interrupted: int = 0
    acked: int = 0
    ack_failures: int = 0
    receive_failures: int = 0


COUNTERS = tuple(each.name for each in fields(QueueCounts))


@dataclass(frozen=True, slots=True)
class Stats:
    """A dispatcher at one moment.

    Attributes:
        total: counters of all queues together.
        queues: counters by queue.
        running: handlers that run now.
        unstarted: messages that this process holds and has not started.
        unsettled: decided, and not yet known to be stored.
        unstarted_by_queue: as `unstarted`, by queue; queues with none are left out.
        state: new, running, stopping, or stopped.
        failing: queues whose last receive failed.
        stuck: queues whose receives have all failed for some seconds, with the last error.
        hints: datagrams by which processes tell each other of messages.
    """

    total: QueueCounts
    queues: dict[str, QueueCounts]
    running: int
    unstarted: int
    unsettled: int
    state: str
    unstarted_by_queue: dict[str, int] = field(default_factory=dict)
    failing: tuple[str, ...] = ()
    stuck: dict[str, str] = field(default_factory=dict)
    hints: HintCounts = field(default_factory=HintCounts)


class Tallies:
    """What a dispatcher counts. Any thread may add."""

    def __init__(self) -> None:
        self._all: list[Tally] = []
        self._own = threading.local()

    def add(self, queue: str, name: str, count: int = 1) -> None:
        """Count."""
        try:
            tally: Tally = self._own.tally
        except AttributeError:
            tally = self._own.tally = Tally()
            self._all.append(tally)
        tally.add(queue, name, count)

    def by_queue(self, queues: list[str]) -> dict[str, QueueCounts]:
        """The sums, by queue."""
        sums: dict[str, Counter[str]] = {queue: Counter() for queue in queues}
        for tally in list(self._all):
            for queue, counts in tally.counts.copy().items():
                sums.setdefault(queue, Counter()).update(counts.copy())
        return {queue: QueueCounts(**counts) for queue, counts in sums.items()}


def total(counts: dict[str, QueueCounts]) -> QueueCounts:
    """The sums over all queues."""
    return QueueCounts(**{name: sum(getattr(one, name) for one in counts.values()) for name in COUNTERS})


@dataclass(frozen=True, slots=True)
class Depth:
    """What a queue held at the last look, estimated.

    Attributes:
        ready: messages due and held by nobody.
        in_flight: messages that consumers hold, of all processes.
        dead: letters in its dead-letter queue; None of a dead-letter queue.
        oldest_age_s: for how long the oldest message has been ready; 0 if none is.
    """

    ready: int
    in_flight: int
    dead: int | None
    oldest_age_s: float


class Depths:
    """The latest figures by queue, once somebody wants them."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.wanted = False
        self.latest: dict[str, Depth] = {}
        self._queues = tuple(queues)

    def look(self) -> None:
        """Estimate anew. A queue that cannot be read has no figures: old ones would look like news."""
        if self.wanted:
            self.latest = {
                queue.name: depth for queue in self._queues if (depth := _depth(queue)) is not None
            }


def _depth(queue: Queue) -> Depth | None:
    try:
        stats = queue.stats()
        age_s = (queue.now - stats.oldest).total_seconds() if stats.oldest is not None else 0.0
    except Exception as exc:  # noqa: BLE001 - the thread must outlive whatever one look meets
        logger().info("depth_unknown", queue=queue.name, error=describe(exc))
        return None
    return Depth(stats.ready, stats.claimed, stats.dead, max(0.0, age_s))
