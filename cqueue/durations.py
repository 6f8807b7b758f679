"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_UNITS: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1000,
    "µs": 1,
}
"""In µs."""


def show_duration(duration: timedelta) -> str:
    """`1h30m`, `250ms`, `0s`: the largest units first, none that is zero."""
    sign, left_us = ("-" if duration < timedelta() else ""), abs(duration) // timedelta(microseconds=1)
    parts = []
    for unit, size in _UNITS.items():
        count, left_us = divmod(left_us, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts) if parts else "0s"


def given(value: object) -> str:
    """What somebody gave for a duration, for errors."""
    return show_duration(value) if isinstance(value, timedelta) else repr(value)
