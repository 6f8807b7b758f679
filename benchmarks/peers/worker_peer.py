"""The base of peers with worker processes: Celery, Dramatiq, RQ, PgQueuer, Procrastinate, RabbitMQ.

The harness sends; a worker, started by the peer's own command or API, handles and acknowledges. A drain
starts with a full queue and no worker, and counts from the first handled message, so that the start
of the worker's interpreter is not in it.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers import tally
from benchmarks.peers.processes import Child
from benchmarks.peers.servers import Redis, Server
from benchmarks.peers.workload import PeerError

SERVER = "BENCH_SERVER"
BATCH = 100
RECEIVE = 500
_ROOT = Path(__file__).resolve().parents[2]
_PINGS = 20
_SETTLE_S = 20.0


def pace(rate: int, seconds: int, send: Callable[[], None]) -> None:
    """Call `send` at a steady rate; a late call is made up for."""
    begin = time.perf_counter()
    for index in range(rate * seconds):
        time.sleep(max(0.0, begin + index / rate - time.perf_counter()))
        send()


class WorkerPeer(ABC):
    """A peer whose handlers run in worker processes; subclasses say how to send, and what to start."""

    durability = ""
    client = ""
    library = ""
    # Each round's worker is a new process anyway: this warms the server and the sender.
    warm_up = 5000

    def __init__(self, directory: Path, server: Server) -> None:
        self.directory = directory
        self.server = server
        self._numbers = itertools.count()

    @abstractmethod
    def connect(self) -> None:
        """Connect the sender, and make the queue."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the sender's connection, if there is one."""

    @abstractmethod
    def send(self, bodies: Sequence[str]) -> None:
        """Send messages; return when the server has confirmed them."""

    def worker_command(self) -> list[str]:
        """Return what starts a worker, which finds the server's URL and the tally's file in its environment.

        By default that is the peer's own module, run as a program.
        """
        return [sys.executable, "-m", type(self).__module__]

    @abstractmethod
    def left(self) -> int:
        """Count the messages that the server still has."""

    def start(self) -> None:
        """Start the server, and connect."""
        self.server.start()
        self.connect()

    def versions(self) -> dict[str, str]:
        """Return the versions of server and client library."""
        return {"server": self.server.version(), "client": f"{self.library} {version(self.library)}"}

    def enqueue(self, messages: int, size: int) -> float:
        """Send messages; return the seconds that the calls took."""
        took_s = 0.0
        for begin in range(0, messages, BATCH):
            batch = tally.bodies(min(BATCH, messages - begin), size)
            start = time.perf_counter()
            self.send(batch)
            took_s += time.perf_counter() - start
        return took_s

    def drain(self, messages: int) -> float:
        """Let a worker handle all; return the seconds from the first handled message to the last."""
        with self._worker() as (seen, worker):
            seen.wait(messages, worker.check)
            self._settle()
        self._check(seen, messages)
        return seen.seconds()

    def latency(self, rate: int, seconds: int, size: int) -> list[float]:
        """Send at a steady rate while a worker waits."""
        with self._worker() as (seen, worker):
            for _ in range(_PINGS):
                self.send([tally.body(size)])
            seen.wait(_PINGS, worker.check)
            since_ns = time.monotonic_ns()
            pace(rate, seconds, lambda: self.send([tally.body(size)]))
            seen.wait(_PINGS + rate * seconds, worker.check)
            self._settle()
        self._check(seen, _PINGS + rate * seconds)
        return seen.latencies_s(since_ns)

    def stop(self) -> None:
        """Stop all processes."""
        try:
            self.disconnect()
        finally:
            self.server.stop()

    @contextmanager
    def _worker(self) -> Iterator[tuple[tally.Tally, Child]]:
        number = next(self._numbers)
        seen = tally.Tally(self.directory / f"tally-{number}")
        python_path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        env = {SERVER: self.server.url, tally.FILE: str(seen.path), "PYTHONPATH": python_path}
        log = self.directory / f"worker-{number}.log"
        worker = Child(self.worker_command(), log, env=env, directory=self.directory)
        try:
            yield seen, worker
        finally:
            worker.stop()

    def _settle(self) -> None:
        """Wait until the last acknowledgements are stored."""
        deadline = time.monotonic() + _SETTLE_S
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _check(self, seen: tally.Tally, messages: int) -> None:
        if left := self.left():
            raise PeerError(f"{left:,} messages were never acknowledged")
        if seen.count() != messages:
            raise PeerError(f"{seen.count():,} messages were handled, {messages:,} were sent")


class RedisPeer(WorkerPeer):
    """A peer on Redis. fsync: how its append-only file is synced."""

    def __init__(self, directory: Path, fsync: str = "everysec") -> None:
        super().__init__(directory, Redis(directory, fsync))
        self.durability = f"appendfsync {fsync}"
