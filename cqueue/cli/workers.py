"""`cqueue workers`: which processes run handlers, of which queues, and what they have done."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.opening import open_client, say_left_out
from cqueue.cli.options import Json
from cqueue.cli.values import show_moment

if TYPE_CHECKING:
    from rich.table import Table

    from cqueue.dispatcher.members import Worker

app = typer.Typer()

_NUMBERS = ("threads", "running", "waiting")
_OUTCOMES = ("succeeded", "retried", "dead")


@app.command()
def workers(ctx: typer.Context, *, _json: Json = False) -> None:
    """Show which processes run handlers of which queues.

    A process that was killed is shown until its last heartbeat is 15 seconds old.
    """
    from cqueue.dispatcher.members import listed  # noqa: PLC0415 - keeps `cqueue --help` quick

    cli: CliContext = ctx.obj
    with open_client(cli) as client:
        found, now_s = listed(client)
        say_left_out(cli, client, "workers")
    if cli.json:
        cli.emit([_fields(worker, now_s) for worker in found])
    elif found:
        cli.console.print(_table(found, now_s))
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


def _table(found: list[Worker], now_s: float) -> Table:
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False)
    for column in ("worker", "app", "queues"):
        table.add_column(column, overflow="fold")
    table.add_column("state", no_wrap=True)
    for column in (*_NUMBERS, *_OUTCOMES, "heartbeat"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    for worker in found:
        numbers = [f"{getattr(worker, name):,}" for name in _NUMBERS]
        outcomes = [f"{worker.counters.get(name, 0):,}" for name in _OUTCOMES]
        table.add_row(
            worker.name,
            worker.app,
            ", ".join(worker.queues),
            worker.state,
            *numbers,
            *outcomes,
            f"{_age_s(worker, now_s):.0f} s ago",
            show_moment(_moment(worker.started)),
        )
    return table
