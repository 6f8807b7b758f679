"""How a schedule looks: as a line of a table, as a sheet, as JSON."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.table import print_sheet, print_table
from cqueue.cli.values import body_text, safe_for_terminal, show_moment
from cqueue.config import to_ms
from cqueue.durations import show_duration

if TYPE_CHECKING:
    from cqueue.dispatcher.schedules import Schedule

_COLUMNS = ("key", "state", "next", "when", "task", "previous", "fired")
UPCOMING = 5


def described(schedule: Schedule, *, upcoming: int = 0) -> dict[str, Any]:
    """What --json shows of a schedule: times in ISO 8601, durations in ms."""
    body, encoding = body_text(schedule.body)
    fields: dict[str, Any] = {
        "queue": schedule.queue,
        "key": schedule.key,
        "state": schedule.state,
        "when": when(schedule),
        "trigger": _trigger(schedule),
        "task": schedule.task,
        "body": body,
        "encoding": encoding,
        "headers": dict(schedule.headers),
        "priority": schedule.priority,
        "next": _iso(schedule.next_at),
        "previous": _iso(schedule.previous),
        "fired": schedule.fired,
    }
    if upcoming:
        fields["upcoming"] = [_iso(time) for time in schedule.upcoming(upcoming)]
    return fields


def when(schedule: Schedule) -> str:
    """The trigger in a few words."""
    from cqueue.dispatcher.triggers import Cron, Repeating  # noqa: PLC0415 - not needed for --help

    match schedule.trigger:
        case Cron(expression=expression, timezone=timezone):
            return f"{expression} {timezone}"
        case Repeating(interval=interval):
            return f"every {show_duration(interval)}"
    return "once"


def _trigger(schedule: Schedule) -> dict[str, Any]:
    from cqueue.dispatcher.triggers import given  # noqa: PLC0415 - not needed for --help

    values: dict[str, Any] = {"kind": type(schedule.trigger).__name__}
    for name, value in given(schedule.trigger).items():
        if isinstance(value, timedelta):
            values[f"{name}_ms"] = to_ms(value)
        else:
            values[name] = _iso(value) if isinstance(value, datetime) else value
    return values


def print_schedules(
    cli: CliContext,
    schedules: list[Schedule],
    *,
    orphans: Container[tuple[str, str]] = (),
    queues: bool = False,
) -> None:
    """All schedules: a line each; those whose task no worker knows are marked.

    queues: say which queue each is of.
    """
    rows = []
    for schedule in schedules:
        is_orphan = schedule.state == "active" and (schedule.queue, schedule.key) in orphans
        row = (
            schedule.key,
            "orphan" if is_orphan else schedule.state,
            show_moment(schedule.next_at),
            when(schedule),
            schedule.task or "–",
            show_moment(schedule.previous),
            str(schedule.fired),
        )
        rows.append((schedule.queue, *row) if queues else row)
    header = ("queue", *_COLUMNS) if queues else _COLUMNS
    print_table(cli, header, rows, right=("fired",), spare=("previous", "fired", "when"))


def print_schedule(cli: CliContext, description: dict[str, Any]) -> None:
    """One schedule: a line a field."""
    shown = {name: _shown(value) for name, value in description.items() if name != "encoding"}
    print_sheet(cli, {**shown, "upcoming": "\n".join(description.get("upcoming", ())) or "–"})


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(one)}" for name, one in value.items()) or "–"
    return "–" if value is None or value == "" else safe_for_terminal(str(value))


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
