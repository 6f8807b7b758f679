"""What people type and what they see: durations, times, headers and bodies, each parsed in one place."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from datetime import datetime, timedelta

import typer

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
_WHOLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def parse_duration(text: str) -> timedelta:
    """`250ms`, `30s`, `5m`, `1h30m`, `2d`, or plain seconds.

    Raises:
        BadParameter: anything else; the message shows what is allowed.
    """
    squeezed = text.strip().lower().replace(" ", "")
    try:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", squeezed):
            return timedelta(seconds=float(squeezed))
        if _WHOLE.fullmatch(squeezed):
            return sum(
                (timedelta(seconds=float(n) * _UNITS[unit]) for n, unit in _PART.findall(squeezed)),
                timedelta(),
            )
    except OverflowError as exc:
        raise typer.BadParameter(f"{text!r} is too long.") from exc
    raise typer.BadParameter(f"{text!r} is not a duration. Write 30s, 5m, 1h30m, 250ms, 2d or plain seconds.")


def parse_moment(text: str) -> datetime:
    """An ISO 8601 time with its zone, such as `2030-01-31T08:00:00Z`.

    Raises:
        BadParameter: no such time, or no zone: without one, two machines would read two times.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r} is not a time. Write it like 2030-01-31T08:00:00Z.") from exc
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone. Add Z for UTC, or an offset such as +02:00.")
    return moment


def parse_headers(pairs: Iterable[str]) -> dict[str, str]:
    """Headers from `name=value` texts.

    Raises:
        BadParameter: one has no `=` or no name, or a name comes twice.
    """
    headers: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not a header. Write name=value.")
        if name in headers:
            raise typer.BadParameter(f"Header {name!r} is given twice.")
        headers[name] = value
    return headers


def body_text(body: bytes) -> tuple[str, str]:
    """A body as text, and how: `utf-8` as it is, anything else in `base64`."""
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii"), "base64"


def safe_for_terminal(text: str) -> str:
    """The text without control characters: a message must not be able to command somebody's terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_moment(moment: datetime | None) -> str:
    """A time in this machine's zone, to the second; the date as well unless it is today."""
    if moment is None:
        return "–"
    local = moment.astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")
