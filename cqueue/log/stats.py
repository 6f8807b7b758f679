"""What a log holds, as far as that is cheap to know: Cassandra counts no records, so nothing here does.

The registry says which partitions exist; three short scans give the oldest and newest record, and how fast
records came lately.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

RECENT = timedelta(minutes=1)
SAMPLE = 1000
"""The rate is that of the last minute, or of the last 1,000 records where they came in less."""


@dataclass(frozen=True, slots=True)
class LogStats:
    """What a log holds.

    Attributes:
        partitions: as configured.
        time_shards: stretches of time in which something was appended, and is remembered.
        cassandra_partitions: how many partitions of Cassandra those are.
        oldest, newest: when the first and the last record that can be read were appended; None: there is
            none. What was appended in the last 2.5 s or so does not count.
        per_second: records a second over the last minute, or over the last 1,000 records if those came in
            less.
    """

    partitions: int
    time_shards: int
    cassandra_partitions: int
    oldest: datetime | None
    newest: datetime | None
    per_second: float


def rate(times: list[datetime], until: datetime) -> float:
    """Records a second, of records newest first that were appended in the last minute before `until`."""
    span = RECENT if len(times) < SAMPLE else until - times[-1]
    return len(times) / max(span / timedelta(seconds=1), 0.001)
