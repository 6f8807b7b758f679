"""`python -m benchmarks.peers`: measure cqueue and its peers, print one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from benchmarks.peers.catalog import ENTRIES, Entry
from benchmarks.peers.run import file_system, measure_all
from benchmarks.peers.table import as_json, build
from benchmarks.peers.workload import PeerError, Workload

# Not /tmp, which is memory on many machines.
_DIRECTORY = Path("/var/tmp")  # noqa: S108 - only a parent: each peer gets a new directory in it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WIDTH = 140


def main() -> int:
    """Parse, measure, show; 1 if a peer failed, 130 if interrupted."""
    options = _parser().parse_args()
    errors = Console(stderr=True)
    try:
        entries = _chosen(options.only)
        kind = file_system(options.dir)
    except PeerError as exc:
        errors.print(f"error: {escape(str(exc))}")
        return 2
    workload = Workload(messages=options.messages, seconds=options.seconds, rounds=options.rounds)
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        rows = measure_all(entries, workload, options.dir, lambda line: errors.print(line, markup=False))
    except KeyboardInterrupt:
        errors.print("Interrupted; all servers are stopped.")
        return 130
    out = Console()
    (out if out.is_terminal else Console(width=_WIDTH)).print(build(rows, workload))
    if options.json:
        result = as_json(rows, workload, _machine(kind))
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(row.failed for row in rows) else 0


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """Stop the work once; further signals must not cut the clearing up short."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    standard = Workload()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--messages", type=_positive, default=standard.messages, help="of one round")
    parser.add_argument("--rounds", type=_positive, default=standard.rounds, help="measured; medians count")
    parser.add_argument("--seconds", type=_positive, default=standard.seconds, help="of the latency run")
    parser.add_argument("--only", default="", metavar="KEY,…", help=", ".join(e.key for e in ENTRIES))
    parser.add_argument("--dir", type=Path, default=_DIRECTORY, help="where the servers' data goes: a disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the result there as well")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _chosen(only: str) -> tuple[Entry, ...]:
    """Entries by key, or by its beginning: `dyno` is both of dyno-queues."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if not any(entry.key.startswith(name) for entry in ENTRIES):
            known = ", ".join(entry.key for entry in ENTRIES)
            raise PeerError(f"there is no {name!r}; there are {known}")
    return tuple(e for e in ENTRIES if not names or any(e.key.startswith(name) for name in names))


def _machine(kind: str) -> dict[str, Any]:
    return {
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "file_system": kind,
    }


if __name__ == "__main__":
    sys.exit(main())
