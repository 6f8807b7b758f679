"""`cqueue log`: create, list, show, alter, delete, stats and append here; tail and scan beside it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli import log_read
from cqueue.cli.bodies import check_source, open_source, read_body
from cqueue.cli.commands import command
from cqueue.cli.confirm import Yes, confirm
from cqueue.cli.context import CliContext
from cqueue.cli.failures import worst
from cqueue.cli.interrupts import going_on, told_of_interrupt
from cqueue.cli.opening import audited, check_deletable, find_log, open_client, open_log, say_left_out
from cqueue.cli.options import BodyFile, ExistOk, Headers, LogName, given
from cqueue.cli.render import columns_of, emit_one, in_ms, print_list
from cqueue.cli.send_lines import Target, send_each
from cqueue.cli.values import parse_duration, parse_pairs
from cqueue.config import with_other_settings
from cqueue.errors import AppendUnknown, BadInput, DamagedRow, LogExists, LogNotFound
from cqueue.log.config import DEFAULT_TIME_SHARD, DEFAULT_TTL, LogConfig
from cqueue.log.records import Record
from cqueue.runtime.durations import show_duration

if TYPE_CHECKING:
    from cqueue.log.log import Log

app = typer.Typer(help="Make, look at, write to, read and remove logs.", no_args_is_help=True)
command(app)(log_read.tail)
command(app)(log_read.scan)

FOR_EVER = "forever"


def parse_ttl(text: str) -> timedelta | str:
    """A duration, or `forever`.

    Raises:
        BadParameter: neither.
    """
    return FOR_EVER if text.strip().lower() == FOR_EVER else parse_duration(text)


@dataclass(frozen=True, slots=True)
class Changeable:
    """The settings that `alter` can change."""

    partitions: Annotated[
        int | None,
        f"1 to 32,767, only ever more; at first {LogConfig().partitions}; kept if not given.",
    ] = None
    ttl: Annotated[
        timedelta | None,
        parse_ttl,
        f"How long records are kept, 1m to 3650d, or {FOR_EVER}; at first {show_duration(DEFAULT_TTL)}; "
        "kept if not given.",
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the settings that were given, "forever" as None."""
        changes = given(partitions=self.partitions, ttl=self.ttl)
        return {name: None if value == FOR_EVER else value for name, value in changes.items()}


@command(app)
def create(
    cli: CliContext,
    name: LogName,
    settings: Changeable,
    *,
    time_shard: Annotated[
        timedelta | None,
        "Width of a partition in time, 1s to 30d, dividing an hour or a multiple of one; fixed; "
        f"by default {show_duration(DEFAULT_TIME_SHARD)}.",
    ] = None,
    exist_ok: ExistOk = False,
) -> None:
    """Make a log."""
    options = settings.given() | given(time_shard=time_shard)
    with open_client(cli) as client:
        log = client.create_log(name, LogConfig(**options) if options else None, exist_ok=exist_ok)
        if differ := with_other_settings(log.config, options):  # an option may give a default
            raise LogExists(f"log {name!r} exists {differ}")
        ttl = log.config.ttl
        how_long = "for ever" if ttl is None else f"for {show_duration(ttl)}"
        cli.emit(log_fields(log), f"Log {name} is there; it keeps records {how_long}.")


@command(app, "list")
def list_logs(cli: CliContext) -> None:
    """List the logs and their configuration."""
    rows = []
    with open_client(cli) as client:
        for name in client.logs():
            with suppress(LogNotFound, DamagedRow):  # since it was listed
                rows.append(log_fields(client.log(name)))
        say_left_out(cli, client, "logs")
    columns = columns_of("log", "partitions", "ttl_ms", "time_shard_ms")
    none = "There is no log yet. `cqueue log create NAME` makes one."
    print_list(cli, rows, dict, columns, none=none, spare=("time shard",))


@command(app)
def show(cli: CliContext, name: LogName) -> None:
    """Show one log's configuration."""
    with open_log(cli, name) as log:
        emit_one(cli, log_fields(log), fixed=("time_shard",))


