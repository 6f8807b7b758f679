"""When cron expressions fire: every class of time zone, in the hours that clocks skip or repeat."""

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqueue.dispatcher.schedules.cron import (
    check_expression,
    check_zone,
    first_instant,
    is_wildcard,
    next_instant,
)
from cqueue.errors import ConfigError
from tests.properties import examples

BERLIN, NEW_YORK, LORD_HOWE, SAO_PAULO, SYDNEY, KOLKATA, APIA = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "Australia/Sydney",
    "Asia/Kolkata",
    "Pacific/Apia",
)


def firings(expression, zone, start, count):
    """Local times with offsets, from a local start on."""
    zone = ZoneInfo(zone)
    expression = check_expression(expression)
    at = datetime.fromisoformat(start).replace(tzinfo=zone).astimezone(UTC)
    shown = []
    for _ in range(count):
        at = next_instant(expression, zone, at)
        shown.append(at.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S%z"))
    return shown


def on(day, *times):
    return [f"{day} {time}" for time in times]


@pytest.mark.parametrize(
    ("zone", "expression", "start", "expected"),
    [
        # ── Spring: the clocks skip an hour. A fixed time in it fires at the first instant after it ──
        (BERLIN, "30 2 * * *", "2026-03-28 12:00", [
            "2026-03-29 03:00:00+0200", "2026-03-30 02:30:00+0200"]),
        (BERLIN, "0 2,3 * * *", "2026-03-28 12:00", [
            "2026-03-29 03:00:00+0200", "2026-03-30 02:00:00+0200"]),  # both mean this instant: one firing
        (BERLIN, "15 10 2 * * *", "2026-03-28 12:00", [
            "2026-03-29 03:00:00+0200", "2026-03-30 02:10:15+0200"]),
        (NEW_YORK, "30 2 * * *", "2026-03-07 12:00", [
            "2026-03-08 03:00:00-0400", "2026-03-09 02:30:00-0400"]),
        (SYDNEY, "30 2 * * *", "2026-10-03 12:00", [
            "2026-10-04 03:00:00+1100", "2026-10-05 02:30:00+1100"]),
        (LORD_HOWE, "15 2 * * *", "2026-10-03 12:00", [
            "2026-10-04 02:30:00+1100", "2026-10-05 02:15:00+1100"]),
        (LORD_HOWE, "45 2 * * *", "2026-10-03 12:00", [
            "2026-10-04 02:45:00+1100", "2026-10-05 02:45:00+1100"]),
        # … midnight itself is skipped
        (SAO_PAULO, "0 0 * * *", "2018-11-03 12:00", [
            "2018-11-04 01:00:00-0200", "2018-11-05 00:00:00-0200"]),
        # … a whole day is skipped
        (APIA, "0 12 * * *", "2011-12-29 00:00", [
            "2011-12-29 12:00:00-1000", "2011-12-31 00:00:00+1400", "2011-12-31 12:00:00+1400"]),
        # ── "Every so often" fires at each real instant that matches: none in a gap ──
        (BERLIN, "*/30 * * * *", "2026-03-29 01:15", [
            "2026-03-29 01:30:00+0100", "2026-03-29 03:00:00+0200", "2026-03-29 03:30:00+0200"]),
        (BERLIN, "30 * * * *", "2026-03-29 01:00", [
            "2026-03-29 01:30:00+0100", "2026-03-29 03:30:00+0200"]),
        (BERLIN, "*/20 2 * * *", "2026-03-28 12:00", ["2026-03-30 02:00:00+0200"]),
        (LORD_HOWE, "*/20 * * * *", "2026-10-04 01:50", [
            "2026-10-04 02:40:00+1100", "2026-10-04 03:00:00+1100"]),
        (APIA, "0 * * * *", "2011-12-29 22:30", [
            "2011-12-29 23:00:00-1000", "2011-12-31 00:00:00+1400", "2011-12-31 01:00:00+1400"]),
        # ── Autumn: the clocks repeat an hour. A fixed time fires the first time only ──
        (BERLIN, "30 2 * * *", "2026-10-24 12:00", [
            "2026-10-25 02:30:00+0200", "2026-10-26 02:30:00+0100"]),
        (BERLIN, "0 3 * * *", "2026-10-24 12:00", [
            "2026-10-25 03:00:00+0100", "2026-10-26 03:00:00+0100"]),
        (NEW_YORK, "0-59 1 * * *", "2026-11-01 01:58", [
            "2026-11-01 01:59:00-0400", "2026-11-02 01:00:00-0500"]),
        (SYDNEY, "30 2 * * *", "2026-04-04 12:00", [
            "2026-04-05 02:30:00+1100", "2026-04-06 02:30:00+1000"]),
        (LORD_HOWE, "45 1 * * *", "2026-04-04 12:00", [
            "2026-04-05 01:45:00+1100", "2026-04-06 01:45:00+1030"]),
        (SAO_PAULO, "30 23 * * *", "2018-02-17 12:00", [
            "2018-02-17 23:30:00-0200", "2018-02-18 23:30:00-0300"]),
        # ── … and "every so often" both times ──
        (BERLIN, "30 * * * *", "2026-10-25 01:45", [
            "2026-10-25 02:30:00+0200", "2026-10-25 02:30:00+0100", "2026-10-25 03:30:00+0100"]),
        (BERLIN, "*/30 2 * * *", "2026-10-24 12:00", [
            "2026-10-25 02:00:00+0200", "2026-10-25 02:30:00+0200",
            "2026-10-25 02:00:00+0100", "2026-10-25 02:30:00+0100", "2026-10-26 02:00:00+0100"]),
        (BERLIN, "*/30 2 25 10 *", "2026-10-25 02:15", [  # the next match by the wall clock is a year off
            "2026-10-25 02:30:00+0200", "2026-10-25 02:00:00+0100", "2026-10-25 02:30:00+0100",
            "2027-10-25 02:00:00+0200"]),
        (LORD_HOWE, "*/15 * * * *", "2026-04-05 01:40", [
            "2026-04-05 01:45:00+1100", "2026-04-05 01:30:00+1030", "2026-04-05 01:45:00+1030",
            "2026-04-05 02:00:00+1030"]),
        # ── No daylight saving; half an hour beside the others ──
        (KOLKATA, "30 2 * * *", "2026-03-28 12:00", [
            "2026-03-29 02:30:00+0530", "2026-03-30 02:30:00+0530"]),
        ("UTC", "*/30 * * * *", "2026-03-29 01:15", [
            "2026-03-29 01:30:00+0000", "2026-03-29 02:00:00+0000"]),
    ],
)  # fmt: skip
def test_clocks_that_change(zone, expression, start, expected):
    """A fixed time fires once whatever the clocks do; "every so often" at each instant that matches."""
    assert firings(expression, zone, start, len(expected)) == expected


def test_the_clocks_are_not_left_to_croniter():
    """The zones of croniter go wrong in a fold. If this fails, `cron` has code to delete.

    Old versions fire an hour late on the next day, newer ones twice in the fold.
    """
    from croniter import croniter

    noon = datetime(2026, 10, 24, 12, tzinfo=ZoneInfo(BERLIN))
    theirs = croniter("30 2 * * *", noon)
    assert [theirs.get_next(datetime).isoformat() for _ in range(2)] != [
        "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]  # fmt: skip
    assert firings("30 2 * * *", BERLIN, "2026-10-24 12:00", 2) == [
        "2026-10-25 02:30:00+0200", "2026-10-26 02:30:00+0100"]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("*/5 * * * * *", "2026-01-01 00:00:03", on("2026-01-01", "00:00:05+0000", "00:00:10+0000")),
        ("0 30 2 ? * MON-FRI", "2026-01-01 03:00", ["2026-01-02 02:30:00+0000", "2026-01-05 02:30:00+0000"]),
        ("0 12 ? jan mon", "2026-01-20", ["2026-01-26 12:00:00+0000", "2027-01-04 12:00:00+0000"]),
        ("0 0 L * *", "2028-02-01", ["2028-02-29 00:00:00+0000"]),
        ("0 0 29 2 *", "2096-03-01", ["2104-02-29 00:00:00+0000"]),  # 2100 is no leap year
        ("0 0 * * 7", "2026-01-01", ["2026-01-04 00:00:00+0000"]),
        ("0 0 13 * 5", "2026-02-01", ["2026-02-06 00:00:00+0000", "2026-02-13 00:00:00+0000"]),  # or
        (
            "0 0 20 * 5#2",
            "2026-01-01",
            ["2026-01-09 00:00:00+0000", "2026-01-20 00:00:00+0000", "2026-02-13 00:00:00+0000"],
        ),  # or
        ("0 0 0 1 * L5", "2026-01-01", ["2026-01-30 00:00:00+0000", "2026-02-01 00:00:00+0000"]),  # or
        *(
            (f"0 0 {day} * 5#2", "2026-01-01", ["2026-01-09 00:00:00+0000", "2026-02-13 00:00:00+0000"])
            for day in ("*", "?", "*/1", "1-31")
        ),
        ("@hourly", "2026-01-01", on("2026-01-01", "01:00:00+0000", "02:00:00+0000")),
        ("@daily", "2026-01-01", ["2026-01-02 00:00:00+0000"]),
    ],
)
def test_what_expressions_may_say(expression, start, expected):
    """5 fields, or 6 with the seconds first as in Quartz; names, `?`, `L`, aliases."""
    assert firings(expression, "UTC", start, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("* * *", r"3 field\(s\); it takes 5"),
        ("0 0 12 1 1 ? 2030", "7 field"),
        ("", "0 field"),
        ("@reboot", "1 field"),
        ("60 * * * * *", "has a wrong second, '60'; it takes 0 to 59, and lists, ranges and steps of them"),
        ("*/0 * * * *", r"has a wrong minute, '\*/0'; it takes 0 to 59"),
        ("0 25 * * *", "has a wrong hour, '25'; it takes 0 to 23"),
        ("* 0 0 32 1 *", "has a wrong day, '32'; it takes 1 to 31, or L"),
        ("* * * FEBB *", "has a wrong month, 'FEBB'; it takes 1 to 12, or JAN to DEC"),
        ("* * * * 1-8", r"has a wrong weekday, '1-8'; it takes 0 to 7 \(both are Sunday\), MON to SUN"),
        ("* * * * blursday", "blursday"),
        ("H * * * *", "H or R"),
        ("0 R(0-7) * * *", "H or R"),
        ("0 0 30 2 *", "'0 0 30 2 \\*' does not fire in twelve years: is there such a day"),
        ("0 0 31 FEB,APR,JUN ?", "does not fire"),
        (None, "it takes text"),
    ],
)
def test_a_wrong_expression_says_what_is_wrong(expression, complaint):
    with pytest.raises(ConfigError, match=complaint):
        check_expression(expression)


