"""How a queue's configuration looks: as a line of a table, as a sheet, as JSON."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cqueue.cli.values import show_duration
from cqueue.config import FIXED, to_ms
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
    from rich.table import Table

    from cqueue.queue import Queue

_COLUMNS = ("queue", "state", "visibility_ms", "max_attempts", "shards", "time_shard_ms")


def described(queue: Queue) -> dict[str, Any]:
    """What --json shows of a queue: durations in ms, as they are stored."""
    config = queue.config
    settings: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, timedelta):
            settings[f"{field.name}_ms"] = to_ms(value)
        else:
            settings[field.name] = value
    dead = None if queue.name.endswith(DEAD_SUFFIX) else queue.dead_letter_name
    state = "paused" if queue.paused else "active"
    return {"queue": queue.name, "state": state, "dead_letter_queue": dead, **settings}


def sheet(description: dict[str, Any]) -> Table:
    """One queue: a line a setting."""
    from rich.table import Table  # noqa: PLC0415 - not needed for --help

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(style="dim")
    for name, value in description.items():
        setting = name.removesuffix("_ms")
        table.add_row(setting.replace("_", " "), _shown(name, value), "fixed" if setting in FIXED else "")
    return table


def listing(descriptions: list[dict[str, Any]]) -> Table:
    """All queues: a line each."""
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        number = column not in {"queue", "state"}
        title = column.removesuffix("_ms").replace("_", " ")
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in descriptions:
        table.add_row(*(_shown(column, row[column]) for column in _COLUMNS))
    return table


def _shown(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return show_duration(timedelta(milliseconds=value))
    if name == "max_attempts" and value == 0:
        return "no limit"
    return "–" if value is None else str(value)
