"""Options, clients, figures and circumstances, as every benchmark needs them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from cqueue._version import __version__
from cqueue.bench import host
from cqueue.bench.options import Options, Rows
from cqueue.client import Client, address_of, inside, open_cassandra
from cqueue.config import QueueConfig
from cqueue.log.config import LogConfig
from cqueue.log.log import Log
from cqueue.queue import Queue
from cqueue.runtime import process
from cqueue.schema.statements import SELECT_KEYSPACE
from cqueue.settings import Settings
from cqueue.store.cassandra import CassandraStore
from cqueue.store.connection import Connection

CALM_S: Final = 60.0
QUIET_S: Final = 0.25
QUIET_LOOKS: Final = 4

Progress = Callable[[float], None]
"""Told how much of the work is done, 0 to 1."""
Figures = dict[str, Any]
Way = Callable[[Progress], Figures]
"""Measures one thing once."""


def silent(_done: float) -> None:
    """Ignore progress."""


@dataclass(slots=True)
class Bench:
    """A connection with a client on it."""

    settings: Settings
    connection: Connection
    store: CassandraStore
    client: Client
    began: host.CpuTime | None = field(default_factory=host.cpu_time)

    @contextmanager
    def queue(self, options: Options, config: QueueConfig | None = None) -> Iterator[Queue]:
        """A new queue, deleted at the end. config: by default one with the options' shards."""
        name = f"bench-{time.time_ns():x}"
        usual = QueueConfig(shards=options.shards, visibility=timedelta(minutes=1))
        queue = self.client.create_queue(name, config or usual)
        try:
            yield queue
        finally:
            self.client.delete_queue(name)

    @contextmanager
    def log(self, partitions: int) -> Iterator[Log]:
        """A new log, deleted at the end."""
        name = f"bench-{time.time_ns():x}"
        log = self.client.create_log(name, LogConfig(partitions=partitions))
        try:
            yield log
        finally:
            self.client.delete_log(name)

    def calm(self) -> None:
        """Wait until the server compacts and flushes nothing, at most `CALM_S`: that work is of before."""
        end_s = time.monotonic() + CALM_S
        quiet = 0
        while quiet < QUIET_LOOKS and time.monotonic() < end_s:
            busy = self.connection.session.execute("SELECT kind FROM system_views.sstable_tasks").one()
            quiet = 0 if busy else quiet + 1
            time.sleep(QUIET_S)

    def result(
        self, name: str, options: Rows, figures: Figures, *, without: Collection[str] = (), **more: int
    ) -> Figures:
        """Return the figures with their circumstances.

        Those are version, commit log, nodes, replication, consistency, cores, size, batch, and
        `stolen_percent`: of the CPU time that the machine wanted since the benchmark began.

        Args:
            name: of the benchmark.
            options: what was measured with.
            figures: the result.
            without: options that say nothing about this benchmark.
            more: what else it was measured with.
        """
        session, keyspace = self.connection.session, self.settings.keyspace
        replication = session.execute(SELECT_KEYSPACE, (keyspace,)).one()[0]
        return {
            "bench": name,
            **figures,
            **more,
            "version": __version__,
            "cassandra": session.execute("SELECT release_version FROM system.local").one()[0],
            "commitlog_sync": _setting(session, "commitlog_sync"),
            "nodes": len(self.connection.cluster.metadata.all_hosts()),
            "replication_factor": sum(int(n) for key, n in replication.items() if key != "class"),
            "consistency": self.settings.consistency,
            "serial_consistency": self.settings.serial_consistency,
            "client_cores": process.usable_cores(),
            "stolen_percent": host.stolen_percent(self.began, host.cpu_time()),
            **{name: value for name, value in asdict(options).items() if name not in without},
        }


def _setting(session: Any, name: str) -> str | None:
    row = session.execute("SELECT value FROM system_views.settings WHERE name = %s", (name,)).one()
    return None if row is None else str(row[0])


@contextmanager
def open_bench(settings: Settings) -> Iterator[Bench]:
    """Connect for a benchmark.

    Raises:
        ConfigError: the URL is not that of a Cassandra cluster.
        Unavailable, SchemaMismatch: as `cqueue.connect`.
    """
    store, connection = open_cassandra(settings)
    notify = address_of(settings, connection)
    with (
        connection,
        Client(store, on_close=lambda: None, local_dc=settings.local_dc, notify=notify) as client,
    ):
        inside(client).is_alone()
        yield Bench(settings, connection, store, client)


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile, in the unit of the values."""
    return sorted(values)[max(1, -(-len(values) * percent // 100)) - 1]


def times_ms(values_s: Sequence[float], prefix: str = "") -> dict[str, float]:
    """The median and the 99th percentile of times in seconds, in ms."""
    return {f"{prefix}p{percent}_ms": round(percentile(values_s, percent) * 1000, 3) for percent in (50, 99)}


def rates(messages: int, sends_s: list[float], drains_s: list[float]) -> dict[str, float]:
    """Throughput and the latency of single calls, from the seconds that each call took."""
    send_s, drain_s = sum(sends_s), sum(drains_s)
    return {
        "sent_per_s": round(messages / send_s, 1),
        "drained_per_s": round(messages / drain_s, 1),
        "total_per_s": round(messages / (send_s + drain_s), 1),
        **times_ms(sends_s, "send_"),
        **times_ms(drains_s, "drain_"),
    }


def seconds_of(call: Callable[..., object], *arguments: object) -> float:
    """Call, and return how long it took."""
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def in_turn(
    ways: Mapping[str, Way],
    rounds: int,
    progress: Progress,
    *,
    warm_up: bool = True,
    before: Callable[[], None] = lambda: None,
) -> dict[str, list[Figures]]:
    """Measure all ways round after round, so that they meet the same minutes; the results of each.

    warm_up: measure one round more, and leave out the first. before: called before each measurement.
    """
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    turns = [*ways.items()] * (rounds + warm_up)
    for step, (name, measure) in enumerate(turns):
        before()
        found[name].append(measure(partial(_part, progress, step, len(turns))))
        progress((step + 1) / len(turns))
    return {name: results[warm_up:] for name, results in found.items()}


def _part(progress: Progress, step: int, steps: int, done: float) -> None:
    progress((step + done) / steps)


def medians_of(results: Sequence[Figures], keys: Collection[str]) -> dict[str, float]:
    """The medians of some figures."""
    return {key: round(statistics.median(float(result[key]) for result in results), 4) for key in keys}


def ratios_of(ours: Sequence[Figures], bare: Sequence[Figures], key: str = "per_s") -> Figures:
    """The median of ours / bare, and what it is in each round."""
    ratios = [one[key] / other[key] for one, other in zip(ours, bare, strict=True)]
    return {"ratio": round(statistics.median(ratios), 4), "ratios": [round(ratio, 4) for ratio in ratios]}
