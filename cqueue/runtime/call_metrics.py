"""Counts and durations of a client's calls, for Prometheus; kept only where somebody asks for them.

A driver without a meter pays one look at an attribute for a call, and nothing for a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from cqueue.doorbell import HintCounts
from cqueue.errors import NotDone, OutcomeUnknown
from cqueue.store.operations import IdSlice, Mutate, Operation, Range, Slice, Together, WideRow

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds in seconds: from a round trip to the longest call."""
TOMBSTONES: Final = (1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000)
"""Upper bounds of tombstones a read: from where Cassandra tells of them to where it refuses the read."""
QUEUES: Final = 10_000
"""Queues that have figures of their own, with 3 KB each: the first ones that a client uses. All others are
counted together, so that sums stay right."""
OTHERS: Final = "(others)"
"""Their label. No queue can have that name."""

M = TypeVar("M", Counter, Histogram)


class CallMetrics(Collector):
    """The counters of one client's calls, or of several clients'. Thread-safe.

    Args:
        hints: return the counts of the client's datagrams; None: they are shown elsewhere.
    """

    def __init__(self, hints: Callable[[], HintCounts] | None = None) -> None:
        self._hints = hints
        self._queues: set[str] = set()  # those with figures of their own
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"cqueue_{name}", text, ("queue", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float] = BUCKETS) -> Histogram:
            return Histogram(f"cqueue_{name}", text, ("queue",), registry=registry, buckets=buckets)

        self._counters: Final = {
            "sent": counter("sent", "Messages known to be stored."),
            "claimed": counter("claimed", "Messages taken from the queue."),
            "acked": counter("acked", "Acks known to be stored."),
            "returned": counter("returned", "Messages nacked or snoozed."),
            "buried": counter("buried", "Messages sent to the dead-letter queue."),
            "expired": counter("expired", "Messages deleted undelivered, as their ttl was over."),
        }
        self._not_done = counter("not_done", "Calls that did nothing.", "call")
        self._unknown = counter("unknown_outcomes", "Calls that may have done something.", "call")
        self._seconds: Final = {
            "send": histogram("send_seconds", "How long sends took, of one message or many."),
            "claim": histogram("claim_seconds", "How long polls took that found messages."),
            "ack": histogram("ack_seconds", "How long acks took, of one message or many."),
        }
        mutations = "Conditional mutations that were answered."
        self._mutations = counter("mutations", mutations, "mutation", "outcome")
        crossed = "Tombstones that reads crossed; 0 where Cassandra tells of none."
        self._tombstones = histogram("read_tombstones", crossed, TOMBSTONES)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        yield from self._registry.collect()
        if self._hints is not None:
            family = CounterMetricFamily(
                "cqueue_hints", "Datagrams by which processes tell each other of messages.", labels=("event",)
            )
            for event, count in asdict(self._hints()).items():
                family.add_metric((event,), count)
            yield family

    def _of(self, metric: M, queue: str, *labels: str) -> M:
        """Return a queue's own counter of a metric, or the one that it shares with others."""
        if queue not in self._queues:
            if len(self._queues) < QUEUES:
                self._queues.add(queue)
            else:
                queue = OTHERS
        return metric.labels(queue, *labels)

    # ── called by what is counted ──

    def count(self, what: str, queue: str, count: int = 1) -> None:
        """Add to a counter: sent, claimed, acked, returned, buried or expired."""
        if count:
            self._of(self._counters[what], queue).inc(count)

    def took(self, call: str, queue: str, since_s: float) -> None:
        """Note how long a send, claim or ack took that began at `since_s`, in monotonic seconds."""
        self._of(self._seconds[call], queue).observe(time.monotonic() - since_s)

    def answered(self, operation: Operation[Any], answer: Any) -> None:
        """Note what an answer tells: whether a mutation was applied, how many tombstones a read crossed."""
        match operation:
            case Together(parts):
                for part, one in zip(parts, answer, strict=True):
                    self.answered(part, one)
            case Mutate(wide_row=wide_row) if isinstance(answer, bool):
                outcome = "applied" if answer else "not_applied"
                self._of(self._mutations, _queue(wide_row), mutation_kind(operation), outcome).inc()
            case Range(wide_row=wide_row) if isinstance(answer, Slice | IdSlice):
                self._of(self._tombstones, _queue(wide_row)).observe(answer.tombstones)

    def failed(self, call: str, queue: str, errors: Iterable[BaseException]) -> None:
        """Note how calls have failed; bad input is no failure of the queue."""
        for error in errors:
            if isinstance(error, OutcomeUnknown):
                self._of(self._unknown, queue, call).inc()
            elif isinstance(error, NotDone):
                self._of(self._not_done, queue, call).inc()


def mutation_kind(mutation: Mutate) -> str:
    """Return what a mutation is for, as far as its form tells.

    claim: slots or cursors under the lock's fence. lock: the lock alone. retire: the end of an empty wide
    row. settle: slots alone, as acks, nacks and extensions change them.
    """
    if mutation.retire:
        return "retire"
    if mutation.lock is None:
        return "settle"
    return "claim" if mutation.slots or mutation.cursors else "lock"


def _queue(wide_row: WideRow) -> str:
    """Return the name of the queue that a wide row belongs to."""
    return wide_row.queue.partition("@")[0]
