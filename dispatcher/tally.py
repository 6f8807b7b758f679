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
from typing import TYPE_CHECKING, Any

from cqueue.dispatcher.delivery import Verb
from cqueue.dispatcher.events import Event, Events, OnEvent, describe, logger
from cqueue.doorbell import HintCounts

if TYPE_CHECKING:
    from cqueue.dispatcher.delivery import Delivery, Settlement
    from cqueue.queue import Queue


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of messages.

    Attributes:
        succeeded, left, retried, snoozed, cancelled, dead: what handlers, and policies, decided.
        released: given back unstarted.
        lost: whose timeout had passed when something else than an ack was to be stored, or extended.
        interrupted: calls that were ended for their time limit, or at a stop.
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
    """Counters of one queue since the dispatcher was made, or their sums. Every one only grows.

    Attributes:
        received: messages taken from the queue.
        found_by_hint: of those received, how many were found by a look that a hint has caused, and not by a
            poll: this or another process had told of messages.
        started: calls of handlers.
        acked: acks known to be stored.
        ack_failures: calls to ack that have to be repeated.
        receive_failures: receives that failed.
    """

    received: int = 0
    found_by_hint: int = 0
    started: int = 0
    acked: int = 0
    ack_failures: int = 0
    receive_failures: int = 0


OUTCOMES = tuple(each.name for each in fields(Outcomes))
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
    failing: tuple[str, ...] = ()
    stuck: dict[str, str] = field(default_factory=dict)
    hints: HintCounts = field(default_factory=HintCounts)


class Account(Events):
    """What a dispatcher has done: counted by queue, and told. Any thread may add."""

    def __init__(self, on_event: OnEvent | None = None) -> None:
        super().__init__(on_event)
        self._all: list[dict[tuple[str, str], int]] = []  # one for each thread
        self._own = threading.local()

    def count(self, queue: str, name: str, count: int = 1) -> None:
        """Add to a counter of the queue."""
        try:
            counts: dict[tuple[str, str], int] = self._own.counts
        except AttributeError:
            counts = self._own.counts = {}
            self._all.append(counts)
        key = (queue, name)
        counts[key] = counts.get(key, 0) + count

    def settled(self, delivery: Delivery, settlement: Settlement) -> None:
        """A handler, or its policy, has decided; told of unless all went well."""
        self.count(delivery.lane.name, settlement.outcome)
        if settlement.outcome == "succeeded":
            return
        fields: dict[str, Any] = {}
        if settlement.reason:
            fields["reason"] = settlement.reason.partition("\n")[0]
        if delivery.error is not None:
            fields["error"] = delivery.error
        if settlement.verb in {Verb.NACK, Verb.SNOOZE}:
            fields["delay_s"] = settlement.delay.total_seconds()
        self.of(Event(f"message_{settlement.outcome}"), delivery, **fields)

    def lost(self, delivery: Delivery, **fields: Any) -> None:
        """A message belongs to somebody else: its handler is told as well, if it runs."""
        delivery.lose()
        self.count(delivery.lane.name, "lost")
        self.of(Event.LOST, delivery, **fields)

    def broken(self, delivery: Delivery, error: BaseException) -> None:
        """A run has failed in the dispatcher itself: its message is left to its timeout."""
        self.say(Event.BROKEN, error=error, queue=delivery.lane.name)
        delivery.is_left = True

    def by_queue(self, queues: Iterable[str]) -> dict[str, QueueCounts]:
        """The sums, by queue."""
        sums: dict[str, Counter[str]] = {queue: Counter() for queue in queues}
        for counts in self._all.copy():
            for (queue, name), count in counts.copy().items():
                sums.setdefault(queue, Counter())[name] += count
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
