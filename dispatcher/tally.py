"""Counting without locks: each thread counts for itself, and who asks adds up.

A counter that all threads share would be a lock, or a lost update, per message.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cqueue.doorbell import HintCounts

COUNTERS = (
    "received",
    "found_by_hint",
    "started",
    "succeeded",
    "left",
    "retried",
    "snoozed",
    "cancelled",
    "dead",
    "released",
    "lost",
    "interrupted",
    "acked",
    "ack_failures",
    "receive_failures",
)


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

    def merge(self, other: Tally) -> None:
        """Add what another one, which nobody else uses, has counted."""
        for queue, counts in other.counts.items():
            for name, count in counts.items():
                self.add(queue, name, count)


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
    """All tallies of a dispatcher."""

    def __init__(self) -> None:
        self._all: list[Tally] = []

    def new(self) -> Tally:
        """One more, for one thread."""
        tally = Tally()
        self._all.append(tally)
        return tally

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
