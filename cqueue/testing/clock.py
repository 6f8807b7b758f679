"""A cluster clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final

from cqueue.errors import BadInput
from cqueue.message import datetime_us
from cqueue.runtime.clock import ClusterClock, wall_us

STEP_MS: Final = 100
"""Ms of one step of the clock; due times of retries are rounded up to the same steps."""
_EARLIEST: Final = datetime(1971, 1, 1, tzinfo=UTC)
"""First time at which a clock may begin: consumers look days back, and no stored time is before 1970."""
_LATEST: Final = datetime(3000, 1, 1, tzinfo=UTC)
"""Last such time: far from what a datetime and a schedule can hold, with ten years for due times."""
_SECOND_US: Final = 1_000_000


class ManualClock(ClusterClock):
    """The cluster's time in µs since 1970, moved by hand. Thread-safe.

    Args:
        now: aware time at which the clock begins; None: the current second.

    Raises:
        BadInput: `now` has no time zone, or lies before 1971 or after the year 2999.
    """

    def __init__(self, now: datetime | None = None) -> None:
        super().__init__(lambda: [(self._us, 0)])
        self._moving = Lock()
        self._us = wall_us() // _SECOND_US * _SECOND_US if now is None else _us_of(now)

    def now_us(self, *, checked: bool = False) -> int:
        """Return the time, in µs since 1970."""
        return self._us

    def guess_us(self) -> int:
        """Return the time: it is known."""
        return self._us

    def sync(self) -> int:
        """Return the time; there is no node to ask."""
        return self._us

    def move_to(self, us: int) -> None:
        """Move the clock forward to this time; it never goes back."""
        with self._moving:
            self._us = max(self._us, us)

    def pause(self, seconds: float) -> None:
        """Move the clock forward; a driver calls this instead of sleeping."""
        self.move_to(self._us + round(seconds * _SECOND_US))

    def after(self, duration: timedelta) -> int:
        """Return the time after `duration`, rounded up to a whole step; the µs below a ms stay."""
        ms = (self._us + duration // timedelta(microseconds=1)) // 1000
        return -(-ms // STEP_MS) * STEP_MS * 1000 + self._us % 1000


def _us_of(now: datetime) -> int:
    if not isinstance(now, datetime) or now.tzinfo is None:
        raise BadInput(f"now is {now!r}; it takes a datetime with a time zone")
    if not _EARLIEST <= now <= _LATEST:
        raise BadInput(f"now is {now}; a clock begins from {_EARLIEST.date()} to {_LATEST.date()}")
    return datetime_us(now)
