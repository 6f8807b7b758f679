"""How a queue's configuration looks: as a line of a table, as a sheet, as JSON."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cqueue.cli.context import CliContext
from cqueue.cli.table import print_sheet, print_table
from cqueue.config import FIXED, to_ms
from cqueue.durations import show_duration
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
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


def print_queue(cli: CliContext, description: dict[str, Any]) -> None:
    """One queue: a line a setting."""
    shown = {}
    for name, value in description.items():
        fixed = "  (fixed)" if name.removesuffix("_ms") in FIXED else ""
        shown[_title(name)] = _shown(name, value) + fixed
    print_sheet(cli, shown)


def print_queues(cli: CliContext, descriptions: list[dict[str, Any]]) -> None:
    """All queues: a line each."""
    rows = [[_shown(column, row[column]) for column in _COLUMNS] for row in descriptions]
    titles = [_title(column) for column in _COLUMNS]
    print_table(cli, titles, rows, right=titles[2:], spare=("time shard", "shards", "max attempts"))


def _title(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return show_duration(timedelta(milliseconds=value))
    if name == "max_attempts" and value == 0:
        return "no limit"
    return "–" if value is None else str(value)
