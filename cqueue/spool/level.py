"""An amount of messages, by bytes and by number."""

from __future__ import annotations

from typing import NamedTuple


class Level(NamedTuple):
    """An amount of messages.

    A named tuple, because each append makes ten of them, and a frozen dataclass takes three times as long.
    """

    size: int = 0
    records: int = 0

    def __add__(self, other: Level) -> Level:  # type: ignore[override]
        return Level(self[0] + other[0], self[1] + other[1])

    def __sub__(self, other: Level) -> Level:
        return Level(self[0] - other[0], self[1] - other[1])

    def share(self, limit: Level) -> float:
        """Return how much of the limit this is, by bytes or records, whichever is more."""
        return max(self[0] / limit[0], self[1] / limit[1])