def test_a_mistyped_zone_is_answered_with_the_nearest():
    assert check_zone("Europe/Berlin").key == "Europe/Berlin"
    with pytest.raises(ConfigError, match="Did you mean 'Europe/Berlin'"):
        check_zone("Europe/Berlni")
    for name in ("", "../etc/passwd", 7, "Europe"):
        with pytest.raises(ConfigError, match="no time zone"):
            check_zone(name)


def test_a_day_that_never_comes_has_no_time():
    """Neither 31 February nor what lies more than 10 years ahead."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert next_instant("0 0 31 2 *", ZoneInfo("UTC"), start) is None
    assert next_instant("0 */2 31 2 *", ZoneInfo(BERLIN), start) is None


def matches(expression, zone, instant):
    """The plain definition: the clocks show a time at this instant that the expression names."""
    wall = instant.astimezone(zone)
    minutes, hours, *every_day = fields_of(expression)
    assert every_day == [["*"]] * 3
    return all(
        field == ["*"] or value in field for field, value in ((minutes, wall.minute), (hours, wall.hour))
    )


@cache
def fields_of(expression):
    from croniter import croniter

    return croniter.expand(expression)[0]


@settings(max_examples=examples(60))
@given(
    zone=st.sampled_from([BERLIN, NEW_YORK, LORD_HOWE, SAO_PAULO, SYDNEY, APIA]),
    change=st.sampled_from(["2011-12-30", "2018-02-18", "2018-11-04", "2026-03-08", "2026-03-29",
                            "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"]),
    expression=st.sampled_from(["*/7 * * * *", "30 * * * *", "*/20 2 * * *", "5 */2 * * *"]),
    minutes=st.integers(0, 2880),
)  # fmt: skip
def test_every_so_often_is_each_minute_that_matches(zone, change, expression, minutes):
    """Found minute by minute, from any start around any change, it is the same instants."""
    zone = ZoneInfo(zone)
    start = datetime.fromisoformat(change).replace(tzinfo=UTC) - timedelta(days=1)
    at = start + timedelta(minutes=minutes)
    expected = (at + timedelta(minutes=n) for n in range(1, 6 * 1440))
    expected = next(instant for instant in expected if matches(expression, zone, instant))
    assert is_wildcard(expression)
    assert next_instant(expression, zone, at) == expected


@settings(max_examples=examples(60))
@given(
    zone=st.sampled_from([BERLIN, LORD_HOWE, SAO_PAULO, APIA]),
    expression=st.sampled_from(["30 2 * * *", "0 0 * * *", "45 1 * * *", "15,45 23 * * *"]),
    day=st.dates(date(2011, 1, 1), date(2026, 12, 1)),
)
def test_a_fixed_time_comes_once_a_day(zone, expression, day):
    """Over 30 days: each wall time of each day is one instant, and no instant comes twice."""
    from croniter import croniter

    zone, wall = ZoneInfo(zone), datetime.combine(day, time())
    walls, end = croniter(expression, wall), wall + timedelta(days=30)
    expected, found = set(), []
    while (next_wall := walls.get_next(datetime)) < end:
        expected.add(first_instant(next_wall, zone))
    at = wall.replace(tzinfo=zone).astimezone(UTC)
    while (at := next_instant(expression, zone, at)) <= max(expected):
        found.append(at)
    assert found == sorted(instant for instant in expected if instant > wall.replace(tzinfo=zone))
