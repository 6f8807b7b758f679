"""Describe what a log holds, from cheap reads only: counting records would read all of them.

The registry says which partitions exist. Three short scans give the oldest and the newest record, and the
recent rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

RECENT = timedelta(minutes=1)
"""Time over which the rate is measured: recent, and long enough for slow logs."""
SAMPLE = 1000
"""Records over which the rate is measured if they came within `RECENT`: it bounds the scan."""


@dataclass(frozen=True, slots=True)
class LogStats:
    """What a log holds.

    Attributes:
        partitions: as configured.
        time_shards: number of time shards with records that have not expired.
        cassandra_partitions: number of Cassandra partitions in those time shards.
        oldest, newest: when the first and the last readable record were appended; None if there is none.
            Records of the last 2.5 s or so do not count.
        per_second: records a second over the last minute, or over the last 1,000 records if those came in
            less time.
    """

    partitions: int
    time_shards: int
    cassandra_partitions: int
    oldest: datetime | None
    newest: datetime | None
    per_second: float


def rate(times: list[datetime], until: datetime) -> float:
    """Return records a second, from times, newest first, of the last minute before `until`."""
    span = RECENT if len(times) < SAMPLE else until - times[-1]
    return len(times) / max(span / timedelta(seconds=1), 0.001)
