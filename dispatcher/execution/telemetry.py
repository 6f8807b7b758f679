"""Counters of a dispatcher, its log events, and the depths of its queues.

Each thread counts for itself: with one lock for all, some rounds of `bench dispatch` ran at half the rate.
Acks are counted on threads that end as soon as they have no work. So a thread that begins to count adds up
what ended threads have counted.

The depths of queues are estimated twice a minute by a thread for that, not at a scrape: a monitor that asks
often costs nothing, and an outage of Cassandra, or thousands of queues, delay no scrape.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from cqueue.dispatcher.execution.delivery import Verb
from cqueue.dispatcher.execution.events import Event, Events, OnEvent
from cqueue.doorbell import HintCounts
from cqueue.runtime.logs import DISPATCHER, describe, logger

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.delivery import Delivery, Settlement
    from cqueue.queue import Queue


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Messages by outcome.

    Attributes:
        succeeded, left, retried, snoozed, cancelled, dead: what handlers and policies decided.
        released: given back without a start.
        lost: leases that expired before something else than an ack was stored, or before an extension.
        interrupted: handlers that were ended by their time limit, or by a stop.
    """

    succeeded: int = 0
    retried: int = 0
    snoozed: int = 0
    cancelled: int = 0
    dead: int = 0
    lost: int = 0
    left: int = 0
    released: int = 0
    interrupted: int = 0


@dataclass(frozen=True, slots=True)
class QueueCounts(Outcomes):
    """Counters of one queue since the dispatcher was made, or their sums. They only grow.

    Attributes:
        received: messages taken from the queue.
        found_by_hint: received messages that a hint of this or another process has led to, and no poll.
        started: runs of handlers.
        acked: acks known to be stored.
        ack_failures: failed calls of ack, which are repeated.
        receive_failures: failed receives.
    """

    received: int = 0
    found_by_hint: int = 0
    started: int = 0
    acked: int = 0
    ack_failures: int = 0
    receive_failures: int = 0


