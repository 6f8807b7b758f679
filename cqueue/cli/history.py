"""`cqueue history`: what became of a queue's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.opening import find_queue, open_client
from cqueue.cli.options import QueueName, number
from cqueue.cli.render import print_list
from cqueue.cli.short_ids import check, is_short
from cqueue.cli.values import parse_since
from cqueue.history import MAX_LIMIT
from cqueue.message import short
from cqueue.runtime.durations import show_duration

if TYPE_CHECKING:
    from cqueue.history import HistoryEvent
    from cqueue.queue import Queue

app = typer.Typer()


@command(app)
def history(
    cli: CliContext,
    name: QueueName,
    text: Annotated[str | None, "ID", "Only of this message; its id, whole or short."] = None,
    *,
    key: Annotated[str | None, "Only of messages with this key."] = None,
    worker: Annotated[str | None, "Only of this worker, as `cqueue workers` shows it."] = None,
    schedule: Annotated[str | None, "--schedule KEY", "Only of firings of this schedule."] = None,
    state: Annotated[
        list[str] | None,
        "STATE",
        "Only of this state, such as retried, dead, interrupted or lost; may be repeated.",
    ] = None,
    since: Annotated[
        datetime | None,
        parse_since,
        "TIME|DURATION",
        "Only since a time, or a duration before now such as 10m.",
    ] = None,
    limit: Annotated[int, number("How many of the last events.", 1, MAX_LIMIT)] = 100,
) -> None:
    """Show what workers told of messages, in the order of time; with --json an object a line.

    The queue keeps a history while it has one: `cqueue queue alter QUEUE --history 7d`. A short id is looked
    for among the last 10,000 events. Events of the last 4 seconds may be missing.
    """
    filters = {"key": key, "worker": worker, "schedule": schedule, "state": state or None, "since": since}
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with cli.status("Reading…"):
            events = _read(queue, text, limit, filters)
    kept = "" if queue.config.history else f" It keeps none: `cqueue queue alter {name} --history 7d`."
    print_list(
        cli,
        events,
        _fields,
        _COLUMNS,
        none=f"The history of queue {name} has no such event.{kept}",
        lines=True,
        spare=("took", "worker"),
        cut=True,
    )


def _read(queue: Queue, text: str | None, limit: int, filters: Mapping[str, Any]) -> list[HistoryEvent]:
    if text is None or not is_short(check(text)):
        return queue.history(text, limit=limit, **filters)
    events = queue.history(limit=MAX_LIMIT, **filters)
    return [event for event in events if short(event.message_id).startswith(text)][-limit:]


def _fields(event: HistoryEvent) -> dict[str, Any]:
    fields = asdict(event)
    return {"id": fields.pop("message_id"), **fields}


def _took(event: HistoryEvent) -> str | None:
    return None if event.began_at is None else show_duration(event.at - event.began_at)


_COLUMNS: Mapping[str, Callable[[HistoryEvent], Any]] = {
    "at": attrgetter("at"),
    "state": attrgetter("state"),
    "id": lambda event: short(event.message_id),
    "task": attrgetter("task"),
    "attempt": attrgetter("attempt"),
    "took": _took,
    "worker": attrgetter("worker"),
    "reason": attrgetter("reason"),
}
