"""`cqueue stats`: what queues hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.opening import find_queue, open_client, say_left_out
from cqueue.cli.options import Json
from cqueue.cli.values import show_moment
from cqueue.errors import QueueNotFound

if TYPE_CHECKING:
    from rich.table import Table

    from cqueue.client import Client

app = typer.Typer()

_COLUMNS = ("ready", "delayed", "claimed", "waiting", "live", "wide_rows")


@app.command()
def stats(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[QUEUE]…", help="Which queues; by default all.")
    ] = None,
    *,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Count every message: reads every id, so it takes long if many."),
    ] = False,
    _json: Json = False,
) -> None:
    """Show what queues hold: ready, delayed, claimed by consumers, waiting to be delivered again.

    Without --exact only what is cheap to know is shown, and `claimed` may contain messages acked a
    moment ago.
    """
    cli: CliContext = ctx.obj
    with open_client(cli) as client:
        rows = _all(cli, client, names or [], exact=exact)
        say_left_out(cli, client, "messages")
    if cli.json:
        cli.emit(rows)
    elif rows:
        cli.console.print(_table(rows))
        if not exact:
            cli.remark("ready, delayed and live are counted with --exact.")
    else:
        cli.remark("There is no queue yet. `cqueue queue create NAME` makes one.")


def _all(cli: CliContext, client: Client, names: list[str], *, exact: bool) -> list[dict[str, Any]]:
    for name in names:
        find_queue(client, name)  # a mistyped name fails before anything long begins
    rows = []
    wanted = names or client.queues()
    with cli.status("Counting…") as show:
        for number, name in enumerate(wanted, start=1):
            show(f"Counting, queue {number:,} of {len(wanted):,}…")
            try:
                rows.append(_one(client, name, exact=exact))
            except QueueNotFound:
                if names:
                    raise
    return rows


def _one(client: Client, name: str, *, exact: bool) -> dict[str, Any]:
    queue = client.queue(name)
    counted = asdict(queue.stats(exact=exact))
    oldest = counted.pop("oldest")
    state = "paused" if queue.paused else "active"
    return {"queue": name, "state": state, **counted, "oldest": oldest and oldest.isoformat()}


def _table(rows: list[dict[str, Any]]) -> Table:
    from datetime import datetime  # noqa: PLC0415 - not needed for --help

    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(box=None, pad_edge=False)
    table.add_column("queue", overflow="fold")
    table.add_column("state", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column.replace("_", " "), justify="right", no_wrap=True)
    table.add_column("oldest", no_wrap=True)
    for row in rows:
        counts = ("–" if row[column] is None else f"{row[column]:,}" for column in _COLUMNS)
        oldest = datetime.fromisoformat(row["oldest"]) if row["oldest"] else None
        table.add_row(row["queue"], row["state"], *counts, show_moment(oldest))
    return table
