"""Durations, times, names with values and bodies, as people type and see them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import typer

from cqueue.runtime.durations import UNITS, show_duration

NONE = "–"
"""Stands in tables and sheets for a value that there is not."""

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
_WHOLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+")
_TIME = re.compile(r"[0-9]{4}-")


def parse_duration(text: str) -> timedelta:
    """Parse a duration: `250ms`, `30s`, `5m`, `1h30m`, `2d`, or plain seconds.

    Raises:
        BadParameter: anything else; the message shows what is allowed.
    """
    squeezed = text.strip().lower().replace(" ", "")
    try:
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", squeezed):
            return timedelta(seconds=float(squeezed))
        if _WHOLE.fullmatch(squeezed):
            return timedelta(microseconds=sum(float(n) * UNITS[unit] for n, unit in _PART.findall(squeezed)))
    except OverflowError as exc:
        raise typer.BadParameter(f"{text!r} is too long.") from exc
    raise typer.BadParameter(f"{text!r} is not a duration. Write 30s, 5m, 1h30m, 250ms, 2d or plain seconds.")


def parse_moment(text: str) -> datetime:
    """Parse an ISO 8601 time with its zone, such as `2030-01-31T08:00:00Z`.

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


def parse_since(text: str) -> datetime:
    """Parse a time as `parse_moment`, or a duration before now, such as `10m`.

    Raises:
        BadParameter: neither of them.
    """
    stripped = text.strip()
    if _TIME.match(stripped):
        return parse_moment(stripped)
    if not stripped[:1].isdigit():
        raise typer.BadParameter(
            f"{text!r} is not a time, such as 2030-01-31T08:00:00Z, nor a duration before now, such as 10m."
        )
    try:
        return datetime.now(UTC) - parse_duration(stripped)
    except OverflowError as exc:
        raise typer.BadParameter(f"{text!r} is too long.") from exc


def parse_pairs(texts: Iterable[str] | None, option: str = "--header") -> dict[str, str]:
    """Parse `name=value` texts. option: what takes them, for the error.

    Raises:
        BadParameter: one has no `=` or no name, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{option} {text!r}: write NAME=VALUE.")
        if name.strip() in found:
            raise typer.BadParameter(f"{option} {name.strip()} is given twice.")
        found[name.strip()] = value
    return found


def body_text(body: bytes) -> tuple[str, str]:
    """Return a body as text, and its encoding: `utf-8`, or `base64` if the body is no UTF-8."""
    try:
        return body.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode("ascii"), "base64"


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shown(value: object) -> str:
    """Show a value of any kind: numbers with their thousands apart, pairs and lines of what is in others."""
    if value in (None, "", [], {}):
        return NONE
    if isinstance(value, dict):
        return ", ".join(f"{name}={shown(one)}" for name, one in value.items())
    if isinstance(value, list):
        return "\n".join(map(shown, value))
    if isinstance(value, datetime):
        return show_moment(value)
    if isinstance(value, timedelta):
        return show_duration(value)
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def show_moment(moment: datetime) -> str:
    """Show a time in this machine's zone, to the second, with its date unless that is today."""
    local = moment.astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")
