"""cqueue on its embedded Cassandra, by its own programs: `cqueue dev` and `cqueue bench … --json`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers.workload import Figures, PeerError, Workload

_ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("CQUEUE", _ROOT / ".venv" / "bin" / "cqueue"))
HEAP = "2g"
SENDS = {False: "send_many of 100", True: "send_many_async of 100, two at a time"}
WARM_UP_S = "180"
"""A third of it are batches."""
_LIMIT_S = 1800


class CqueueEmbedded:
    """One node, RF 1; consistency as by default. The server is warmed up for three minutes.

    Args:
        directory: for its data.
        commitlog: how the node syncs.
        two: send two batches at a time, from one thread of the application.
    """

    def __init__(self, directory: Path, commitlog: str = "batch", *, two: bool = False) -> None:
        self._home = directory / "cassandra"
        self._commitlog = commitlog
        self._started = False
        self._url = ""
        self._results: dict[str, dict[str, Any]] = {}
        self.durability = f"commitlog_sync {commitlog}, RF 1, heap {HEAP}"
        self._two = two
        self.client = f"{SENDS[two]}, receive and ack of 500"

    def start(self) -> None:
        """Start the node, and make the tables."""
        self._started = True  # also what did not come to its end is wiped
        node = ("--dir", str(self._home), "--commitlog-sync", self._commitlog, "--heap", HEAP)
        self._run("dev", "start", *node)
        status = json.loads(self._run("dev", "status", "--dir", str(self._home), "--json"))
        self._url = str(status["url"])
        self._run("schema", "apply")

    def versions(self) -> dict[str, str]:
        """Of server and client library."""
        result = next(iter(self._results.values()), {})
        return {"server": f"Cassandra {result.get('cassandra')}", "client": f"cqueue {result.get('version')}"}

    def measure(self, workload: Workload) -> Figures:
        """Medians of `bench ratio`, percentiles of `bench latency`."""
        options = ["--messages", workload.messages, "--size", workload.size, "--batch", workload.batch]
        options += ["--receive", workload.receive, "--rounds", workload.rounds]
        self._bench("warm-up", "--seconds", WARM_UP_S)
        ratio = self._bench("ratio", *map(str, options))
        both = ratio["burndown"]
        if self._two:
            alone = list(map(str, options[:-2]))
            rounds = [self._bench("burndown", *alone, "--pipelined") for _ in range(workload.rounds)]
            both = {key: statistics.median(one[key] for one in rounds) for key in both}
        latency = self._bench("latency", "--size", str(workload.size))
        return figures(both, latency)

    def _bench(self, name: str, *options: str) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self._run("bench", name, *options, "--json"))
        self._results[name] = result
        return result

    def stop(self) -> None:
        """Stop the node, delete its data."""
        if self._started:
            self._run("dev", "wipe", "--dir", str(self._home))
            self._started = False

    def _run(self, *words: str) -> str:
        env = {**os.environ, "CQUEUE_URL": self._url}
        done = subprocess.run(
            [str(PROGRAM), *words], capture_output=True, text=True, env=env, check=False, timeout=_LIMIT_S
        )
        if done.returncode != 0:
            raise PeerError(f"cqueue {' '.join(words[:2])}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


def figures(both: dict[str, Any], latency: dict[str, Any]) -> Figures:
    """What the table needs of the results: rates of sending and draining, and latency."""
    return Figures(
        enqueue_per_s=float(both["sent_per_s"]),
        drain_per_s=float(both["drained_per_s"]),
        p50_ms=float(latency["p50_ms"]),
        p99_ms=float(latency["p99_ms"]),
    )
