"""The summary of a job: figures for people, and JSON for scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a job, or with `dry_run` those it would have.

    Attributes:
        job: its name.
        dry_run: nothing was written.
        read: rows that it looked at.
        written: rows that are stored, and acknowledged; with `dry_run` those that would be. Those that an
            earlier run has stored under the same ids count, too.
        skipped: rows that were not to be written: filtered, or in `dedup` and `stream` known already.
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


Given = ParamSpec("Given")
Done = TypeVar("Done", bound=Summary)


def timed(job: Callable[Given, Done]) -> Callable[Given, Done]:
    """Let the summary of a job say how long the job took."""

    @wraps(job)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Done:
        began_s = time.monotonic()
        return replace(job(*args, **kwargs), seconds=time.monotonic() - began_s)

    return run