OUTCOMES = tuple(each.name for each in fields(Outcomes))
"""Names of the outcomes."""
DEPTHS_S = 30.0
"""Seconds between two estimates of all depths, ±25 % to spread dispatchers."""
COUNTERS = tuple(each.name for each in fields(QueueCounts))
"""Names of all counters."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A dispatcher at one moment.

    Attributes:
        total: counters of all queues together.
        queues: counters by queue.
        running: handlers that run now.
        unstarted: messages that this process holds and has not started.
        unsettled: messages decided, and not yet known to be stored.
        state: new, starting, running, stopping, or stopped.
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
    failing: tuple[str, ...] = ()
    stuck: dict[str, str] = field(default_factory=dict)
    hints: HintCounts = field(default_factory=HintCounts)


Counts = defaultdict[tuple[str, str], int]
"""By queue and name; 0 if nothing was counted."""


def _add(counts: Counts, sums: Counts) -> None:
    for key, count in counts.items():
        sums[key] += count


class _Own(threading.local):
    """The counters of the thread that asks; `begin` makes them when it asks first."""

    def __init__(self, begin: Callable[[], Counts]) -> None:
        self.counts = begin()


class Telemetry(Events):
    """Counters by queue, and log events. Any thread may add."""

    def __init__(self, on_event: OnEvent | None = None) -> None:
        super().__init__(on_event)
        self._mutex = threading.Lock()
        self._by_thread: dict[threading.Thread, Counts] = {}
        self._of_ended: Counts = defaultdict(int)
        self._own = _Own(self._begin)
        self.on_lost: Callable[[Delivery], None] | None = None  # the history of queues that keep one

    def count(self, queue: str, name: str, count: int = 1) -> None:
        """Add to a counter of the queue."""
        self._own.counts[queue, name] += count

    def _begin(self) -> Counts:
        """Return counters for this thread; add up those of threads that have ended."""
        counts: Counts = defaultdict(int)
        with self._mutex:
            for thread in [one for one in self._by_thread if not one.is_alive()]:
                _add(self._by_thread.pop(thread), self._of_ended)
            self._by_thread[threading.current_thread()] = counts
        return counts

    def decided(self, delivery: Delivery, settlement: Settlement) -> None:
        """Log a decision about a message."""
        fields: dict[str, Any] = {}
        if settlement.reason:
            fields["reason"] = (settlement.log_reason or settlement.reason).partition("\n")[0]
        if delivery.error is not None:
            fields["error"] = delivery.error
        if settlement.verb in {Verb.NACK, Verb.SNOOZE}:
            fields["delay_s"] = settlement.delay.total_seconds()
        self.of(Event(f"message_{settlement.outcome}"), delivery, **fields)

    def lost(self, delivery: Delivery, **fields: Any) -> None:
        """Count and log a lost lease; the message's handler is told, if it runs.

        It may be noticed twice, while the handler runs and as its decision is stored; it is counted once.
        """
        if not delivery.is_lost:
            self.count(delivery.poller.name, "lost")
        delivery.lose()
        self.of(Event.LOST, delivery, **fields)
        if self.on_lost is not None and delivery.poller.keeps_history:
            self.on_lost(delivery)

    def by_queue(self, queues: Iterable[str]) -> dict[str, QueueCounts]:
        """Return the counters of these queues, and of others that anything was counted of."""
        found: dict[str, dict[str, int]] = {queue: {} for queue in queues}
        with self._mutex:
            counts = self._of_ended.copy()
            for each in self._by_thread.values():
                _add(each.copy(), counts)
        for (queue, name), count in counts.items():
            found.setdefault(queue, {})[name] = count
        return {queue: QueueCounts(**each) for queue, each in found.items()}


def total(counts: dict[str, QueueCounts]) -> QueueCounts:
    """Return the sums over all queues."""
    return QueueCounts(**{name: sum(getattr(one, name) for one in counts.values()) for name in COUNTERS})


@dataclass(frozen=True, slots=True)
class Depth:
    """The content of a queue, as last estimated.

    Attributes:
        ready: messages that are due and not held.
        in_flight: messages that consumers of all processes hold.
        dead: letters in the dead-letter queue; None for a dead-letter queue.
        oldest_age_s: seconds since the oldest message that a consumer may claim was due; 0 if there is none.
        delayed: messages that are due later.
        waiting: messages that were nacked or snoozed, and are not due again yet.
    """

    ready: int
    in_flight: int
    dead: int | None
    oldest_age_s: float
    delayed: int = 0
    waiting: int = 0


class Depths:
    """The latest depths by queue, estimated on a thread of its own if `wanted` is set before the start."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.wanted = False
        self.latest: dict[str, Depth] = {}
        self._queues = tuple(queues)
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="cqueue-depths", daemon=True)

    def start(self) -> None:
        """Start the thread, if depths are wanted."""
        if self.wanted:
            self.thread.start()

    def close(self) -> None:
        """End the thread after the queue that it reads."""
        self._stopping.set()

    def _run(self) -> None:
        self.refresh()
        while not self._stopping.wait(DEPTHS_S * random.uniform(0.75, 1.25)):
            self.refresh()

    def refresh(self) -> None:
        """Estimate anew. A queue that cannot be read has no depth, because an old one would look current."""
        found: dict[str, Depth] = {}
        for queue in self._queues:
            if self._stopping.is_set():
                return
            try:
                found[queue.name] = depth_of(queue)
            except Exception as exc:  # noqa: BLE001 - the thread must survive every error
                logger(DISPATCHER).info("depth_unknown", queue=queue.name, error=describe(exc))
        self.latest = found


def depth_of(queue: Queue) -> Depth:
    """Estimate the depth of a queue.

    Raises:
        CqueueError: it cannot be read, or there is no such queue any more.
    """
    stats = queue.stats()
    age_s = (queue.now - stats.oldest).total_seconds() if stats.oldest is not None else 0.0
    return Depth(
        stats.ready, stats.claimed, stats.dead, max(0.0, age_s), delayed=stats.delayed, waiting=stats.waiting
    )
