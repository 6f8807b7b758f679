"""The summary of a job: figures for people, and JSON for scripts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a job, or with `dry_run` those it would have.

    Attributes:
        job: its name.
        dry_run: nothing was written.
        read: rows that it looked at.
        written: rows that were stored, and acknowledged; with `dry_run` those that would be.
        skipped: rows that needed no writing: filtered, known already, or written by an earlier run.
        seconds: how long it took.
        details: what else belongs to this job; anything JSON knows.
    """

    job: str
    dry_run: bool
    read: int = 0
    written: int = 0
    skipped: int = 0
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as `--json` prints it: the fields, and those of `details` beside them."""
        return {
            "job": self.job,
            "dry_run": self.dry_run,
            "read": self.read,
            "written": self.written,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
            **self.details,
        }


class Stopwatch:
    """Measures seconds."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._ended_s: float | None = None

    def stop(self) -> None:
        """Stop measuring."""
        self._ended_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds from the start to the end, or to now."""
        return (time.monotonic() if self._ended_s is None else self._ended_s) - self._began_s


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Measure the block."""
    watch = Stopwatch()
    try:
        yield watch
    finally:
        watch.stop()
