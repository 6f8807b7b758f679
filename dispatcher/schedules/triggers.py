"""Triggers of schedules: the values that applications write, and the arithmetic on them.

Everything here is a pure function of its arguments: the same schedule gives the same times in every process,
and again after a crash. Inside, times are ms since 1970; nothing reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

from cqueue.config import to_ms
from cqueue.dispatcher.schedules import cron
from cqueue.errors import ConfigError
from cqueue.message import check_duration, datetime_us, to_datetime
from cqueue.runtime.durations import show_duration

MISFIRES = ("latest", "all", "skip")
"""What becomes of missed times; see `_Trigger.misfire`."""
SKIP_GRACE = timedelta(seconds=10)
"""Greatest lateness of a firing with misfire="skip" and no grace: five pauses of an idle consumer."""
LONGEST = timedelta(days=3640)
"""Longest delay and interval: a little less than the ten years for which a message may be delayed."""
SHORTEST_INTERVAL = timedelta(milliseconds=100)
"""Shortest interval: each firing costs a send, a claim, a conditional change of a row and an ack."""
LONGEST_JITTER = timedelta(days=1)
"""Longest jitter: one day spreads even daily schedules over all hours."""

_MS = timedelta(milliseconds=1)
_DURATIONS = {
    "delay": (timedelta(), LONGEST),
    "interval": (SHORTEST_INTERVAL, LONGEST),
    "grace": (_MS, LONGEST),
    "jitter": (timedelta(), LONGEST_JITTER),
}
"""Least and greatest value of each duration."""
_MOMENTS = frozenset({"at", "until"})
"""Fields that hold a time."""

# ── Values ──


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trigger:
    """Fields that all triggers share.

    Attributes:
        misfire: what becomes of times that were missed because no dispatcher ran or all were busy: "latest"
            fires the last of them, once; "all" fires each, in order; "skip" fires none that is later than
            `grace`.
        grace: with any misfire, nothing is fired that is later than this. None: no limit, but 10 s with
            "skip".
        jitter: greatest random delay of a firing, 0 to 1 day, so that many schedules of one time spread.
        auto_commit: send the next firing before the handler runs, so that a slow handler delays none;
            otherwise after the handler.
    """

    misfire: str = "latest"
    grace: timedelta | None = None
    jitter: timedelta = timedelta()
    auto_commit: bool = False

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: a value is wrong.
        """
        for name, value in given(self).items():
            _check(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recurring(_Trigger):
    """Fields of triggers that fire more than once.

    Attributes:
        count: number of firings, 1 and up; None: no limit.
        until: aware time after which nothing fires; None: no end.
    """

    count: int | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunOnce(_Trigger):
    """Fires once: `delay` (0 to 10 years) after the schedule is made, or `at` an aware time.

    Raises:
        ConfigError: both or neither of them are given, or a value is wrong.
    """

    delay: timedelta | None = None
    at: datetime | None = None
    count: ClassVar[None] = None
    until: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Check that the values fit together."""
        _Trigger.__post_init__(self)
        if (self.delay is None) == (self.at is None):
            raise ConfigError("RunOnce takes delay or at: one of them")

    def next_after(self, after_ms: int, start_ms: int) -> int | None:
        """Return the trigger's one time if it is later than `after_ms`; the time may be past."""
        at_ms = ms_of(self.at) if self.at is not None else start_ms + to_ms(self.delay or timedelta())
        return at_ms if after_ms < at_ms else None


@dataclass(frozen=True, slots=True)
class Repeating(_Recurring):
    """Fires every `interval` (100 ms to 10 years), for the first time `delay` after the schedule is made.

    Times are multiples of the interval from the first time: they do not drift, however late each firing is.

    Attributes:
        interval: 100 ms to 10 years.
        delay: 0 to 10 years; None: one interval.
        count: number of firings, 1 and up.
        until: aware time after which nothing fires.

    Raises:
        ConfigError: a value is wrong.
    """

    interval: timedelta
    delay: timedelta | None = None

    def next_after(self, after_ms: int, start_ms: int) -> int | None:
        """Return the next multiple of the interval."""
        interval_ms = to_ms(self.interval)
        first_ms = start_ms + (interval_ms if self.delay is None else to_ms(self.delay))
        return first_ms + max(0, (after_ms - first_ms) // interval_ms + 1) * interval_ms


@dataclass(frozen=True, slots=True)
class Cron(_Recurring):
    """Fires as a cron expression says, in a time zone.

    Where clocks change, a fixed time of day fires once (in a gap: at the first instant after it; in a fold:
    the first time); `*` and steps fire at each instant that matches.

    Attributes:
        expression: 5 fields (minute hour day month weekday), or 6 with seconds first. Names such as MON and
            JAN, `?`, `L`, and `@daily` are understood; weekdays 0 and 7 are Sunday.
        timezone: a name of the tz database.
        count, until: as for `Repeating`.

    Raises:
        ConfigError: a value is wrong.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        """Check every value, and normalize the expression."""
        _Trigger.__post_init__(self)
        object.__setattr__(self, "expression", cron.check_expression(self.expression))
        cron.check_zone(self.timezone)

    def next_after(self, after_ms: int, _start_ms: int) -> int | None:
        """Return the next time that the zone's clocks show."""
        found = cron.next_instant(self.expression, ZoneInfo(self.timezone), to_datetime(after_ms))
        return None if found is None else ms_of(found)


Trigger = RunOnce | Repeating | Cron
_KINDS: dict[str, type[Trigger]] = {"once": RunOnce, "repeating": Repeating, "cron": Cron}


def given(trigger: _Trigger) -> dict[str, Any]:
    """Return the trigger's values by name, without defaults."""
    values = {each.name: (getattr(trigger, each.name), each.default) for each in fields(trigger)}
    return {name: value for name, (value, default) in values.items() if value != default}


def described(trigger: Trigger) -> str:
    """Return when a trigger fires, in a few words."""
    match trigger:
        case Cron(expression=expression, timezone=timezone):
            return f"{expression} {timezone}"
        case Repeating(interval=interval):
            return f"every {show_duration(interval)}"
    return "once"


def _check(name: str, value: Any) -> None:
    if name in _DURATIONS:
        check_duration(name, value, *_DURATIONS[name])
        if value % _MS:
            raise ConfigError(f"{name} is {value}; it takes whole milliseconds")
    elif name in _MOMENTS and (not isinstance(value, datetime) or value.tzinfo is None):
        raise ConfigError(f"{name} is {value!r}; it takes a datetime with a time zone")
    elif name == "misfire" and value not in MISFIRES:
        raise ConfigError(f"misfire is {value!r}; it takes {', '.join(map(repr, MISFIRES))}")
    elif name == "auto_commit" and not isinstance(value, bool):
        raise ConfigError(f"auto_commit is {value!r}; it takes true or false")
    elif name == "count" and (type(value) is not int or value < 1):
        raise ConfigError(f"count is {value!r}; it takes a whole number from 1 on")


# ── Stored form ──


def to_values(trigger: Trigger) -> dict[str, Any]:
    """Return the trigger for JSON: durations and times in ms, without defaults."""
    kind = next(name for name, cls in _KINDS.items() if cls is type(trigger))
    return {"kind": kind, **{name: _stored(name, value) for name, value in given(trigger).items()}}


def _stored(name: str, value: Any) -> Any:
    return to_ms(value) if name in _DURATIONS else ms_of(value) if name in _MOMENTS else value


def from_values(values: Mapping[str, Any]) -> Trigger:
    """Return the trigger of values that `to_values` made.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: a newer version made the values, or not this library.
    """
    loaded = {name: _loaded(name, value) for name, value in values.items() if name != "kind"}
    return _KINDS[values["kind"]](**loaded)


def _loaded(name: str, value: Any) -> Any:
    if name in _DURATIONS:
        return timedelta(milliseconds=value)
    return to_datetime(value) if name in _MOMENTS else value


def ms_of(moment: datetime) -> int:
    """Return an aware time in ms since 1970, rounded down."""
    return datetime_us(moment) // 1000


# ── Times ──


@dataclass(frozen=True)
class Timetable:
    """The times of a trigger whose schedule was made at `start_ms`. Times are ms since 1970."""

    trigger: Trigger
    start_ms: int

    def first(self) -> int | None:
        """Return the first time; the time of a `RunOnce` may be past."""
        if isinstance(self.trigger, RunOnce):
            return self.next_after(-(1 << 62))
        is_now = isinstance(self.trigger, Repeating)  # without a delay the first time is the start itself
        return self.next_after(self.start_ms - is_now)

    def next_after(self, after_ms: int) -> int | None:
        """Return the first time later than `after_ms`; None if there is none. `count` is not considered."""
        found, until = self.trigger.next_after(after_ms, self.start_ms), self.trigger.until
        return None if found is None or (until is not None and found > ms_of(until)) else found

    def upcoming(self, after_ms: int, count: int) -> list[int]:
        """Return the next `count` times; fewer if the trigger ends."""
        found: list[int] = []
        while len(found) < count and (next_ms := self.next_after(after_ms)) is not None:
            found.append(next_ms)
            after_ms = next_ms
        return found

    def latest(self, first_ms: int, now_ms: int) -> int:
        """Return the last time from `first_ms` (itself a time) up to now; `first_ms` if it is yet to come."""
        if not self._has_time(first_ms, now_ms):
            return first_ms
        span_ms = 1000
        while (low := now_ms - span_ms) > first_ms and not self._has_time(low, now_ms):
            span_ms *= 2
        low, high, last = max(low, first_ms), now_ms, first_ms
        while low < high:  # bisect the stretch that holds the last time
            middle = (low + high) // 2
            found = self.next_after(middle)
            if found is not None and found <= now_ms:
                low = last = found
            else:
                high = middle
        return last

    def _has_time(self, after_ms: int, upto_ms: int) -> bool:
        found = self.next_after(after_ms)
        return found is not None and found <= upto_ms


def jitter_ms(trigger: Trigger, identity: str) -> int:
    """Return how much later than its time a firing is due, in ms: always the same for one identity."""
    most_ms = to_ms(trigger.jitter)
    if not most_ms:
        return 0
    digest = blake2b(identity.encode(), digest_size=8, person=b"cqueue-jitter").digest()
    return int.from_bytes(digest, "big") % (most_ms + 1)


# ── Misfires ──


class Choice(NamedTuple):
    """The decision about a delivered firing: the time to fire, if any, and the next time."""

    fire_ms: int | None
    next_ms: int | None


def choose(timetable: Timetable, time_ms: int, now_ms: int) -> Choice:
    """Apply the misfire policy.

    Args:
        timetable: of the schedule.
        time_ms: the time whose firing is delivered.
        now_ms: the present, less the firing's jitter.
    """
    trigger = timetable.trigger
    fire_ms = timetable.latest(time_ms, now_ms) if trigger.misfire == "latest" else time_ms
    grace = trigger.grace or (SKIP_GRACE if trigger.misfire == "skip" else None)
    if grace is not None and now_ms - fire_ms > to_ms(grace):
        return Choice(None, timetable.next_after(max(fire_ms, now_ms - to_ms(grace) - 1)))
    return Choice(fire_ms, timetable.next_after(fire_ms))