@command(app)
def alter(cli: CliContext, name: LogName, settings: Changeable) -> None:
    """Change a log while it is used; what is not given stays. All clients follow within five seconds.

    A changed time to live holds for new records. With more partitions, keys go to other partitions
    from then on.
    """
    changes = settings.given()
    if not changes:
        raise BadInput("Nothing to change: give --partitions or --ttl.")
    with open_client(cli) as client:
        log = find_log(client, name)
        with audited(cli, client, "alter_log", log=name, changes=in_ms(changes)):
            log.alter(**changes)
        emit_one(cli, log_fields(log), fixed=("time_shard",))


@command(app)
def delete(cli: CliContext, name: LogName, *, yes: Yes = False) -> None:
    """Delete a log and all its records.

    If it is interrupted, the log can no longer be used; repeat the command to finish.
    """
    with open_client(cli) as client:
        check_deletable(client, "log", name)
        confirm(cli, f"Delete log {name} and all its records?", yes=yes)
        with going_on(cli), cli.status("Deleting…"), audited(cli, client, "delete_log", log=name):
            client.delete_log(name)
    cli.emit({"log": name, "deleted": True}, f"Log {name} is deleted.")


@command(app)
def stats(cli: CliContext, name: LogName) -> None:
    """Show what a log holds: partitions, time shards, its oldest and newest record, and how fast it grows.

    Nothing counts records; the rate is that of the last minute, or of the last 1,000 records.
    """
    with open_log(cli, name) as log, cli.status("Looking…"):
        fields = {"log": name, **asdict(log.stats())}
    emit_one(cli, fields, {"per_second": round(fields["per_second"], 3)})


@command(app)
def append(
    cli: CliContext,
    name: LogName,
    topic: Annotated[str, "TOPIC", "The topic."],
    body: Annotated[
        list[str] | None, "BODY|-", "Bodies as text, a record each; - reads standard input."
    ] = None,
    *,
    key: Annotated[str | None, "TEXT", "Records of one key go to one partition, in order."] = None,
    partition: Annotated[int | None, "Go to this partition, whatever the key."] = None,
    header: Headers = None,
    file: BodyFile = None,
    lines: Annotated[bool, "Each line of standard input (or of --file) is a record."] = False,
) -> None:
    """Append records; done once Cassandra has acknowledged them.

    Prints the id of each, or with --lines how many were appended. Ctrl-C lets the batch under way end
    and says how many lines are appended, so that the rest can be appended later.
    """
    bodies = list(body or ())
    if len(bodies) > 1 and "-" in bodies:
        raise BadInput("- is all of standard input: it stands alone.")
    check_source(bodies[0] if bodies else None, file, lines=lines, verb="append")
    headers = parse_pairs(header)

    def records(contents: list[bytes]) -> list[Record]:
        return [Record(topic, content, key, partition, headers) for content in contents]

    if lines:
        with open_source(file) as source, open_log(cli, name) as log:
            target = Target(
                "log", name, "record", "appended", lambda some: log.append_many(records(some)).failed
            )
            send_each(cli, target, source)
        return
    contents = [read_body(text, None) for text in bodies] or [read_body(None, file)]
    doubt = f"The records may be appended or not; `cqueue log scan {name}` shows what is there."
    with open_log(cli, name) as log, told_of_interrupt(cli, doubt):
        result = log.append_many(records(contents))
    for id_ in result.ids:
        if id_ is not None:
            cli.emit({"log": name, "topic": topic, "partition": id_.locate()[1], "id": id_}, str(id_))
    errors = [error for _, error in result.failed]
    if unknown := [error for error in errors if isinstance(error, AppendUnknown)]:
        raise AppendUnknown(str(unknown[0]), [id_ for error in unknown for id_ in error.ids]) from unknown[0]
    if errors:
        raise worst(errors)


def log_fields(log: Log) -> dict[str, Any]:
    """Return what --json shows of a log: durations in ms; a ttl of null is for ever."""
    return {"log": log.name, **in_ms(asdict(log.config))}
