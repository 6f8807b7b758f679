"""`cqueue quarantine`: rows that cannot be read: list them, look at one, drop them."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.confirm import Yes, confirm
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.interrupts import accounted
from cqueue.cli.opening import audited, find_log, find_queue, open_client
from cqueue.cli.options import each_once
from cqueue.cli.values import counted
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cqueue.client import Client
    from cqueue.store.quarantine import Damage

app = typer.Typer(help="List, show and drop rows that cannot be read.", no_args_is_help=True)

Address = Annotated[str, "ADDRESS", "A row, as `quarantine list` names it."]


@command(app, "list")
def list_damaged(
    cli: CliContext,
    names: Annotated[list[str] | None, "QUEUE", "Which queues; by default all."] = None,
    *,
    log: Annotated[list[str] | None, "LOG", "Read the records of this log instead."] = None,
) -> None:
    """List the rows that cannot be read, with their addresses and what is wrong with them.

    Every message of the queues is read, bodies as well, so it takes long where there are many. Without
    names the small tables are read too: queues, logs, schedules, subscriptions, workers. Keys, reservations
    and results are not: the call or the log line that meets a damaged one names it. Exits with 1 if there
    are any.
    """
    from cqueue.store.quarantine import REMEMBERED  # noqa: PLC0415 - keeps `--help` quick

    with open_client(cli) as client, cli.status("Reading…") as show:
        looks = list(_looks(client, each_once(names), each_once(log), show))
    found = list(dict.fromkeys(chain.from_iterable(looks)))
    if found or cli.json:
        # Each address is alone on its line, so that it can be copied.
        lines = [f"{damage.address}\n  {damage.reason}" for damage in found]
        cli.emit([_described(damage) for damage in found], "\n".join(lines))
    if any(len(look) >= REMEMBERED for look in looks):
        cli.remark(f"There may be more: {REMEMBERED:,} are remembered at a time, those that were read last.")
    if found:
        raise typer.Exit(ExitCode.CHECK_FAILED)
    cli.remark("No row is damaged.")


def _looks(client: Client, names: list[str], logs: list[str], show: Any) -> Iterator[list[Damage]]:
    """Yield the damaged rows of the small tables, and of each queue or log; some of them twice."""
    from cqueue import quarantine  # noqa: PLC0415 - as above

    for name in names:
        find_queue(client, name)  # a mistyped name fails before anything long begins
    if not (names or logs):
        yield quarantine.look(client)
    for name in names or ([] if logs else client.queues()):
        show(f"Reading queue {name}…")
        yield quarantine.look_at_queue(client, name)
    for name in logs:
        find_log(client, name)
        show(f"Reading log {name}…")
        yield quarantine.look_at_log(client, name)


def _described(damage: Damage) -> dict[str, Any]:
    return {"address": damage.address, "table": damage.table, "owner": damage.owner, "reason": damage.reason}


@command(app)
def dump(cli: CliContext, address: Address) -> None:
    """Print all that stands in a row, as JSON; blobs, such as bodies, in hexadecimal."""
    from cqueue import quarantine  # noqa: PLC0415 - as above

    with open_client(cli) as client:
        row = quarantine.dump(client, address)
    if row is None:
        raise BadInput(f"There is no row at {address}.")
    cli.emit(row, lambda: json.dumps(row, indent=2, ensure_ascii=False))


@command(app)
def drop(
    cli: CliContext,
    addresses: Annotated[list[str], "ADDRESS", "Rows, as `list` names them."],
    *,
    yes: Yes = False,
) -> None:
    """Delete rows that cannot be read; a row that can be read stays.

    With the row of a message its messages are gone for good: `dump` shows them before. A timeout slot gives
    back the messages that it lists; they are delivered again.
    """
    from cqueue import quarantine  # noqa: PLC0415 - as above

    with open_client(cli) as client:
        found = [quarantine.find(client, address) for address in each_once(addresses)]
        confirm(cli, f"Drop {counted(len(found), 'row')} for good?", yes=yes)
        dropped: list[Damage] = []
        with (
            accounted(cli, lambda: f"{len(dropped)} of {counted(len(found), 'row')} are dropped."),
            audited(cli, client, "drop_rows", rows=[damage.address for damage in found[:100]]) as more,
        ):
            for damage in found:
                quarantine.drop(client, damage)
                dropped.append(damage)
                more["dropped"] = len(dropped)
    cli.emit([_described(damage) for damage in found], f"Dropped {counted(len(found), 'row')}.")
