"""dyno-queues on Redis: a Java program of ours, driven line by line, so that its JVM stays warm."""

from __future__ import annotations

import json
import re
import signal
import threading
from pathlib import Path

from benchmarks.peers.processes import Child, program
from benchmarks.peers.servers import Redis
from benchmarks.peers.worker_peer import BATCH, RECEIVE
from benchmarks.peers.workload import PeerError

PROJECT = Path(__file__).with_name("dyno")
JAR = PROJECT / "target" / "dyno-peer.jar"
LIBRARIES = PROJECT / "target" / "lib"
_ANSWER_S = 900


class DynoPeer:
    """`push`, `pop` and `ack` of lists, which are Redis pipelines; everything happens in one JVM."""

    # The compiler of the JVM has to see the loops, as Cassandra's does in its minutes of warming up.
    warm_up = 200_000

    def __init__(self, directory: Path, fsync: str = "everysec", threads: int = 1) -> None:
        by = "" if threads == 1 else f" by {threads} threads"
        self.client = f"Java; push of {BATCH}{by}, pop and ack of {RECEIVE} (RedisPipelineQueue, 1 shard)"
        self._threads = threads
        self._directory = directory
        self._server = Redis(directory, fsync)
        self._child: Child | None = None
        self.durability = f"appendfsync {fsync}"

    def start(self) -> None:
        """Start Redis and the program."""
        self._server.start()
        path = f"{JAR}:{LIBRARIES}/*"
        command = [program("java"), "-Xmx512m", "-cp", path, "cqueue.peers.DynoPeer", str(self._server.port)]
        self._child = Child(command, self._directory / "dyno.log", directory=self._directory, pipes=True)
        if self._ask("hello") != "hello":
            raise PeerError(f"the Java program did not start: {self._child.tail()}")

    def versions(self) -> dict[str, str]:
        """Return the versions of server and client library."""
        found = (re.search(r"dyno-queues-redis-(.+)\.jar", path.name) for path in LIBRARIES.iterdir())
        version = next(match[1] for match in found if match)
        return {"server": self._server.version(), "client": f"dyno-queues {version}"}

    def enqueue(self, messages: int, size: int) -> float:
        """Push messages; return the seconds it took."""
        return float(self._ask("enqueue", messages, size, BATCH, self._threads))

    def drain(self, messages: int) -> float:
        """Pop and acknowledge messages; return the seconds it took."""
        return float(self._ask("drain", messages, RECEIVE))

    def latency(self, rate: int, seconds: int, size: int) -> list[float]:
        """Push one by one, while another thread pops one by one: a larger pop waits to be full."""
        return [float(value) for value in json.loads(self._ask("latency", rate, seconds, size))]

    def stop(self) -> None:
        """Stop the program and Redis."""
        try:
            if self._child is not None:
                self._child.stop(signal.SIGKILL)
                self._child = None
        finally:
            self._server.stop()

    def _ask(self, *words: object) -> str:
        child = self._child
        if child is None or child.process.stdin is None or child.process.stdout is None:
            raise PeerError("the Java program does not run")
        limit = threading.Timer(_ANSWER_S, child.process.kill)
        limit.start()
        try:
            print(*words, file=child.process.stdin, flush=True)
            # Libraries may print lines of their own.
            for line in iter(child.process.stdout.readline, ""):
                if line.startswith("> "):
                    return line[2:].strip()
        except BrokenPipeError:
            pass  # it is gone; why, its output says
        finally:
            limit.cancel()
        child.process.wait()
        raise PeerError(f"the Java program ended with code {child.process.returncode}: {child.tail()}")
