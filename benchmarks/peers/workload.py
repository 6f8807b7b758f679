"""The workload and its figures, as plain values: the table can be tested without a server."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable


class PeerError(Exception):
    """A peer could not be measured; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload of all peers.

    messages: of one round; a tenth for those that would take minutes. size: bytes of a body. batch: messages
    a send, where the API has batches. receive: messages a receive, where the API says. rate, seconds: of the
    latency run. rounds: measured ones; the medians count.
    """

    messages: int = 50_000
    size: int = 200
    batch: int = 100
    receive: int = 500
    rate: int = 200
    seconds: int = 10
    rounds: int = 5

    @property
    def few(self) -> int:
        """Messages of a round for a queue that hands out fewer than 10,000 a second."""
        return max(1, self.messages // 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a peer: medians of the rounds, and latency from the call of send to the handler.

    messages: of one round.
    """

    enqueue_per_s: float
    drain_per_s: float
    p50_ms: float
    p99_ms: float
    messages: int = 0
    enqueues_per_s: tuple[float, ...] = ()
    drains_per_s: tuple[float, ...] = ()


class Round(NamedTuple):
    """The rates of one round."""

    enqueue_per_s: float
    drain_per_s: float


class Latency(NamedTuple):
    """Latency of one run, from the call of send to the handler."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table. Either `figures` or `reason` is set; `failed` tells a failure from a skip."""

    key: str
    title: str
    durability: str = ""
    client: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    figures: Figures | None = None
    reason: str = ""
    failed: bool = False


@runtime_checkable
class Peer(Protocol):
    """A queue that can be driven through the workload.

    `durability` says what a send waits for, `client` how the API is used, `warm_up` how many messages
    go through it unmeasured. `stop` leaves nothing behind, whatever came before.
    """

    durability: str
    client: str
    warm_up: int

    def start(self) -> None:
        """Start the server, and connect."""

    def versions(self) -> dict[str, str]:
        """Return the versions of server and client library."""

    def enqueue(self, messages: int, size: int) -> float:
        """Send messages; return the seconds that the calls took."""

    def drain(self, messages: int) -> float:
        """Receive and acknowledge messages; return the seconds it took."""

    def latency(self, rate: int, seconds: int, size: int) -> list[float]:
        """Send at a steady rate while a consumer waits: seconds from send to handler, one a message."""

    def stop(self) -> None:
        """Stop all processes, delete all data."""


@runtime_checkable
class SelfMeasuring(Protocol):
    """A queue that has benchmark programs of its own: cqueue."""

    durability: str
    client: str

    def start(self) -> None:
        """Start the server."""

    def versions(self) -> dict[str, str]:
        """Return the versions of server and client library."""

    def ready(self) -> None:
        """Warm the server up."""

    def round(self, workload: Workload) -> Round:
        """Send and drain all messages of one round."""

    def measured_latency(self, workload: Workload) -> Latency:
        """Measure the latency with the queue's own program."""

    def stop(self) -> None:
        """Stop all processes, delete all data."""


def percentile_ms(latencies_s: Sequence[float], percent: int) -> float:
    """Return the nearest-rank percentile, in ms."""
    rank = max(1, -(-len(latencies_s) * percent // 100))
    return round(sorted(latencies_s)[rank - 1] * 1000, 3)


def latency_of(latencies_s: Sequence[float]) -> Latency:
    """Return the percentiles of latencies.

    Raises:
        PeerError: no latency was measured.
    """
    if not latencies_s:
        raise PeerError("no message of the latency run arrived")
    return Latency(percentile_ms(latencies_s, 50), percentile_ms(latencies_s, 99))


def summarize(messages: int, rounds: Sequence[Round], latency: Latency) -> Figures:
    """Summarize the rates of all rounds by their medians, with the latency."""
    enqueues, drains = zip(*[tuple(round(rate, 1) for rate in one) for one in rounds], strict=True)
    return Figures(
        enqueue_per_s=round(statistics.median(enqueues), 1),
        drain_per_s=round(statistics.median(drains), 1),
        p50_ms=latency.p50_ms,
        p99_ms=latency.p99_ms,
        messages=messages,
        enqueues_per_s=enqueues,
        drains_per_s=drains,
    )
