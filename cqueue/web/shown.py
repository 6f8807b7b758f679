"""How values look on a page: times, durations, counts, bodies."""

from __future__ import annotations

import re
from base64 import b64encode
from codecs import getincrementaldecoder
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cqueue.runtime.durations import show_age

NONE: Final = "–"
MOST_BODY: Final = 64 << 10
"""Bytes of a body that a page shows: more than anybody reads, few enough for any browser."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def age(seconds: float | None) -> str:
    """Show a length of time in at most two units: `3s`, `2m10s`, `5d3h`."""
    return NONE if seconds is None else show_age(seconds)


def ago(moment: datetime | None) -> str:
    """Show a time as people say it: `2m10s ago`, `in 4h`."""
    if moment is None:
        return NONE
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{age(seconds)} ago" if seconds > 0 else f"in {age(-seconds)}"


def utc(moment: datetime | None) -> str:
    """Show a time in UTC, to the second."""
    return NONE if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def count(value: int | None, *, at_least: bool = False) -> str:
    """Show a count: `1,200`, or `10,000+` if it is a lower bound."""
    return NONE if value is None else f"{value:,}{'+' if at_least else ''}"


def number(value: float | None) -> str:
    """Show a figure that may be a mean: `1,200`, `0.4`."""
    if value is None:
        return NONE
    return f"{value:,.1f}" if 0 < value < 10 and value != int(value) else f"{value:,.0f}"


def duration(value: Any) -> str:
    """Show a setting: a length of time in units, yes or no, anything else as its text."""
    if isinstance(value, timedelta):
        whole = value.total_seconds() >= 1 and not value.microseconds
        return age(value.total_seconds()) if whole else f"{value / timedelta(milliseconds=1):g}ms"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "forever" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def body(content: bytes) -> tuple[str, str]:
    """Return a body as a page shows it, and how: `text` or `base64`, with `, cut` if only its beginning."""
    some = content[:MOST_BODY]
    cut = ", its first 64 KiB" if len(content) > MOST_BODY else ""
    try:
        text = getincrementaldecoder("utf-8")().decode(some, final=not cut)  # it may end in a character
    except UnicodeDecodeError:
        return b64encode(some).decode("ascii"), f"base64{cut}"
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), f"text{cut}"
