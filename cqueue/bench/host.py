"""Measure the CPU time that other machines of the host took: on a virtual machine they may slow a benchmark.

A core that has something to do, and does not get to run, costs most where threads wake each other up: a
latency of milliseconds consists of little else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

_COUNTERS: Final = Path("/proc/stat")
_IDLE: Final = (3, 4)  # idle, and waiting for a disk
_STOLEN: Final = 7
_ALL: Final = 8  # what follows is counted in others already


class CpuTime(NamedTuple):
    """CPU time of all cores since the machine was started, in ticks: used, and wanted but given to others."""

    used: int
    stolen: int


def cpu_time(counters: Path = _COUNTERS) -> CpuTime | None:
    """Read the counters; None where the system has none."""
    try:
        ticks = [int(word) for word in counters.read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return None
    if len(ticks) < _ALL:
        return None
    used = sum(ticks[:_ALL]) - ticks[_STOLEN] - sum(ticks[place] for place in _IDLE)
    return CpuTime(used, ticks[_STOLEN])


def stolen_percent(before: CpuTime | None, after: CpuTime | None) -> float | None:
    """Return how much of the CPU time wanted between two readings went to other machines; None: not known."""
    if before is None or after is None:
        return None
    used, stolen = after.used - before.used, after.stolen - before.stolen
    return round(100 * stolen / (used + stolen), 1) if used + stolen > 0 else 0.0
