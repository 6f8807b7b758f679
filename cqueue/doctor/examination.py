"""Run the checks side by side, each within its time.

Each check runs on a thread of its own, and a check that hangs is left behind: threads of an executor would
have to be waited for at the end of the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
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
from cqueue.runtime.durations import show_duration
from cqueue.runtime.logs import describe, logger, trace
from cqueue.store import limits, outcome
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


@dataclass(slots=True)
class _Run:
    """A check that runs, and what it has found until now."""

    check: Check
    found: list[Finding] = field(default_factory=list)
    thread: Thread | None = None


def examine(site: Site, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Make all checks side by side. Return what they found, the worst first.

    A check that has not ended after `site.limit_s` seconds is left behind. What it found until then counts.
    """
    runs = [_Run(check) for check in checks]
    for run in runs:
        run.thread = Thread(target=_make, args=(run, site), name=f"doctor-{run.check.subject}", daemon=True)
        run.thread.start()
    end_s = time.monotonic() + site.limit_s
    found = [finding for run in runs for finding in _results(run, end_s, site.limit_s)]
    order = list(Severity)
    return sorted(found, key=lambda finding: order.index(finding.severity))  # stable: checks keep theirs


def _make(run: _Run, site: Site) -> None:
    subject = run.check.subject
    try:
        with limits.within(site.limit_s):
            for finding in run.check.check(site):
                run.found.append(finding)
    except CqueueError as exc:
        run.found.append(not_checked(subject, str(exc)))
    except DRIVER_ERRORS as exc:
        run.found.append(not_checked(subject, str(outcome.error(exc, Kind.READ))))
    except Exception as exc:  # noqa: BLE001 - a bug in one check must not hide what the others find
        logger("cqueue.doctor").error(
            "doctor_check_failed", subject=subject, error=describe(exc), **trace(exc, is_final=True)
        )
        what = (
            f"{type(exc).__name__} in the check itself, a bug in cqueue: `cqueue --verbose doctor` shows it"
        )
        run.found.append(not_checked(subject, what))


def _results(run: _Run, end_s: float, limit_s: float) -> list[Finding]:
    assert run.thread is not None  # noqa: S101 - for mypy
    run.thread.join(max(0.0, end_s - time.monotonic()))
    if not run.thread.is_alive():
        return run.found
    found = list(run.found)
    limit = show_duration(timedelta(seconds=limit_s))
    what = "the rest: " if found else ""
    why = f"{what}not done within {limit}; `--timeout` gives it more"
    return [*found, not_checked(run.check.subject, why)]
