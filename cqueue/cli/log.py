"""`cqueue log`: create, list, show, alter, delete and stats here; append, tail and scan beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli import log_append, log_read
from cqueue.cli.commands import command
from cqueue.cli.confirm import confirm
from cqueue.cli.context import CliContext
from cqueue.cli.opening import find_log, open_client, open_log, say_left_out, suggesting
from cqueue.cli.options import ExistOk, LogName, Yes, duration, given
from cqueue.cli.render import print_fields, print_rows
from cqueue.cli.values import parse_duration
from cqueue.config import to_ms
from cqueue.errors import BadInput, DamagedRow, LogNotFound
from cqueue.log.config import DEFAULT_TIME_SHARD, DEFAULT_TTL, LogConfig
from cqueue.runtime.durations import show_duration

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.log.log import Log

app = typer.Typer(help="Make, look at, write to, read and remove logs.", no_args_is_help=True)
command(app)(log_append.append)
command(app)(log_read.tail)
command(app)(log_read.scan)

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
    duration(
        "Width of a partition in time, 1s to 30d, dividing an hour or a multiple of one; fixed; "
        f"by default {show_duration(DEFAULT_TIME_SHARD)}."
    ),
]


@command(app)
def create(
    cli: CliContext,
    name: LogName,
    *,
    partitions: Partitions = None,
    ttl: Ttl = None,
    time_shard: TimeShard = None,
    exist_ok: ExistOk = False,
) -> None:
    """Make a log."""
    config = LogConfig(**_given(partitions=partitions, ttl=ttl, time_shard=time_shard))
    with open_client(cli) as client:
        log = client.create_log(name, config, exist_ok=exist_ok)
        cli.emit(log_fields(log), f"Log {name} is there; it keeps records {_how_long(log)}.")


@command(app, "list")
def list_logs(cli: CliContext) -> None:
    """List the logs and their configuration."""
    with open_client(cli) as client:
        rows = [row for name in client.logs() if (row := _described_if_there(client, name)) is not None]
        say_left_out(cli, client, "logs")
    if rows or cli.json:
        cli.emit(rows, lambda: print_rows(cli, rows, list(rows[0]), spare=("time shard",)))
    else:
        cli.remark("There is no log yet. `cqueue log create NAME` makes one.")


@command(app)
def show(cli: CliContext, name: LogName) -> None:
    """Show one log's configuration."""
    with open_log(cli, name) as log:
        _emit_one(cli, log)


@command(app)
def alter(cli: CliContext, name: LogName, *, partitions: NewPartitions = None, ttl: NewTtl = None) -> None:
    """Change a log while it is used. All clients follow within five seconds.

    A changed time to live holds for new records. With more partitions, keys go to other partitions
    from then on.
    """
    changes = _given(partitions=partitions, ttl=ttl)
    if not changes:
        raise BadInput("Nothing to change: give --partitions or --ttl.")
    with open_log(cli, name) as log:
        log.alter(**changes)
        _emit_one(cli, log)


@command(app)
def delete(cli: CliContext, name: LogName, *, yes: Yes = False) -> None:
    """Delete a log and all its records.

    If it is interrupted, the log can no longer be used; repeat the command to finish.
    """
    confirm(cli, f"Delete log {name} and all its records?", yes=yes)
    with open_client(cli) as client, cli.status("Deleting…"), suggesting("log", name, client.logs):
        client.delete_log(name)
    cli.emit({"log": name, "deleted": True}, f"Log {name} is deleted.")


@command(app)
def stats(cli: CliContext, name: LogName) -> None:
    """Show what a log holds: partitions, time shards, its oldest and newest record, and how fast it grows.

    Nothing counts records; the rate is that of the last minute, or of the last 1,000 records.
    """
    with open_log(cli, name) as log, cli.status("Looking…"):
        fields = {"log": name, **asdict(log.stats())}
    shown = {
        key: value.isoformat() if isinstance(value, datetime) else value for key, value in fields.items()
    }
    cli.emit(shown, lambda: print_fields(cli, fields))


def log_fields(log: Log) -> dict[str, Any]:
    """Return what --json shows of a log: durations in ms; a ttl of null is for ever."""
    config = log.config
    return {
        "log": log.name,
        "partitions": config.partitions,
        "ttl_ms": None if config.ttl is None else to_ms(config.ttl),
        "time_shard_ms": config.time_shard_ms,
    }


def _given(**options: Any) -> dict[str, Any]:
    """Return the settings that were given, "forever" as None."""
    return {name: None if value == FOR_EVER else value for name, value in given(**options).items()}


def _how_long(log: Log) -> str:
    ttl = log.config.ttl
    return "for ever" if ttl is None else f"for {show_duration(ttl)}"


def _described_if_there(client: Client, name: str) -> Mapping[str, Any] | None:
    try:
        return log_fields(find_log(client, name))
    except (LogNotFound, DamagedRow):  # since it was listed
        return None


def _emit_one(cli: CliContext, log: Log) -> None:
    shown = log_fields(log)
    cli.emit(shown, lambda: print_fields(cli, shown, fixed=("time_shard",)))
