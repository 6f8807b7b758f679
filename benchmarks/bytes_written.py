"""Bytes that Cassandra writes for a message, beside those of the bare rows, from its own metrics.

    python -m benchmarks.bytes_written --messages 100000

on the embedded node that `cqueue dev start` runs, in a keyspace that has the schema. What is counted is
`BytesFlushed`: all messages are sent and flushed, then drained and flushed again, by the bare driver and
through the queue. It holds the messages' rows, their deletes, cursors, slots, the registry, and Paxos' own
table; of what is overwritten before it is flushed (slots, Paxos) it holds the last version, where the commit
log holds all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from cqueue.bench.options import Options
from cqueue.bench.setup import open_bench, silent
from cqueue.bench.throughput import Bare, bare_rows, drain_all, send_all
from cqueue.dev.jars import complete_jars, jars_directory
from cqueue.dev.java import find_java
from cqueue.settings import load
from cqueue.store.connection import open_session

TABLES = {"system": ("paxos",), "own": ("messages", "bodies", "shards")}


class Node:
    """One node's metrics, read through its management beans by the tool that comes with Cassandra."""

    def __init__(self, pid: int, keyspace: str) -> None:
        jars = complete_jars(jars_directory()) or []
        self._command = [str(find_java()), "-cp", os.pathsep.join(map(str, jars))]
        self._command += ["org.gridkit.jvmtool.SJK", "mx", "-p", str(pid)]
        self._tables = [
            (keyspace if owner == "own" else owner, table) for owner, some in TABLES.items() for table in some
        ]

    def flushed(self) -> int:
        """Bytes that have been flushed since the node's start, after flushing what is in memory."""
        total = 0
        for keyspace, table in self._tables:
            self._call(
                "org.apache.cassandra.db:type=StorageService",
                ("-mc", "-op", "forceKeyspaceFlush", "-a", keyspace, "-a", table),
            )
            bean = f"type=Table,keyspace={keyspace},scope={table},name=BytesFlushed"
            total += int(self._call(f"org.apache.cassandra.metrics:{bean}", ("-mg", "-f", "Count")))
        return total

    def _call(self, bean: str, how: tuple[str, ...]) -> str:
        done = subprocess.run([*self._command, "-b", bean, *how], check=True, capture_output=True, text=True)
        return done.stdout.strip().splitlines()[-1]


def main() -> int:
    """Print the figures as JSON; 1 where there is no node to ask."""
    parser = argparse.ArgumentParser(prog="benchmarks.bytes_written", description="Bytes a message.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--dir", help="the embedded cluster's directory, if it is not the default")
    options = parser.parse_args()
    status = _status(options.dir)
    if not any(node["pid"] for node in status["nodes"]):
        print("error: the embedded Cassandra does not run; `cqueue dev start` starts it.", file=sys.stderr)
        return 1
    settings = load(status["url"])
    node = Node(status["nodes"][0]["pid"], settings.keyspace)
    work = Options(messages=options.messages, size=options.size)
    with open_session(settings) as connection, bare_rows(connection.session) as name:
        bare = Bare(connection.session, work, name)
        floor = _written(node, lambda: bare.insert_all(silent), lambda: bare.drain_all(silent))
    with open_bench(settings) as bench, bench.queue(work) as queue:
        ours = _written(node, lambda: send_all(queue, work), lambda: drain_all(queue, work))
        figures = {
            "floor_bytes_a_message": round(floor / options.messages, 1),
            "ours_bytes_a_message": round(ours / options.messages, 1),
            "ratio": round(ours / floor, 3),
        }
        print(json.dumps(bench.result("bytes written", work, figures), indent=1))
    return 0


def _status(directory: str | None) -> dict[str, Any]:
    where = ["--dir", directory] if directory else []
    command = [sys.executable, "-m", "cqueue", "dev", "status", "--json", *where]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def _written(node: Node, send: Callable[[], Any], drain: Callable[[], Any]) -> int:
    before = node.flushed()
    send()
    node.flushed()
    drain()
    return node.flushed() - before


if __name__ == "__main__":
    sys.exit(main())
