"""What queues hold that no daemon serves, and how far subscriptions are behind: `cqueue metrics`.

A scrape is answered from a cache of a few seconds, so that several monitors cost the cluster no more than
one; where a read takes longer than scrapes wait, as of 20,000 queues, from the read before. While no queue
can be read there is no figure of any: an old one would look like news. One that cannot be read while others
can is left out alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from cqueue.client import Client, inside
from cqueue.dispatcher.execution.telemetry import Depth, depth_of
from cqueue.dispatcher.service.health import Health
from cqueue.dispatcher.service.metrics import exposition, held, packed
from cqueue.errors import CqueueError, DamagedRow, QueueNotFound
from cqueue.log.metrics import LagCollector
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.last_read import LastRead
from cqueue.runtime.logs import DISPATCHER, describe, logger

FRESH_S: Final = 5.0
"""Seconds for which figures are shown again: shorter than scrapes are usually apart."""
PATIENCE_S: Final = 4.0
"""Seconds that the list of queues may take, and the figures of one."""
WAIT_S: Final = 6.0
"""Seconds that a scrape waits for a read: longer than PATIENCE_S, so that it says when Cassandra has gone,
and shorter than Prometheus waits, 10 s by default."""
AT_A_TIME: Final = 8
"""Queues that are estimated side by side."""


class Exporter:
    """Estimates what queues hold when somebody scrapes. Thread-safe.

    Args:
        client: knows the queues; made with `lazy`, so that it may find Cassandra later.
        names: the queues; empty means all but dead-letter queues, also those that are made later.
        subscriptions: also show how far those of all logs are behind.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        names: Iterable[str] = (),
        *,
        subscriptions: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._driver = client, inside(client).driver
        self._names = tuple(names)
        self._lags = LagCollector(client, clock=clock) if subscriptions else None
        away: dict[str, Depth] | None = None
        self._depths = LastRead(self._read, away, rest_s=FRESH_S, clock=clock)
        self._why = ""  # why nothing can be read

    def health(self) -> Health:
        """Return whether Cassandra answers."""
        self._depths.value(WAIT_S)
        return self.known_health()

    def known_health(self) -> Health:
        """Return the health as the last read found it; a probe of the process alone waits for no read."""
        ready = self._depths.last is not None
        return Health(
            alive=True, ready=ready, reason="ready" if ready else self._why or "nothing is read yet"
        )

    def exposition(self) -> bytes:
        """Return the text for Prometheus."""
        return exposition(packed(self.collect()))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they were at most FRESH_S before the read under way."""
        depths = self._depths.value(WAIT_S)
        yield GaugeMetricFamily(
            "cqueue_up", "1: the queues can be read. 0: none can, and none is shown.", depths is not None
        )
        if depths is not None:
            yield from held(depths)
            if self._lags is not None:
                yield from self._lags.collect()

    def _read(self) -> dict[str, Depth] | None:
        try:
            names = self._names or self._all()
            with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="cqueue-metrics") as pool:
                found = list(zip(names, pool.map(self._depth, names), strict=True))
            depths = {name: depth for name, depth in found if isinstance(depth, Depth)}
            failed = {name: error for name, error in found if isinstance(error, CqueueError)}
            if failed and not depths:
                raise next(iter(failed.values()))
        except CqueueError as exc:
            self._tell(describe(exc))
            return None
        self._tell("")
        for name, error in failed.items():
            logger(DISPATCHER).info("depth_unknown", queue=name, error=describe(error))
        return depths

    def _all(self) -> tuple[str, ...]:
        with self._driver.limited(PATIENCE_S):
            return tuple(name for name in self._client.queues() if not name.endswith(DEAD_SUFFIX))

    def _depth(self, name: str) -> Depth | CqueueError | None:
        """Return a queue's depth, or why it cannot be read; None if it is gone, or damaged."""
        try:
            with self._driver.limited(PATIENCE_S):
                return depth_of(self._client.queue(name))
        except (QueueNotFound, DamagedRow):
            return None
        except CqueueError as exc:
            return exc

    def _tell(self, why: str) -> None:
        """Log once why no queue can be read, or that they can be again."""
        before, self._why = self._why, why
        if why and why != before:
            logger(DISPATCHER).warning("metrics_unread", error=why)
        elif before and not why:
            logger(DISPATCHER).info("metrics_read")
