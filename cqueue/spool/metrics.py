"""What a spool holds and what was forwarded from it, for Prometheus."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cqueue.spool.spool import Spool, check_spool, open_spools
from cqueue.spool.stored_queue import QueueStatus

_GAUGES: Final = {
    "waiting": "Messages not forwarded.",
    "oldest_age_seconds": "Seconds since the oldest message not forwarded was appended; 0 if there is none.",
    "bytes": "Bytes of files.",
    "lost": "Messages of damaged ranges.",
}
_COUNTERS: Final = {
    "forwarded": "Messages forwarded since the spool was opened.",
    "failures": "Batches that could not be forwarded, and were tried again.",
}
_LABELS: Final = ("topic", "queue_id")
_OF_SPOOL: Final = {
    "used_bytes": "Bytes of messages not forwarded, as the limit counts them.",
    "used_messages": "Messages not forwarded, of all topics, as the limit counts them.",
    "limit_bytes": "Bytes of messages not forwarded, at most: `max_bytes`. Appends wait from 80 % on.",
    "limit_messages": "Messages not forwarded, at most: `max_records`. Appends wait from 80 % on.",
    "free_bytes": "Bytes of the disk that the spool may still take: what is free above `disk_reserve`.",
}
_FAMILIES: Final = (
    (GaugeMetricFamily, _LABELS, _GAUGES),
    (CounterMetricFamily, _LABELS, _COUNTERS),
    (GaugeMetricFamily, ("path",), _OF_SPOOL),
    (GaugeMetricFamily, (), {"full": "1 while appends wait."}),
)
_LARGEST: Final = frozenset({"oldest_age_seconds", "full"})
"""Metrics of which the largest counts where several spools have the same labels; others are added up."""


class SpoolCollector(Collector):
    """Asks a spool at each scrape: `REGISTRY.register(SpoolCollector(spool))`.

    Gauges by `topic` and `queue_id`: `cqueue_spool_waiting` (messages that are not forwarded),
    `cqueue_spool_oldest_age_seconds`, `cqueue_spool_bytes` (of its files), `cqueue_spool_lost` (messages of
    damaged ranges). Counters by the same labels: `cqueue_spool_forwarded_total` (messages),
    `cqueue_spool_failures_total` (batches). Gauges by `path`: `cqueue_spool_used_bytes` and
    `cqueue_spool_used_messages`, `cqueue_spool_limit_bytes` and `cqueue_spool_limit_messages` (`max_bytes`
    and `max_records`), `cqueue_spool_free_bytes` (free on the disk above `disk_reserve`). Without labels:
    `cqueue_spool_full` (0 or 1).

    Args:
        spool: what to ask; by default all spools that this process has open for appending. Figures of one
            topic in several of them are added up; the largest age counts.

    Raises:
        BadInput: `spool` is none.
    """

    def __init__(self, spool: Spool | None = None) -> None:
        if spool is not None:
            check_spool(spool)
        self._spool = spool

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        told = defaultdict[str, dict[tuple[str, ...], float]](dict)

        def tell(values: Mapping[str, float], *labels: str) -> None:
            for name, value in values.items():
                before = told[name].get(labels, 0)
                told[name][labels] = max(before, value) if name in _LARGEST else before + value

        for spool in open_spools() if self._spool is None else [self._spool]:
            for queue in spool.status():
                tell(_levels(queue), queue.topic, str(queue.queue_id))
            for topic, counts in list(spool.forwarding.items()):
                tell(asdict(counts), topic, "0")
            tell(_room(spool), str(spool.path))
            tell({"full": spool.is_full()})
        for kind, names, texts in _FAMILIES:
            for name, text in texts.items():
                family = kind(f"cqueue_spool_{name}", text, labels=names)
                for labels, value in told[name].items():
                    family.add_metric(labels, value)
                yield family


def _levels(queue: QueueStatus) -> dict[str, float]:
    """Return the values of the gauges of a queue."""
    now_ms = time.time_ns() // 1_000_000
    return {
        "waiting": queue.end - queue.progress,
        "oldest_age_seconds": 0 if queue.oldest_ms is None else max(0, now_ms - queue.oldest_ms) / 1000,
        "bytes": queue.bytes,
        "lost": sum(map(len, queue.lost)),
    }


def _room(spool: Spool) -> dict[str, float]:
    """Return what the spool holds and may hold, and what its disk has room for."""
    options, used = spool.options, spool.used()
    room: dict[str, float] = {
        "used_bytes": used.size,
        "used_messages": used.records,
        "limit_bytes": options.max_bytes,
        "limit_messages": options.max_records,
    }
    with suppress(OSError):  # the disk does not answer: the next append will say so
        room["free_bytes"] = max(0, spool._disk.free(spool.path) - options.disk_reserve)  # noqa: SLF001
    return room
