"""What a spool holds, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cqueue.spool.spool import Spool


class SpoolCollector(Collector):
    """Shows what a spool holds whenever somebody wants to know: `REGISTRY.register(SpoolCollector(spool))`.

    The gauges, by `topic` and `queue_id` but for the last: `cqueue_spool_waiting` (messages that are not
    forwarded), `cqueue_spool_oldest_age_seconds`, `cqueue_spool_bytes` (of its files), `cqueue_spool_lost`
    (messages of damaged ranges) and `cqueue_spool_full` (0 or 1).
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def collect(self) -> Iterator[Metric]:
        """Return the gauges as they are now."""
        waiting, age = (
            _gauge("waiting", "Messages not forwarded."),
            _gauge("oldest_age_seconds", "Their age."),
        )
        size, lost = _gauge("bytes", "Bytes of files."), _gauge("lost", "Messages of damaged ranges.")
        now_ms = time.time_ns() // 1_000_000
        for queue in self._spool.status():
            place = [queue.topic, str(queue.queue_id)]
            waiting.add_metric(place, queue.end - queue.progress)
            age.add_metric(place, 0 if queue.oldest_ms is None else max(0, now_ms - queue.oldest_ms) / 1000)
            size.add_metric(place, queue.bytes)
            lost.add_metric(place, sum(map(len, queue.lost)))
        full = GaugeMetricFamily("cqueue_spool_full", "1 while appends wait.", self._spool.is_full())
        return iter([waiting, age, size, lost, full])


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cqueue_spool_{name}", text, labels=["topic", "queue_id"])
