"""Format durations as people write them, for messages and tables."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from cqueue.runtime.texts import quoted

UNITS: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1000,
    "µs": 1,
}
"""Units in µs, the largest first."""


def show_duration(duration: timedelta) -> str:
    """Format a duration as `1h30m`, `250ms` or `0s`: the largest units first, without zeros."""
    sign, left_us = ("-" if duration < timedelta() else ""), abs(duration) // timedelta(microseconds=1)
    parts = []
    for unit, size in UNITS.items():
        count, left_us = divmod(left_us, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts) if parts else "0s"


def show_age(seconds: float) -> str:
    """Format an age in its largest two units, whole seconds at the finest; a time ahead as 0s."""
    age = timedelta(seconds=max(0, int(seconds)))
    for unit, finest in ((timedelta(days=1), timedelta(hours=1)), (timedelta(hours=1), timedelta(minutes=1))):
        if age >= unit:
            return show_duration(age - age % finest)
    return show_duration(age)


def given(value: object) -> str:
    """Format the value that a caller gave for a duration, for an error message.

    The type is named only where it is wrong: on the command line nobody has heard of it.
    """
    return show_duration(value) if isinstance(value, timedelta) else f"{quoted(value)}, not a timedelta"
