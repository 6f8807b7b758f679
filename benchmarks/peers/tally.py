"""The tally of handled messages: worker processes append fixed records to a file.

A worker of Celery, RQ or the like is a process of its own, often several. Each handled message is one
`write` of 16 bytes to a file opened for appending, which costs about a microsecond and never mixes with
that of another process. The clock is CLOCK_MONOTONIC, which is one for all processes of a machine.
"""

from __future__ import annotations

import os
import secrets
import struct
import time
from pathlib import Path

from benchmarks.peers.workload import PeerError

FILE = "BENCH_TALLY"
STAMP_DIGITS = 20
STALL_S = 60.0
_RECORD = struct.Struct(">qq")
_open: dict[str, int] = {}


def body(size: int) -> str:
    """Text of `size` ASCII characters, of which the first 20 are the time."""
    return f"{time.monotonic_ns():0{STAMP_DIGITS}d}{secrets.token_hex(size)[: max(0, size - STAMP_DIGITS)]}"


def bodies(count: int, size: int) -> list[str]:
    """Make `count` bodies."""
    return [body(size) for _ in range(count)]


def handled(content: str | bytes) -> None:
    """Note that a message with this body was handled now. Called in the worker."""
    now = time.monotonic_ns()
    path = os.environ[FILE]
    if path not in _open:
        _open[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_open[path], _RECORD.pack(now, int(content[:STAMP_DIGITS])))


class Tally:
    """The tally's file, as the harness reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def count(self) -> int:
        """Count the messages handled so far."""
        return self.path.stat().st_size // _RECORD.size

    def wait(self, messages: int, alive: object = None) -> None:
        """Wait until `messages` are handled.

        alive: a callable that raises if the worker is gone.

        Raises:
            PeerError: for 60 s no message was handled.
        """
        seen, moved = self.count(), time.monotonic()
        while seen < messages:
            time.sleep(0.01)
            if callable(alive):
                alive()
            now = self.count()
            if now != seen:
                seen, moved = now, time.monotonic()
            elif time.monotonic() - moved > STALL_S:
                raise PeerError(f"only {seen:,} of {messages:,} messages were handled")

    def entries(self) -> list[tuple[int, int]]:
        """Return when each message was handled and sent, in ns."""
        return list(_RECORD.iter_unpack(self.path.read_bytes()))

    def seconds(self) -> float:
        """Return the seconds from the first handled message to the last, and one mean gap for the first."""
        times = sorted(handled_ns for handled_ns, _ in self.entries())
        gaps = len(times) - 1
        if gaps < 1:
            raise PeerError("a drain of fewer than two messages has no rate")
        return (times[-1] - times[0]) / 1e9 * len(times) / gaps

    def latencies_s(self, since_ns: int) -> list[float]:
        """Return the seconds from send to handler of messages sent after a time."""
        return [(seen - sent) / 1e9 for seen, sent in self.entries() if sent >= since_ns]
