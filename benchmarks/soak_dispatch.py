"""A daemon under a steady mixed load, for as long as asked for: do memory, threads and connections stay flat?

    python -m benchmarks.soak_dispatch --minutes 120 --rate 200

on the cluster of CQUEUE_URL, in a keyspace that has the schema. A line a minute; code 1 if anything has grown
between the first quarter, in which caches fill, and the end, or a message has not been handled.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.acceptance.daemons import Site, cpu_s

ROOM = 1.1
"""Growth up to a tenth is no leak: allocators and pools come and go."""
FEWEST = 4
"""Lines, of which the first quarter is compared with the last."""
PATIENCE_S = 120


class Sample(NamedTuple):
    """A look at a process."""

    seconds: float
    sent: int
    rss_mb: float
    threads: int
    files: int
    connections: int
    cpu: float


def main() -> int:
    """Run, print, and judge."""
    options = _options()
    with tempfile.TemporaryDirectory() as directory:
        site = Site(Path(directory), os.environ["CQUEUE_URL"])
        try:
            daemon = site.start("--threads", 8, "--health-port", 0)
            daemon.until("daemon_ready")
            samples = _watch(site, daemon.pid, options)
            daemon.signal()
            code = daemon.end()
        finally:
            site.close()
    grown = _grown(samples)
    print(f"drained with code {code}; grown: {', '.join(grown) or 'nothing'}")
    return 1 if grown or code else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--rate", type=float, default=100, help="messages a second")
    parser.add_argument("--every", type=float, default=60, help="seconds between two lines")
    options = parser.parse_args()
    if options.minutes * 60 <= FEWEST * options.every:
        parser.error(f"--minutes are too few for {FEWEST} lines, which it takes to see what grows")
    return options


def _watch(site: Site, pid: int, options: argparse.Namespace) -> list[Sample]:
    """Send at the rate, and a few messages that fail or take a moment; look at the process now and then."""
    samples: list[Sample] = []
    began, sent, refused = time.monotonic(), 0, 0
    quick, slow = site.app.tasks["quick"], site.app.tasks["slow"]
    while (now := time.monotonic() - began) < options.minutes * 60:
        due = min(1000, int(now * options.rate) - sent)
        if due > 0:
            refused += len(quick.enqueue_many(quick.message(sent + n) for n in range(due)).failed)
            slow.enqueue(sent, "no number" if sent % 2 else 0.05)
            sent += due
        if now >= options.every * (len(samples) + 1):
            samples.append(_sample(now, pid, sent))
            print(samples[-1], flush=True)
        time.sleep(0.1)
    _await_all(site, sent - refused)
    return samples


def _await_all(site: Site, stored: int) -> None:
    """Wait until all messages that were stored have been handled."""
    until_s = time.monotonic() + PATIENCE_S
    while (handled := len(site.numbers("quick"))) < stored:
        if time.monotonic() > until_s:
            raise SystemExit(f"{handled:,} of {stored:,} handled; {site.live('quick'):,} are in the queue")
        time.sleep(1)
    print(f"all of {stored:,} handled")


def _sample(now: float, pid: int, sent: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    files = list(Path(f"/proc/{pid}/fd").iterdir())
    return Sample(
        round(now),
        sent,
        round(int(fields["VmRSS"].split()[0]) / 1024, 1),
        int(fields["Threads"]),
        len(files),
        sum(_is_socket(file) for file in files),
        round(cpu_s(pid) / now, 3),
    )


def _is_socket(file: Path) -> bool:
    try:
        return str(file.readlink()).startswith("socket:")
    except OSError:
        return False


def _grown(samples: list[Sample]) -> list[str]:
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter + 1], samples[-quarter - 1 :]
    return [
        name
        for name in ("rss_mb", "threads", "files", "connections")
        if max(getattr(one, name) for one in late) > ROOM * max(getattr(one, name) for one in early)
    ]


if __name__ == "__main__":
    sys.exit(main())
