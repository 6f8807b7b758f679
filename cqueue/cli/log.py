"""`cqueue log`: create, list, show, alter, delete and stats here; append, tail and scan beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli import log_append, log_read
from cqueue.cli.confirm import confirm
from cqueue.cli.context import CliContext
from cqueue.cli.log_view import described, print_log, print_logs
from cqueue.cli.opening import find_log, log_not_found, open_client, open_log, say_left_out
from cqueue.cli.options import Json, LogName, Yes
from cqueue.cli.values import parse_duration
from cqueue.durations import show_duration
from cqueue.errors import BadInput, DamagedRow, LogNotFound
from cqueue.log.config import DEFAULT_TIME_SHARD, DEFAULT_TTL, LogConfig

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.log.log import Log

app = typer.Typer(help="Make, look at, write to, read and remove logs.", no_args_is_help=True)
app.command("append")(log_append.append)
app.command("tail")(log_read.tail)
app.command("scan")(log_read.scan)

FOR_EVER = "forever"


def parse_ttl(text: str) -> timedelta | str:
    """A duration, or `forever`.

    Raises:
        BadParameter: neither.
    """
    return FOR_EVER if text.strip().lower() == FOR_EVER else parse_duration(text)


def _partitions(otherwise: str) -> Any:
    return typer.Option(metavar="N", help=f"1 to 32,767, only ever more; {otherwise}.", show_default=False)


def _ttl(otherwise: str) -> Any:
    return typer.Option(
        metavar="DURATION",
        parser=parse_ttl,
        help=f"How long records are kept, 1m to 3650d, or {FOR_EVER}; {otherwise}.",
        show_default=False,
    )


KEPT = "kept if not given"
Partitions = Annotated[int | None, _partitions(f"by default {LogConfig().partitions}")]
Ttl = Annotated[timedelta | None, _ttl(f"by default {show_duration(DEFAULT_TTL)}")]
NewPartitions = Annotated[int | None, _partitions(KEPT)]
NewTtl = Annotated[timedelta | None, _ttl(KEPT)]
TimeShard = Annotated[
    timedelta | None,
    typer.Option(
        metavar="DURATION",
        parser=parse_duration,
        help="Width of a partition in time, 1s to 30d, dividing an hour or a multiple of one; fixed; "
        f"by default {show_duration(DEFAULT_TIME_SHARD)}.",
        show_default=False,
    ),
]


@app.command()
def create(
    ctx: typer.Context,
    name: LogName,
    *,
    partitions: Partitions = None,
    ttl: Ttl = None,
    time_shard: TimeShard = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if it exists with the same configuration.")
    ] = False,
    _json: Json = False,
) -> None:
    """Make a log."""
    config = LogConfig(**_given(partitions=partitions, ttl=ttl, time_shard=time_shard))
    cli: CliContext = ctx.obj
    with open_client(cli) as client:
        log = client.create_log(name, config, exist_ok=exist_ok)
        cli.emit(described(log), f"Log {name} is there; it keeps records {_how_long(log)}.")


@app.command("list")
def list_logs(ctx: typer.Context, *, _json: Json = False) -> None:
    """List the logs and their configuration."""
    cli: CliContext = ctx.obj
    with open_client(cli) as client:
        rows = [row for name in client.logs() if (row := _described_if_there(client, name)) is not None]
        say_left_out(cli, client, "logs")
    if rows or cli.json:
        cli.emit(rows, lambda: print_logs(cli, rows))
    else:
        cli.remark("There is no log yet. `cqueue log create NAME` makes one.")


@app.command()
def show(ctx: typer.Context, name: LogName, *, _json: Json = False) -> None:
    """Show one log's configuration."""
    cli: CliContext = ctx.obj
    with open_log(cli, name) as log:
        _emit_one(cli, log)


@app.command()
def alter(
    ctx: typer.Context,
    name: LogName,
    *,
    partitions: NewPartitions = None,
    ttl: NewTtl = None,
    _json: Json = False,
) -> None:
    """Change a log while it is used. All clients follow within five seconds.

    A changed time to live holds for new records. With more partitions, keys go to other partitions
    from then on.
    """
    changes = _given(partitions=partitions, ttl=ttl)
    if not changes:
        raise BadInput("Nothing to change: give --partitions or --ttl.")
    cli: CliContext = ctx.obj
    with open_log(cli, name) as log:
        log.alter(**changes)
        _emit_one(cli, log)


@app.command()
def delete(ctx: typer.Context, name: LogName, *, yes: Yes = False, _json: Json = False) -> None:
    """Delete a log and all its records.

    If it is interrupted, the log can no longer be used; repeat the command to finish.
    """
    cli: CliContext = ctx.obj
    confirm(cli, f"Delete log {name} and all its records?", yes=yes)
    with open_client(cli) as client, cli.status("Deleting…"):
        try:
            client.delete_log(name)
        except LogNotFound as exc:
            raise log_not_found(client, name) from exc
    cli.emit({"log": name, "deleted": True}, f"Log {name} is deleted.")


@app.command()
def stats(ctx: typer.Context, name: LogName, *, _json: Json = False) -> None:
    """Show what a log holds: partitions, time shards, its oldest and newest record, and how fast it grows.

    Nothing counts records; the rate is that of the last minute, or of the last 1,000 records.
    """
    cli: CliContext = ctx.obj
    with open_log(cli, name) as log, cli.status("Looking…"):
        fields = {"log": name, **asdict(log.stats())}
    shown = {
        key: value.isoformat() if isinstance(value, datetime) else value for key, value in fields.items()
    }
    cli.emit(shown, lambda: print_log(cli, fields))


def _given(**options: Any) -> dict[str, Any]:
    """Settings that were given, "forever" as None."""
    return {
        name: None if value == FOR_EVER else value for name, value in options.items() if value is not None
    }


def _how_long(log: Log) -> str:
    ttl = log.config.ttl
    return "for ever" if ttl is None else f"for {show_duration(ttl)}"


def _described_if_there(client: Client, name: str) -> Mapping[str, Any] | None:
    try:
        return described(find_log(client, name))
    except (LogNotFound, DamagedRow):  # since it was listed
        return None


def _emit_one(cli: CliContext, log: Log) -> None:
    description = described(log)
    cli.emit(description, lambda: print_log(cli, description))
