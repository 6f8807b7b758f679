"""An amount of messages, by bytes and by number."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """An amount of messages."""

    size: int = 0
    records: int = 0

    def __add__(self, other: Level) -> Level:
        return Level(self.size + other.size, self.records + other.records)

    def __sub__(self, other: Level) -> Level:
        return Level(self.size - other.size, self.records - other.records)

    def share(self, limit: Level) -> float:
        """Return how much of the limit this is, by bytes or records, whichever is more."""
        return max(self.size / limit.size, self.records / limit.records)
