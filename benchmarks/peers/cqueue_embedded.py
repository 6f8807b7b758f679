"""cqueue on its embedded Cassandra, by its own programs: `cqueue dev` and `cqueue bench … --json`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers.processes import free_port
from benchmarks.peers.workload import Latency, PeerError, Round, Workload

_ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("CQUEUE", _ROOT / ".venv" / "bin" / "cqueue"))
HEAP = "2g"
SENDS = {False: "send_many of 100", True: "send_many_async of 100, two at a time"}
WARM_UP_S = "180"
"""A third of it are batches."""
_LIMIT_S = 1800


class Node:
    """A node of the embedded Cassandra, shared by all peers with its commit log."""

    _of: ClassVar[dict[str, Node]] = {}

    def __init__(self, directory: Path, commitlog: str) -> None:
        self._home = directory / "cassandra"
        self._commitlog = commitlog
        self._users = 0
        self._url = ""
        self._ready = self._warm = False

    @classmethod
    def shared(cls, directory: Path, commitlog: str) -> Node:
        """Return the node with this commit log; its data go below the directory of the first caller."""
        return cls._of.setdefault(commitlog, cls(directory, commitlog))

    def start(self) -> None:
        """Start the node and make the tables, unless that was done for another peer."""
        self._users += 1
        if self._ready:
            return
        ports = ("--cql-port", str(free_port()), "--storage-port", str(free_port()))
        node = ("--dir", str(self._home), "--commitlog-sync", self._commitlog, "--heap", HEAP)
        self.run("dev", "start", *node, *ports)
        status = json.loads(self.run("dev", "status", "--dir", str(self._home), "--json"))
        self._url = str(status["url"])
        self.run("schema", "apply")
        self._ready = True

    def warm_up(self) -> None:
        """Send and drain until the server is at its full speed, once."""
        if not self._warm:
            self.bench("warm-up", "--seconds", WARM_UP_S)
            self._warm = True

    def bench(self, name: str, *options: str) -> dict[str, Any]:
        """Run a benchmark; return its result."""
        result: dict[str, Any] = json.loads(self.run("bench", name, *options, "--json"))
        return result

    def leave(self) -> None:
        """Stop the node with the last of its peers, and delete its data."""
        self._users -= 1
        if not self._users:
            del self._of[self._commitlog]
            self.run("dev", "wipe", "--dir", str(self._home))

    def run(self, *words: str) -> str:
        """Run a command; return what it prints."""
        env = {**os.environ, "CQUEUE_URL": self._url}
        done = subprocess.run(
            [str(PROGRAM), *words], capture_output=True, text=True, env=env, check=False, timeout=_LIMIT_S
        )
        if done.returncode != 0:
            raise PeerError(f"cqueue {' '.join(words[:2])}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


class CqueueEmbedded:
    """One node, RF 1; consistency as by default. The server is warmed up for three minutes.

    Args:
        directory: for its data.
        commitlog: how the node syncs.
        two: send two batches at a time, from one thread of the application.
    """

    def __init__(self, directory: Path, commitlog: str = "batch", *, two: bool = False) -> None:
        self._node: Node | None = None
        self._directory = directory
        self._commitlog = commitlog
        self._two = two
        self._versions: dict[str, str] = {}
        self.durability = f"commitlog_sync {commitlog}, RF 1, heap {HEAP}"
        self.client = f"{SENDS[two]}, receive and ack of 500"

    def start(self) -> None:
        """Start the node, and make the tables."""
        self._node = Node.shared(self._directory, self._commitlog)
        self._node.start()

    def ready(self) -> None:
        """Warm the node up."""
        if self._node is not None:
            self._node.warm_up()

    def versions(self) -> dict[str, str]:
        """Return the versions of server and client library."""
        return self._versions

    def round(self, workload: Workload) -> Round:
        """Run `bench burndown` once."""
        options = ["--messages", workload.messages, "--size", workload.size, "--batch", workload.batch]
        options += ["--receive", workload.receive]
        found = self._bench(
            "burndown", *map(str, options), "--pipelined", *(["--ahead"] if self._two else [])
        )
        return Round(float(found["sent_per_s"]), float(found["drained_per_s"]))

    def measured_latency(self, workload: Workload) -> Latency:
        """`bench latency`: the dispatcher is another process, as the others' workers are."""
        options = {"--size": workload.size, "--rate": workload.rate, "--seconds": workload.seconds}
        found = self._bench("latency", *(str(word) for pair in options.items() for word in pair))
        (row,) = found["rows"]
        return Latency(float(row["p50_ms"]), float(row["p99_ms"]))

    def _bench(self, name: str, *options: str) -> dict[str, Any]:
        if self._node is None:
            raise PeerError("the node does not run")
        found = self._node.bench(name, *options)
        self._versions = {"server": f"Cassandra {found['cassandra']}", "client": f"cqueue {found['version']}"}
        return found

    def stop(self) -> None:
        """Leave the node; the last one stops it."""
        if self._node is not None:
            node, self._node = self._node, None
            node.leave()
