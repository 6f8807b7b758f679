"""Triggers: what may be said, how it is stored, which times follow, and what becomes of missed ones."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqueue.dispatcher.schedules.definition import ScheduleDefinition
from cqueue.dispatcher.schedules.triggers import (
    Choice,
    Cron,
    Repeating,
    RunOnce,
    Timetable,
    choose,
    from_values,
    jitter_ms,
    ms_of,
    to_values,
)
from cqueue.errors import BadInput, ConfigError
from tests.properties import examples

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = ms_of(NOON)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.mark.parametrize(
    "trigger",
    [
        RunOnce(MINUTE),
        RunOnce(timedelta()),
        RunOnce(at=NOON, misfire="skip", grace=HOUR),
        Repeating(SECOND),
        Repeating(SECOND, timedelta(), count=3, until=NOON, jitter=SECOND, auto_commit=True),
        Cron("*/5 * * * *"),
        Cron("0 0 12 ? * MON-FRI", "Europe/Berlin", misfire="all", grace=MINUTE, count=7),
    ],
)
def test_a_trigger_is_stored_whole(trigger):
    """Read back by another process, it is the same value."""
    stored = json.loads(json.dumps(to_values(trigger)))
    assert from_values(stored) == trigger
    assert stored["kind"] in {"once", "repeating", "cron"}


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (RunOnce, "delay or at"),
        (lambda: RunOnce(SECOND, at=NOON), "delay or at"),
        (lambda: RunOnce(at=datetime(2026, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda: RunOnce(-SECOND), "delay"),
        (lambda: Repeating(timedelta()), "interval"),
        (lambda: Repeating(1), "interval"),
        (lambda: Repeating(timedelta(seconds=1, microseconds=1)), "whole milliseconds"),
        (lambda: Repeating(SECOND, count=0), "count"),
        (lambda: Repeating(SECOND, count=True), "count"),
        (lambda: Repeating(SECOND, until="tomorrow"), "until"),
        (lambda: Cron("61 * * * *"), "61"),
        (lambda: Cron("0 0 31 2 *"), "does not fire"),
        (lambda: Cron("* * * * *", "Mars/Olympus"), "no time zone"),
        (lambda: Cron("* * * * *", misfire="lates"), "'latest', 'all', 'skip'"),
        (lambda: Cron("* * * * *", grace=timedelta()), "grace"),
        (lambda: Cron("* * * * *", jitter=timedelta(days=2)), "jitter"),
        (lambda: Cron("* * * * *", auto_commit=1), "auto_commit"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_made(make, complaint):
    with pytest.raises(BadInput, match=complaint):
        make()


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "7",
        "{}",
        '{"kind": "lunar"}',
        '{"kind": "cron", "moon": 1}',
        pytest.param("[" * 100_000, id="too deep"),
    ],
)
def test_what_another_version_wrote_is_a_clear_error(text):
    with pytest.raises(ConfigError, match="cannot read the schedule's definition"):
        ScheduleDefinition.from_json(f'{{"start": 0, "trigger": {text}}}')


def seconds(trigger, count=3, after=-1, start_ms=NOON_MS):
    """Times in seconds after noon."""
    found = Timetable(trigger, start_ms).upcoming(NOON_MS + after * 1000, count)
    return [(ms - NOON_MS) / 1000 for ms in found]


def test_times():
    """Multiples of the interval from the first one; a delay counts from when the schedule was made."""
    assert seconds(RunOnce(MINUTE)) == [60]
    assert seconds(RunOnce(at=NOON + SECOND)) == [1]
    assert seconds(RunOnce(MINUTE), after=60) == []
    assert seconds(Repeating(MINUTE)) == [60, 120, 180]
    assert seconds(Repeating(MINUTE, timedelta())) == [0, 60, 120]
    assert seconds(Repeating(MINUTE, SECOND), after=61) == [121, 181, 241]
    assert seconds(Repeating(MINUTE, SECOND), after=59.5) == [61, 121, 181]
    assert seconds(Repeating(MINUTE, until=NOON + 2 * MINUTE)) == [60, 120]
    assert seconds(Cron("*/20 * * * * *")) == [0, 20, 40]
    assert seconds(Cron("* * * * *", until=NOON)) == [0]


def test_the_first_time():
    """The time of a RunOnce may be past; a trigger that never fires has no first time."""
    assert Timetable(RunOnce(at=NOON - HOUR), NOON_MS).first() == NOON_MS - 3_600_000
    assert Timetable(Repeating(MINUTE, timedelta()), NOON_MS).first() == NOON_MS
    assert Timetable(Cron("* * * * *", until=NOON - HOUR), NOON_MS).first() is None


def late(trigger, late_s, time_s=0):
    """What is fired, and what comes next, in seconds after noon, when noon's firing is so late."""
    choice = choose(Timetable(trigger, NOON_MS - 1), NOON_MS + time_s * 1000, NOON_MS + int(late_s * 1000))
    return tuple(None if ms is None else (ms - NOON_MS) / 1000 for ms in choice)


