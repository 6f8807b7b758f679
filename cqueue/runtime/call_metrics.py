"""Counts and durations of a client's calls, for Prometheus; kept only where somebody asks for them.

A driver without a meter pays one look at an attribute for a call, and nothing for a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from cqueue.doorbell import HintCounts
from cqueue.doorbell.counts import as_counts
from cqueue.errors import NotDone, OutcomeUnknown

CALLS: Final = ("send", "claim", "ack", "nack", "bury")
"""Calls whose failures are counted."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds in seconds: from a round trip to the longest call."""


class CallMetrics(Collector):
    """The counters of one client's calls, or of several clients'. Thread-safe.

    Args:
        hints: return the counts of the client's datagrams; None: they are shown elsewhere.
        clock: monotonic seconds.
    """

    def __init__(
        self, hints: Callable[[], HintCounts] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._hints = hints
        self._clock = clock
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"cqueue_{name}", text, ("queue", *labels), registry=registry)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"cqueue_{name}", text, ("queue",), registry=registry, buckets=BUCKETS)

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

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        yield from self._registry.collect()
        if self._hints is not None:
            family = CounterMetricFamily(
                "cqueue_hints", "Datagrams by which processes tell each other of messages.", labels=("event",)
            )
            for event, count in as_counts(self._hints()).items():
                family.add_metric((event,), count)
            yield family

    # ── called by what is counted ──

    def count(self, what: str, queue: str, count: int = 1) -> None:
        """Add to a counter: sent, claimed, acked, returned, buried or expired."""
        if count:
            self._counters[what].labels(queue).inc(count)

    def now_s(self) -> float:
        """Return when a call begins, for `took`."""
        return self._clock()

    def took(self, call: str, queue: str, since_s: float) -> None:
        """Note how long a send, claim or ack took."""
        self._seconds[call].labels(queue).observe(self._clock() - since_s)

    def failed(self, call: str, queue: str, errors: Iterable[BaseException]) -> None:
        """Note how calls have failed; bad input is no failure of the queue."""
        for error in errors:
            if isinstance(error, OutcomeUnknown):
                self._unknown.labels(queue, call).inc()
            elif isinstance(error, NotDone):
                self._not_done.labels(queue, call).inc()
