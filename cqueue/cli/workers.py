"""`cqueue workers`: which processes run handlers, of which queues, and what they have done."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.opening import open_client, say_left_out
from cqueue.cli.table import print_table
from cqueue.cli.values import show_moment

if TYPE_CHECKING:
    from cqueue.dispatcher.service.membership import Worker

app = typer.Typer()

_NUMBERS = ("threads", "running", "unstarted")
_OUTCOMES = ("succeeded", "retried", "dead")
_SPARE = ("started", "threads", "app", "unstarted", "retried", "heartbeat", "succeeded", "dead", "running")


@command(app)
def workers(cli: CliContext) -> None:
    """Show which processes run handlers of which queues.

    A process that was killed is shown until its last heartbeat is 15 seconds old.
    """
    from cqueue.dispatcher.service.membership import listed  # noqa: PLC0415 - keeps `cqueue --help` quick

    with open_client(cli) as client:
        found, now_s = listed(client)
        say_left_out(cli, client, "workers")
    if cli.json:
        cli.emit([_fields(worker, now_s) for worker in found])
    elif found:
        _print(cli, found, now_s)
    else:
        cli.remark("No process runs handlers. `cqueue dispatch MODULE:APP` starts one.")


def _fields(worker: Worker, now_s: float) -> dict[str, Any]:
    fields = asdict(worker)
    moments = {name: _moment(fields[name]).isoformat() for name in ("started", "seen")}
    return {**fields, **moments, "age_s": _age_s(worker, now_s)}


def _age_s(worker: Worker, now_s: float) -> float:
    return round(max(0.0, now_s - worker.seen), 1)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _print(cli: CliContext, found: list[Worker], now_s: float) -> None:
    rows = [
        (
            worker.name,
            ", ".join(worker.queues),
            worker.state,
            *(f"{getattr(worker, name):,}" for name in _NUMBERS),
            *(f"{worker.counters.get(name, 0):,}" for name in _OUTCOMES),
            f"{_age_s(worker, now_s):.0f}s ago",
            show_moment(_moment(worker.started)),
            worker.app,
        )
        for worker in found
    ]
    header = ("worker", "queues", "state", *_NUMBERS, *_OUTCOMES, "heartbeat", "started", "app")
    print_table(cli, header, rows, right=(*_NUMBERS, *_OUTCOMES, "heartbeat"), spare=_SPARE)