MINUTELY = "* * * * *"


@pytest.mark.parametrize(
    ("trigger", "late_s", "expected"),
    [
        (Cron(MINUTELY), 0, (0, 60)),
        (Cron(MINUTELY), -3, (0, 60)),  # this clock is behind the one that delivered it
        (Cron(MINUTELY), 59.9, (0, 60)),
        (Cron(MINUTELY), 60, (60, 120)),
        (Cron(MINUTELY), 3600 + 30, (3600, 3660)),
        (Cron(MINUTELY, grace=10 * SECOND), 3600 + 10, (3600, 3660)),
        (Cron(MINUTELY, grace=10 * SECOND), 3600 + 30, (None, 3660)),
        (Cron(MINUTELY, misfire="all"), 3630, (0, 60)),
        (Cron(MINUTELY, misfire="all", grace=10 * MINUTE), 3630, (None, 3060)),
        (Cron(MINUTELY, misfire="all", grace=10 * MINUTE), 3600, (None, 3000)),
        (Cron(MINUTELY, misfire="skip"), 10, (0, 60)),
        (Cron(MINUTELY, misfire="skip"), 11, (None, 60)),
        (Cron(MINUTELY, misfire="skip"), 3605, (None, 3600)),  # that one is not too late yet
        (Cron(MINUTELY, misfire="skip", grace=MINUTE), 3605, (None, 3600)),
        (Cron(MINUTELY, until=NOON + MINUTE), 500, (60, None)),
        (Cron(MINUTELY, misfire="skip", until=NOON + MINUTE), 500, (None, None)),
        (RunOnce(at=NOON), 86_400, (0, None)),
        (RunOnce(at=NOON, misfire="skip"), 86_400, (None, None)),
    ],
)
def test_misfires(trigger, late_s, expected):
    """Policy "latest" fires the last one missed, "all" each, "skip" none; nothing beyond its grace."""
    assert late(trigger, late_s) == expected


def test_a_long_outage_is_bridged_at_once():
    """The last of ten million missed seconds is found without walking through them."""
    timetable = Timetable(Cron("* * * * * *"), NOON_MS)
    now_ms = NOON_MS + 10_000_000_500
    assert choose(timetable, NOON_MS, now_ms) == Choice(now_ms - 500, now_ms + 500)


@settings(max_examples=examples(50))
@given(
    interval_ms=st.integers(100, 100_000),
    late_ms=st.integers(0, 10_000_000),
    misfire=st.sampled_from(["latest", "all", "skip"]),
    grace_s=st.none() | st.integers(1, 1000),
)
def test_a_schedule_goes_forward_whatever_is_missed(interval_ms, late_ms, misfire, grace_s):
    """Nothing is fired early, twice or too late, and the next time is later than all fired ones."""
    grace = grace_s and timedelta(seconds=grace_s)
    trigger = Repeating(timedelta(milliseconds=interval_ms), misfire=misfire, grace=grace)
    timetable = Timetable(trigger, NOON_MS)
    first_ms = timetable.first()
    now_ms = first_ms + late_ms
    fire_ms, next_ms = choose(timetable, first_ms, now_ms)
    assert next_ms > (fire_ms or first_ms)
    if fire_ms is not None:
        assert (fire_ms - first_ms) % interval_ms == 0
        assert fire_ms <= now_ms
        assert grace is None or now_ms - fire_ms <= grace_s * 1000
    if misfire == "latest":
        assert next_ms > now_ms >= next_ms - interval_ms


def test_jitter_is_the_same_for_a_repeat_and_another_for_the_next_firing():
    trigger = Cron(MINUTELY, jitter=MINUTE)
    found = {jitter_ms(trigger, f"k|1|{n}") for n in range(1000)}
    assert jitter_ms(trigger, "k|1|7") == jitter_ms(trigger, "k|1|7")
    assert len(found) > 950
    assert min(found) >= 0
    assert 55_000 < max(found) <= 60_000
    assert jitter_ms(Cron(MINUTELY), "k|1|7") == 0
