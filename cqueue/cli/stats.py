"""`cqueue stats`: what queues hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.opening import NO_QUEUE, find_queue, open_client, say_left_out
from cqueue.cli.options import each_once
from cqueue.cli.render import columns_of, print_list
from cqueue.cli.values import NONE
from cqueue.errors import QueueNotFound
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.durations import show_age

if TYPE_CHECKING:
    from cqueue.client import Client

app = typer.Typer()

_COLUMNS = ("ready", "delayed", "claimed", "waiting", "dead")
_EXACT_COLUMNS = (*_COLUMNS, "live", "wide_rows")


@command(app)
def stats(
    cli: CliContext,
    names: Annotated[
        list[str] | None, "QUEUE", "Which queues; by default all but dead-letter queues."
    ] = None,
    *,
    exact: Annotated[bool, "Count every message: reads every id, so it takes long if many."] = False,
) -> None:
    """Show what queues hold: ready, delayed, claimed by consumers, waiting to be delivered again, dead.

    Without --exact these are estimates, marked by ~. They count the first 10,000 messages of a queue or so
    (10,000+), miss those that landed late, and take messages acked a moment ago for claimed ones.
    """
    with open_client(cli) as client:
        rows = _all(cli, client, each_once(names), exact=exact)
        say_left_out(cli, client, "messages")
    counts = _EXACT_COLUMNS if exact else _COLUMNS
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        **columns_of("queue", "state"),
        **{name.replace("_", " "): partial(_figure, name=name) for name in counts},
        "oldest": _age,
    }
    usual = (("waiting", 0), ("state", "active"))
    plain = [name for name, value in usual if all(row[name] == value for row in rows)]
    spare = ("wide rows", "live", *plain)
    print_list(cli, rows, dict, columns, none=NO_QUEUE, right=list(columns)[2:], spare=spare)
    if rows and not exact:
        cli.remark("~ marks estimates; --exact counts every message.")


def _all(cli: CliContext, client: Client, names: list[str], *, exact: bool) -> list[dict[str, Any]]:
    for name in names:
        find_queue(client, name)  # a mistyped name fails before anything long begins
    rows = []
    wanted = names or [name for name in client.queues() if not name.endswith(DEAD_SUFFIX)]
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
    found = queue.stats(exact=exact)
    age_s = None if found.oldest is None else max(0.0, (queue.now - found.oldest).total_seconds())
    return {
        "queue": name,
        "state": "paused" if queue.paused else "active",
        **asdict(found),
        "oldest_age_s": None if age_s is None else round(age_s, 1),
        "at_least": sorted(found.at_least),
    }


def _figure(row: dict[str, Any], name: str) -> str:
    """Show a count: `1,200` if exact, `~1,200` if estimated, `10,000+` if it is a lower bound."""
    if row[name] is None:
        return NONE
    if name in row["at_least"]:
        return f"{row[name]:,}+"
    return f"{'' if row['exact'] else '~'}{row[name]:,}"


def _age(row: dict[str, Any]) -> str:
    """Show how long the oldest message that a consumer may claim has been due."""
    return NONE if row["oldest_age_s"] is None else show_age(row["oldest_age_s"])
