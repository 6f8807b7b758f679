"""Run the checks side by side, each within its time.

Each check runs on a thread of its own, and a check that hangs is left behind: threads of an executor would
have to be waited for at the end of the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread
from typing import Final

from cqueue.doctor import (
    clocks,
    cluster_settings,
    consistency,
    doorbell,
    guardrails,
    nodes,
    queues,
    tables,
    versions,
    workers,
)
from cqueue.doctor.finding import Finding, Severity, not_checked
from cqueue.doctor.site import Site
from cqueue.errors import CqueueError
from cqueue.runtime import waiting
from cqueue.runtime.durations import show_duration
from cqueue.runtime.logs import describe, logger, trace
from cqueue.store import outcome
from cqueue.store.connection import DRIVER_ERRORS
from cqueue.store.statements import Kind

DEFAULT_LIMIT_S: Final = 10.0
"""Seconds that one check may take. All run side by side, so this is about what the whole takes at most."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its subject, and the function that makes it and yields what it finds."""

    subject: str
    check: Callable[[Site], Iterable[Finding]]


CHECKS: Final = tuple(
    Check(module.SUBJECT, module.check)
    for module in (
        nodes,
        clocks,
        consistency,
        cluster_settings,
        guardrails,
        tables,
        queues,
        workers,
        versions,
        doorbell,
    )
)
"""All checks, in the order in which equally bad findings are shown."""


def examine(site: Site, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Make all checks side by side. Return what they found, the worst first.

    A check that has not ended after `site.limit_s` seconds is left behind. What it found until then counts.
    """
    runs = [_Run(check, site) for check in checks]
    for run in runs:
        run.start()
    end_s = time.monotonic() + site.limit_s
    found = [finding for run in runs for finding in run.results(end_s)]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))  # stable: checks keep theirs


class _Run(Thread):
    """A check that runs, and what it has found until now."""

    def __init__(self, check: Check, site: Site) -> None:
        super().__init__(name=f"doctor-{check.subject}", daemon=True)
        self._check = check
        self._site = site
        self._found: list[Finding] = []

    def run(self) -> None:
        """Make the check, within its time."""
        try:
            with waiting.within(self._site.limit_s):
                for finding in self._check.check(self._site):
                    self._found.append(finding)
        except CqueueError as exc:
            self._not_checked(str(exc))
        except DRIVER_ERRORS as exc:
            self._not_checked(str(outcome.error(exc, Kind.READ)))
        except Exception as exc:  # noqa: BLE001 - a bug in one check must not hide what the others find
            told = trace(exc, is_final=True)
            logger("cqueue.doctor").error(
                "doctor_check_failed", subject=self._check.subject, error=describe(exc), **told
            )
            what = f"{type(exc).__name__} in the check itself, a bug in cqueue"
            self._not_checked(f"{what}: `cqueue --verbose doctor` shows it")

    def results(self, end_s: float) -> list[Finding]:
        """Return what was found, once the check has ended or the time is over."""
        self.join(max(0.0, end_s - time.monotonic()))
        if not self.is_alive():
            return self._found
        found = list(self._found)
        limit = show_duration(timedelta(seconds=self._site.limit_s))
        what = "the rest: " if found else ""
        why = f"{what}not done within {limit}; `--timeout` gives it more"
        return [*found, not_checked(self._check.subject, why)]

    def _not_checked(self, why: str) -> None:
        self._found.append(not_checked(self._check.subject, why))
