"""How far subscriptions are behind, for Prometheus.

Counting a lag reads the records that are behind, which may take longer than a scrape waits. So a thread
counts, a scrape shows the last count, and the thread rests between two counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cqueue.client import Client, check_client, inside
from cqueue.errors import BadInput, NotDone, OutcomeUnknown
from cqueue.log.records import several
from cqueue.log.subscription import Lag, lags
from cqueue.message import check_queue_name
from cqueue.runtime.last_read import LastRead
from cqueue.store.log_operations import ListSubscriptions, SubscriptionKey

if TYPE_CHECKING:
    from cqueue.log.protocol.spec import LogSpec

REST_S: Final = 30.0
"""Seconds between two counts: each costs the cluster a read of all records that are behind."""
WAIT_S: Final = 2.0
"""Seconds that a scrape waits for a count: most end within it, and Prometheus waits 10 s by default."""

_LABELS: Final = ("log", "subscription")


class LagCollector(Collector):
    """Shows how far each subscription is behind: `REGISTRY.register(LagCollector(client))`. Thread-safe.

    Gauges by `log` and `subscription`: `cqueue_subscription_lag_records` (records not done yet, in all
    partitions), `cqueue_subscription_lag_seconds` (age of the oldest of them; 0 if there is none). They are
    those of the last count, which a scrape begins at most twice a minute. A subscription that could not be
    counted in all its partitions is not shown.

    Args:
        client: knows the logs.
        logs: their names; empty means all, also those that are made later.
        clock: monotonic seconds.

    Raises:
        BadInput: the client is none, or `logs` is one text, or a name in it is none.
    """

    def __init__(
        self, client: Client, logs: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_client("a LagCollector", client)
        own = inside(client)
        self._driver, self._catalog = own.driver, own.logs
        self._logs = several("logs", "names", logs or None, lambda name: check_queue_name(name, "log"))
        none: dict[tuple[str, str], Lag] = {}
        self._lags = LastRead(self._count, none, rest_s=REST_S, clock=clock)

    def __repr__(self) -> str:
        return f"<lags of {', '.join(sorted(self._logs or ())) or 'all logs'}>"

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without a value, for a registry: without these it would count to learn names."""
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        """Return the lags as they were last counted."""
        records, seconds = _families()
        for key, lag in self._lags.value(WAIT_S).items():
            records.add_metric(key, lag.count)
            seconds.add_metric(key, lag.seconds)
        return iter((records, seconds))

    def _count(self) -> dict[tuple[str, str], Lag]:
        found: dict[tuple[str, str], Lag] = {}
        with suppress(NotDone, OutcomeUnknown, BadInput):  # then nothing is known, and nothing is shown
            found.update(self._read())
        return found

    def _read(self) -> Iterator[tuple[tuple[str, str], Lag]]:
        logs = {entry.spec.partition: entry for entry in self._catalog.all()}
        for key in self._driver.ask(ListSubscriptions()):
            entry = logs.get(key.log)
            if entry is None or (self._logs and entry.row.name not in self._logs):
                continue
            lag = self._lag(key, entry.spec)
            if lag is not None:
                yield (entry.row.name, key.name), lag

    def _lag(self, key: SubscriptionKey, spec: LogSpec) -> Lag | None:
        """Return the lag of all partitions together; None if it was deleted, or one cannot be counted."""
        with suppress(NotDone, OutcomeUnknown, BadInput):
            parts = lags(self._driver, key, spec).values()
            if len(parts) == spec.partitions:  # a sum of some would look like that of all
                return Lag(sum(each.count for each in parts), max(each.seconds for each in parts))
        return None


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    """Return the metrics of records and of seconds, without a value."""
    return (
        GaugeMetricFamily("cqueue_subscription_lag_records", "Records that are not done.", labels=_LABELS),
        GaugeMetricFamily(
            "cqueue_subscription_lag_seconds", "Age of the oldest record that is not done.", labels=_LABELS
        ),
    )
