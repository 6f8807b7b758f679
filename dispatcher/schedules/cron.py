"""When a cron expression fires in a time zone, including the hours that clocks skip or repeat.

croniter is asked about wall time only, where every day has 24 hours. This module maps wall times to instants,
as Vixie cron does. An expression with fixed minutes and hours means "once a day, at that time": in a gap it
fires at the first instant after the gap, and in a fold only the first time. An expression with `*` or a step
in minutes or hours means "every n minutes": it fires at each matching instant, twice in a fold and never in a
gap. croniter's own arithmetic with time zones fires a fixed time twice in a fold; a test shows it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cqueue.errors import ConfigError
from cqueue.runtime.suggestions import suggest

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Expression of each `@name`, as in Vixie cron."""
HORIZON = timedelta(days=3640)
"""Days ahead beyond which no time is reported: a message may be delayed by 10 years at most."""

_SECOND = timedelta(seconds=1)
"""Resolution of cron expressions, and of the search for a change of offset."""
_FAR = timedelta(hours=48)
"""Longest stretch searched at once for a change of offset, 48 h.

It exceeds every step back that local time ever made, and no zone changes twice in 48 h.
"""
FIELDS = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day": "1 to 31, or L for the month's last",
    "month": "1 to 12, or JAN to DEC",
    "weekday": "0 to 7 (both are Sunday), MON to SUN, or else MON#1 (first Monday) and L5 (last Friday)",
}
"""The fields of an expression in order, and what each takes."""
_EVERY_DAY = 31
"""Days in a field that leaves none out, as `*/1`."""
_RANDOM = re.compile(r"(?<![A-Za-z])[HR](?![A-Za-z])", re.IGNORECASE)
"""Matches the fields H and R: croniter fills them in at random, so each process would compute other times."""


# ── Expressions and zones ──


def check_expression(expression: str) -> str:
    """Return the expression in normal form: 5 fields, or 6 with seconds first.

    Raises:
        ConfigError: the expression is not valid, or does not fire in twelve years; the text says why.
    """
    if not isinstance(expression, str):
        raise ConfigError(f"a cron expression is {expression!r}; it takes text such as '*/5 * * * *'")
    usual = ALIASES.get(expression.strip().lower(), " ".join(expression.split()))
    fields = len(usual.split())
    if fields not in {5, 6}:
        raise ConfigError(
            f"cron expression {expression!r} has {fields} field(s); it takes 5 "
            "(minute hour day month weekday), or 6 with seconds first"
        )
    if _RANDOM.search(usual):
        raise ConfigError(f"cron expression {expression!r} has H or R, which mean another time for everybody")
    _check_usual(usual)
    return usual


@lru_cache(maxsize=1000)  # a schedule is read several times for each firing
def _check_usual(expression: str) -> None:
    from croniter import croniter  # noqa: PLC0415 - takes long to import

    start = datetime(2024, 1, 1)  # noqa: DTZ001 - wall time
    try:
        croniter(expression, start, second_at_beginning=True)
    except (ValueError, KeyError, IndexError) as exc:
        fault = _fault(expression) or f"is wrong: {exc}"
        raise ConfigError(f"cron expression {expression!r} {fault}") from exc
    if _next_wall(expression, start) is None:
        raise ConfigError(
            f"cron expression {expression!r} does not fire in twelve years: is there such a day?"
        )


def _fault(expression: str) -> str:
    """Return which field of an expression is wrong on its own, and what it takes; nothing if none is."""
    from croniter import croniter  # noqa: PLC0415 - as above

    fields = expression.split()
    for place, name in enumerate([*FIELDS][-len(fields) :]):
        alone = ["*" if other != place else field for other, field in enumerate(fields)]
        if not croniter.is_valid(" ".join(alone), second_at_beginning=True):
            takes = f"{FIELDS[name]}, and lists, ranges and steps of them such as 1,3-5 or */2"
            return f"has a wrong {name}, {fields[place]!r}; it takes {takes}"
    return ""


def check_zone(name: str) -> ZoneInfo:
    """Return the time zone of that name in the tz database, such as `Europe/Berlin`.

    Raises:
        ConfigError: there is no such zone; the text suggests the nearest name.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as exc:
        hint = suggest(str(name), available_timezones(), "A zone has a name such as 'Europe/Berlin'.")
        raise ConfigError(f"there is no time zone {name!r}.{hint}") from exc


# ── Times ──


def next_instant(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first instant later than `after` at which the expression fires, in UTC; None: not in 10
    years.

    Args:
        expression: as `check_expression` returns it.
        zone: the zone whose clocks the expression means.
        after: an aware time.
    """
    after = after.astimezone(UTC).replace(microsecond=0)
    find = _next_matching if is_wildcard(expression) else _next_daily
    found = find(expression, zone, after)
    return found if found is not None and found - after <= HORIZON else None


def is_wildcard(expression: str) -> bool:
    """Return whether the expression means "every n minutes": `*` or a step in its minutes or hours."""
    minute, hour = expression.split()[-5:-3]
    return any(sign in field for field in (minute, hour) for sign in "*/")


def _next_daily(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Find the next instant of an expression that fires each wall time once.

    Instants never go back as wall times go forward, so the first instant later than `after` is the next one.
    """
    wall = _next_wall(expression, _wall(after, zone))
    while wall is not None:
        instant = first_instant(wall, zone)
        if instant > after:
            return instant
        wall = _next_wall(expression, wall)
    return None


def _next_matching(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Find the next matching instant, stretch by stretch of equal offset, in which wall time runs as time
    does.
    """
    while True:
        offset = _offset(after + _SECOND, zone)
        wall = _next_wall(expression, (after + offset).replace(tzinfo=None))
        if wall is None:
            return None
        instant = wall.replace(tzinfo=UTC) - offset
        end = min(instant, after + _FAR)
        if _offset(end, zone) != offset:
            after = _change(zone, after + _SECOND, end) - _SECOND
        elif end == instant:
            return instant
        else:  # later matches lie beyond any wall time that a change can repeat
            after = max(end, instant - _FAR)


def first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which clocks show this wall time, or else the first after its gap."""
    early = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _wall(early, zone) == wall:
        return early
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)  # by the offset after the gap: too early
    return _change(zone, before, early)


def _next_wall(expression: str, wall: datetime) -> datetime | None:
    from croniter import CroniterBadDateError, croniter  # noqa: PLC0415 - as above

    found: list[datetime] = []
    for one in _alternatives(expression):
        iterator = croniter(one, wall, second_at_beginning=True, max_years_between_matches=12)
        with suppress(CroniterBadDateError):
            found.append(iterator.get_next(datetime))
    return min(found, default=None)


def _alternatives(expression: str) -> list[str]:
    """Return expressions that fire together when this one does: on its days, and on its weekdays.

    With `#` or `L` in the weekdays croniter wants both to match.
    """
    from croniter import croniter  # noqa: PLC0415 - as above

    *time, day, month, weekday = expression.split()
    if not re.search(r"#|L\d", weekday, re.IGNORECASE):
        return [expression]
    days = croniter.expand(expression, second_at_beginning=True)[0][2]
    if "*" in days or len(days) >= _EVERY_DAY:
        return [expression]
    return [" ".join([*time, day, month, "*"]), " ".join([*time, "*", month, weekday])]


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _change(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """Return the first instant with another offset than `low`, given one change between `low` and `high`."""
    offset = _offset(low, zone)
    while high - low > _SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
    return high
