"""What people type and what they are shown."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import cqueue
from cqueue.cli import values
from cqueue.cli.context import CliContext
from cqueue.cli.failures import report_failure
from cqueue.cli.table import print_sheet
from cqueue.runtime.durations import show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172800),
        ("90", 90),
        ("0", 0),
        ("1.5", 1.5),
        ("0.5h", 1800),
        (" 1H 30M ", 5400),
        ("1m500ms", 60.5),
    ],
)
def test_a_duration_is_read_as_people_write_it(text, seconds):
    assert values.parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "x", "5x", "m5", "-1s", "1h30", "1e3", "1,5s", "5 minutes", "٣s", "²"])
def test_anything_else_is_refused_with_examples(text):
    with pytest.raises(typer.BadParameter, match="1h30m"):
        values.parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 30 + "d", "9" * 400])
def test_a_duration_beyond_all_time_is_no_crash(text):
    with pytest.raises(typer.BadParameter, match="is too long"):
        values.parse_duration(text)


@given(st.integers(0, 10**11))
def test_a_shown_duration_reads_back(ms):
    duration = timedelta(milliseconds=ms)
    assert values.parse_duration(show_duration(duration)) == duration


def test_since_is_a_time_or_a_duration_before_now():
    assert values.parse_since(" 2030-01-31T08:00Z") == datetime(2030, 1, 31, 8, tzinfo=UTC)
    before, since, after = datetime.now(UTC), values.parse_since("1h30m"), datetime.now(UTC)
    assert before <= since + timedelta(hours=1.5) <= after


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("latest", "nor a duration before now, such as 10m"),
        ("-1s", "nor a duration before now"),
        ("", "nor a duration before now"),
        ("10x", "is not a duration"),
        ("2030-01-31T08:00", "no time zone"),
        ("2030-13-31T08:00Z", "is not a time"),
        ("9999999d", "too long"),
    ],
)
def test_what_is_no_since_is_refused_with_examples(text, hint):
    with pytest.raises(typer.BadParameter, match=hint):
        values.parse_since(text)


def test_a_moment_needs_a_zone():
    assert values.parse_moment("2030-01-31T08:00Z") == datetime(2030, 1, 31, 8, tzinfo=UTC)
    assert values.parse_moment("2030-01-31T09:00+01:00") == datetime(2030, 1, 31, 8, tzinfo=UTC)
    with pytest.raises(typer.BadParameter, match="no time zone"):
        values.parse_moment("2030-01-31T08:00")
    with pytest.raises(typer.BadParameter, match="is not a time"):
        values.parse_moment("tomorrow")


def test_headers_are_name_and_value():
    assert values.parse_pairs(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(typer.BadParameter, match="eader"):
            values.parse_pairs(wrong)


def test_a_body_is_text_if_it_can_be():
    assert values.body_text("größer".encode()) == ("größer", "utf-8")
    assert values.body_text(b"\xff\xfe") == ("//4=", "base64")


ODD = "a\tb\n\x1b[31mred\x07\x9b\u202edloc"
"""Written by somebody else: lines and tabs, an escape sequence, and letters that would run backwards."""


@pytest.mark.parametrize(
    "show",
    [
        lambda cli: cli.emit({}, ODD),
        lambda cli: cli.emit({}, lambda: ODD),
        lambda cli: cli.line(ODD),
        lambda cli: cli.remark(ODD),
        lambda cli: cli.warn(ODD),
        lambda cli: report_failure(cqueue.BadInput(ODD), cli),
        lambda cli: print_sheet(cli, {"reason": ODD}),
    ],
)
def test_what_others_have_written_cannot_command_a_terminal(capsys, show):
    """It is shown, not obeyed, wherever it appears."""
    show(CliContext())
    shown = "".join(capsys.readouterr())
    assert r"\x1b[31mred\x07\x9b\u202edloc" in shown
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*shown}


def test_json_has_no_character_that_commands_a_terminal(capsys):
    """All of them are escaped in JSON, so that it means the same."""
    CliContext(json=True).emit({ODD: ODD + "ü"})
    line = capsys.readouterr().out
    assert json.loads(line) == {ODD: ODD + "ü"}
    assert "ü" in line
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*line}


def test_moments_are_shown_with_their_date_unless_it_is_today():
    now = datetime.now(UTC)
    assert values.show_moment(now) == now.astimezone().strftime("%H:%M:%S")
    assert values.show_moment(now + timedelta(days=2)).startswith("20")
