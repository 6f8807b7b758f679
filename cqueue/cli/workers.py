"""`cqueue workers`: which processes run handlers, of which queues, and what they have done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.opening import open_client, say_left_out
from cqueue.cli.render import print_list

if TYPE_CHECKING:
    from cqueue.dispatcher.service.membership import Worker

app = typer.Typer()

MOST_NAMED = 5
"""Queues of a worker that a terminal names: there may be thousands."""
_SPARE = ("started", "threads", "app", "unstarted", "retried", "heartbeat", "succeeded", "dead", "running")


@command(app)
def workers(cli: CliContext) -> None:
    """Show which processes run handlers of which queues.

    A process that was killed is shown until its last heartbeat is 15 seconds old; of thousands of queues, 60.
    """
    from cqueue.dispatcher.service.membership import listed  # noqa: PLC0415 - keeps `cqueue --help` quick

    with open_client(cli) as client:
        found, now_s = listed(client)
        say_left_out(cli, client, "workers")
    columns: dict[str, Callable[[Worker], Any]] = {
        "worker": attrgetter("name"),
        "queues": lambda worker: _named(worker.queues, all_=not cli.console.is_terminal),
        "state": attrgetter("state"),
        **{name: attrgetter(name) for name in ("threads", "running", "unstarted")},
        **{name: partial(_count, name) for name in ("succeeded", "retried", "dead")},
        "heartbeat": lambda worker: f"{_age_s(worker, now_s):.0f}s ago",
        "started": lambda worker: _moment(worker.started),
        "app": attrgetter("app"),
    }
    none = "No process runs handlers. `cqueue dispatch MODULE:APP` starts one."
    print_list(
        cli, found, partial(_fields, now_s=now_s), columns, none=none, right=("heartbeat",), spare=_SPARE
    )


def _fields(worker: Worker, now_s: float) -> dict[str, Any]:
    moments = {name: _moment(getattr(worker, name)) for name in ("started", "seen")}
    return {**asdict(worker), **moments, "age_s": _age_s(worker, now_s)}


def _named(queues: Sequence[str], *, all_: bool) -> str:
    more = 0 if all_ else max(0, len(queues) - MOST_NAMED)
    named = ", ".join(queues[: len(queues) - more])
    return f"{named} and {more:,} more" if more else named


def _count(name: str, worker: Worker) -> int:
    return worker.counters.get(name, 0)


def _age_s(worker: Worker, now_s: float) -> float:
    return round(max(0.0, now_s - worker.seen), 1)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
