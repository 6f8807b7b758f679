"""What queues held in the last days, minute by minute: kept in a log of cqueue's own, so that it survives.

Once a minute a thread counts all queues, through the reads that the pages share. It appends the figures to
the log `cqueue.history`, with 16 partitions of which each has the queues whose names hash to it. One queue's
page reads one partition. Several dashboards write the same minutes; the last one counts.

Nobody counts what is sent. What is handled stands in the heartbeats of workers, and what arrives follows from
it: as many messages as were handled, and as many as the queue has grown by.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import groupby
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cqueue.audit import own_log
from cqueue.dispatcher.service import membership
from cqueue.errors import CqueueError, LogNotFound
from cqueue.log.config import LogConfig
from cqueue.log.records import Record
from cqueue.runtime.logs import describe, logger
from cqueue.web import reading
from cqueue.web.shared import LOGGER, Known, Shared

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dispatcher.service.membership import Worker

LOG: Final = "cqueue.history"
CONFIG: Final = LogConfig(partitions=16, ttl=timedelta(days=7), time_shard=timedelta(hours=1))
MINUTE_S: Final = 60
"""Seconds between two counts."""
POINTS: Final = 120
"""Points of a chart at most: one for every 5 pixels or so."""
SPANS: Final = {"1h": 1, "6h": 6, "24h": 24, "7d": 168}
"""Hours of each span that a page shows."""


class Point(NamedTuple):
    """One queue in one minute.

    at_s: the minute, in seconds since 1970. depth, in_flight, dead: messages. oldest_s: age of the oldest
    ready message. arrived, handled: messages in that minute; None where it is not known.
    """

    at_s: int
    depth: float
    oldest_s: float
    in_flight: float
    dead: float
    arrived: float | None
    handled: float | None


class Finished:
    """How many messages workers have finished by queue, from what their heartbeats say of them in total."""

    def __init__(self) -> None:
        self._seen: dict[str, Worker] = {}
        self._at_s: float | None = None

    def since(self, workers: Iterable[Worker], now_s: float) -> dict[str, int]:
        """Return the messages finished since the last call, by queue; none at the first call.

        The whole count of a worker that has started since is new. One that was there and was not seen, as
        its heartbeat had expired, counts from the next call on.
        """
        before, last_s = self._seen, self._at_s
        self._seen, self._at_s = {worker.name: worker for worker in workers}, now_s
        found: dict[str, int] = {}
        for name, worker in self._seen.items():
            if last_s is None or (name not in before and worker.started < last_s):
                continue
            old = before[name].finished if name in before else {}
            for queue, count in worker.finished.items():
                found[queue] = found.get(queue, 0) + max(0, count - old.get(queue, 0))
        return found


class History:
    """Counts once a minute, and reads what was counted. Thread-safe.

    Args:
        client: where queues are counted, and the log is kept.
        shared: the reads that the pages share.
    """

    def __init__(self, client: Client, shared: Shared) -> None:
        self._client = client
        self._shared = shared
        self._starting = Lock()
        self._thread: Thread | None = None
        self._stop = Event()
        self._finished = Finished()
        self._latest: dict[str, Point] = {}
        self.trouble: str | None = None

    def start(self) -> None:
        """Begin to count, unless that has begun."""
        with self._starting:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="cqueue-web-history", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Count no more."""
        self._stop.set()

    def latest(self, queue: str) -> Point | None:
        """Return the queue's last minute, if this process has counted it."""
        return self._latest.get(queue)

    def _run(self) -> None:
        while not self._stop.wait(MINUTE_S - time.time() % MINUTE_S):
            self.minute(int(time.time()) // MINUTE_S * MINUTE_S)

    def minute(self, at_s: int) -> None:
        """Count, and keep in `trouble` why that failed; the next minute tries again."""
        try:
            self.count(at_s)
            self.trouble = None
        except Exception as exc:  # noqa: BLE001 - whatever it was, the thread goes on
            if self._stop.is_set():  # reads are refused from then on
                return
            self._latest = {}
            error = str(exc) if isinstance(exc, CqueueError) else describe(exc)
            if self.trouble is None:  # once for each outage
                logger(LOGGER).warning("history_not_kept", error=error)
            self.trouble = error

    def count(self, at_s: int) -> None:
        """Count all queues, and append the figures as those of the minute `at_s`.

        Raises:
            NotDone, OutcomeUnknown: Cassandra does not answer, or refuses it; the minute may be missing.
        """
        names = self._shared.get("queues", lambda: reading.names(self._client)).value
        states = reading.queue_states(self._client, self._shared, names)
        workers, now_s = self._shared.get("workers", lambda: membership.listed(self._client)).value
        finished = self._finished.since(workers, now_s)
        points = {
            name: self._point(at_s, known.value, finished.get(name, 0))
            for name, known in states.items()
            if isinstance(known, Known) and known.age_s < MINUTE_S
        }
        if points:
            result = own_log(self._client, LOG, CONFIG).append_many(_records(at_s, points))
            for _, error in result.failed:
                raise error
        self._latest = points

    def _point(self, at_s: int, state: reading.QueueState, finished: int) -> Point:
        stats, before = state.stats, self._latest.get(state.name)
        if before is not None and at_s - before.at_s != MINUTE_S:
            before = None  # what was finished since then was so in several minutes
        known = before is not None and "live" not in stats.at_least
        return Point(
            at_s,
            depth=state.depth,
            oldest_s=state.oldest_s or 0.0,
            in_flight=stats.claimed,
            dead=stats.dead or 0,
            arrived=max(0.0, state.depth - before.depth + finished) if known and before else None,
            handled=finished if before is not None else None,
        )

    def read(self, queue: str, span: str) -> list[Point]:
        """Return the queue's points of one of `SPANS`, in order, 120 at most: of several minutes the mean.

        Raises:
            NotDone: Cassandra does not answer.
        """
        since = datetime.now(UTC) - timedelta(hours=SPANS[span])
        found: dict[int, Point] = {}
        with (
            suppress(LogNotFound),
            self._client.log(LOG).scan(
                since, partitions=[_partition(queue)], on_expired="earliest"
            ) as records,
        ):
            for record in records:
                if (point := _point_of(record.body, queue)) is not None:
                    found[point.at_s] = point
        return _thinned([found[at_s] for at_s in sorted(found)], spacing_s(span))


def spacing_s(span: str) -> int:
    """Return the seconds between two points of a chart: whole minutes."""
    return max(MINUTE_S, SPANS[span] * 3600 // POINTS)


def _partition(queue: str) -> int:
    return zlib.crc32(queue.encode()) % CONFIG.partitions


def _records(at_s: int, points: Mapping[str, Point]) -> list[Record]:
    """Return a record for each partition that has queues: the minute, and the figures of each queue."""
    parts: dict[int, dict[str, Sequence[float | None]]] = {}
    for name, point in points.items():
        parts.setdefault(_partition(name), {})[name] = point[1:]
    return [
        Record("minute", json.dumps({"at": at_s, "queues": part}).encode(), partition=partition)
        for partition, part in parts.items()
    ]


def _point_of(body: bytes, queue: str) -> Point | None:
    """Return a queue's point of a record; None if there is none, or the record has another form."""
    try:
        minute: Any = json.loads(body)
        at_s, values = int(minute["at"]), minute["queues"][queue]
        return Point._make([at_s, *(None if value is None else float(value) for value in values)])
    except (ValueError, KeyError, TypeError):
        return None


def _thinned(points: Iterable[Point], step_s: int) -> list[Point]:
    """Return the mean of each `step_s` seconds of points that are in order."""
    return [
        Point._make([place * step_s, *map(_mean, zip(*(one[1:] for one in group), strict=True))])
        for place, group in groupby(points, key=lambda point: point.at_s // step_s)
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
