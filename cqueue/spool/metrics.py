"""What a spool holds and what was forwarded from it, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cqueue.spool.spool import Spool, check_spool, open_spools
from cqueue.spool.stored_queue import QueueStatus

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)

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
        spool: what to ask; by default all spools that this process has open for appending.

    Raises:
        BadInput: `spool` is none.
    """

    def __init__(self, spool: Spool | None = None) -> None:
        if spool is not None:
            check_spool(spool)
        self._spool = spool

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        gauges = _families(GaugeMetricFamily, _GAUGES, _LABELS)
        counters = _families(CounterMetricFamily, _COUNTERS, _LABELS)
        room = _families(GaugeMetricFamily, _OF_SPOOL, ("path",))
        full = GaugeMetricFamily("cqueue_spool_full", "1 while appends wait.", labels=())
        for spool in open_spools() if self._spool is None else [self._spool]:
            for queue in spool.status():
                for name, value in _levels(queue).items():
                    gauges[name].add_metric([queue.topic, str(queue.queue_id)], value)
            for topic, counts in list(spool.forwarding.items()):
                for name, counter in counters.items():
                    counter.add_metric([topic, "0"], getattr(counts, name))
            for name, value in _room(spool).items():
                room[name].add_metric([str(spool.path)], value)
            full.add_metric([], spool.is_full())
        return iter([*gauges.values(), *counters.values(), *room.values(), full])


def _families(kind: type[Family], texts: Mapping[str, str], labels: Sequence[str]) -> dict[str, Family]:
    """Return the metrics of these names, without a value."""
    return {name: kind(f"cqueue_spool_{name}", text, labels=labels) for name, text in texts.items()}


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
