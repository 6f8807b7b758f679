"""`cqueue schedule`: list, add, show, pause, resume, run-now, remove; while everything runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.arguments import encoded
from cqueue.cli.context import CliContext
from cqueue.cli.opening import find_queue, open_client, open_queue, say_left_out
from cqueue.cli.options import Json, QueueName
from cqueue.cli.schedule_view import UPCOMING, described, print_schedule, print_schedules
from cqueue.cli.values import parse_duration, parse_headers, parse_moment
from cqueue.errors import BadInput, QueueNotFound
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dispatcher.schedules import Schedule, Schedules
    from cqueue.dispatcher.triggers import Trigger

app = typer.Typer(help="Make, look at, change and remove schedules.", no_args_is_help=True)

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="The schedule's key in its queue.", show_default=False)
]


def _duration(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, metavar="DURATION", parser=parse_duration, show_default=False)


def _moment(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, metavar="TIME", parser=parse_moment, show_default=False)


@contextmanager
def _schedules(ctx: typer.Context, queue: str) -> Iterator[Schedules]:
    with open_queue(ctx.obj, queue) as opened:
        yield opened.schedules


@app.command("list")
def list_schedules(
    ctx: typer.Context,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="Which queue; by default all.")
    ] = None,
    *,
    _json: Json = False,
) -> None:
    """List the schedules of a queue, or of all queues.

    One is an orphan if none of the processes that run handlers of the queue knows its task: it fires nothing
    until one does.
    """
    from cqueue.dispatcher.members import is_orphan, listed  # noqa: PLC0415 - not for --help

    cli: CliContext = ctx.obj
    with open_client(cli) as client, cli.status("Looking…"):
        found = _all(client) if queue is None else find_queue(client, queue).schedules.list()
        workers, _ = listed(client)
        say_left_out(cli, client, "schedules")
    orphans = {(one.queue, one.key) for one in found if is_orphan(one.task, one.queue, workers)}
    if found or cli.json:
        shown = [{**described(one), "orphan": (one.queue, one.key) in orphans} for one in found]
        cli.emit(shown, lambda: print_schedules(cli, found, orphans=orphans, queues=queue is None))
        return
    whose, where = (f"Queue {queue} has", queue) if queue is not None else ("There is", "QUEUE")
    cli.remark(f"{whose} no schedule yet. `cqueue schedule add {where} KEY …` makes one.")


def _all(client: Client) -> list[Schedule]:
    """Those of all queues."""
    found: list[Schedule] = []
    for name in client.queues():
        if not name.endswith(DEAD_SUFFIX):
            with suppress(QueueNotFound):  # deleted since it was listed
                found += client.queue(name).schedules.list()
    return found


@app.command()
def add(
    ctx: typer.Context,
    queue: QueueName,
    key: Key,
    *,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION", help="When: 5 fields, or 6 with seconds first, such as '*/5 * * * *'."
        ),
    ] = None,
    every: Annotated[timedelta | None, _duration("When: at this interval, 100ms or more.", "--every")] = None,
    at: Annotated[datetime | None, _moment("When: once, at this time: ISO 8601 with a zone.", "--at")] = None,
    in_: Annotated[timedelta | None, _duration("When: once, after this time.", "--in")] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Of --cron, such as Europe/Berlin; by default UTC.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="The task that the messages are for.")
    ] = None,
    body: Annotated[
        str | None, typer.Option(metavar="TEXT|-", help="The messages' body; - reads standard input.")
    ] = None,
    args: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The task's arguments: an array, or an object of them by name."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    priority: Annotated[int, typer.Option(metavar="N", help="0 (most urgent, the default) to 9.")] = 0,
    count: Annotated[int | None, typer.Option(metavar="N", help="Stop after N firings.")] = None,
    until: Annotated[datetime | None, _moment("Fire nothing after this time.", "--until")] = None,
    misfire: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Which missed times to fire: latest (the default), all, or skip for none.",
        ),
    ] = None,
    grace: Annotated[
        timedelta | None,
        _duration("Skip a firing later than this; by default 10s with skip.", "--grace"),
    ] = None,
    jitter: Annotated[
        timedelta | None, _duration("Fire up to this much later, at random.", "--jitter")
    ] = None,
    auto_commit: Annotated[
        bool, typer.Option("--auto-commit", help="Send the next firing before the handler runs, not after.")
    ] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if it exists with the same definition.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace another definition; a paused one stays paused."),
    ] = False,
    _json: Json = False,
) -> None:
    """Make a schedule: give one of --cron, --every, --at and --in.

    It fires while a dispatcher serves the queue; nothing needs to be restarted.
    """
    shared = _given(misfire=misfire, grace=grace, jitter=jitter, auto_commit=auto_commit or None)
    repeated = _given(count=count, until=until)
    whens = {"--cron": cron, "--every": every, "--at": at, "--in": in_}
    given = [name for name, value in whens.items() if value is not None]
    if len(given) != 1:
        raise BadInput(f"Say when: one of {', '.join(whens)}; {', '.join(given) or 'none'} is given.")
    if timezone is not None and cron is None:
        raise BadInput("--timezone belongs to --cron; --at carries its own zone.")
    if repeated and cron is None and every is None:
        raise BadInput("--count and --until belong to --cron and --every.")
    trigger = _trigger(cron, every, at, in_, timezone, {**shared, **repeated})
    content, codec = _body(body, args, task)
    with _schedules(ctx, queue) as schedules:
        schedule = schedules.add(
            key, trigger, content, task=task, codec=codec, headers=parse_headers(header or ()) or None,
            priority=priority, exist_ok=exist_ok, replace=replace,
        )  # fmt: skip
        _emit(ctx, schedule, f"Schedule {key} is there; it fires at {_next(schedule)}.")


def _trigger(
    cron: str | None,
    every: timedelta | None,
    at: datetime | None,
    in_: timedelta | None,
    timezone: str | None,
    options: dict[str, Any],
) -> Trigger:
    from cqueue.dispatcher.triggers import Cron, Repeating, RunOnce  # noqa: PLC0415 - not for --help

    if cron is not None:
        return Cron(cron, timezone or "UTC", **options)
    if every is not None:
        return Repeating(every, **options)
    return RunOnce(in_, at, **options)


def _body(body: str | None, args: str | None, task: str | None) -> tuple[bytes, str | None]:
    """The body and its codec."""
    if args is None:
        if body == "-":
            return sys.stdin.buffer.read(), None
        if task is not None and body is None:
            return encoded(None)
        return (body or "").encode("utf-8", "surrogateescape"), None
    if body is not None:
        raise BadInput("Give --body or --args, not both.")
    if task is None:
        raise BadInput("--args are those of a task: give --task as well.")
    return encoded(args)


@app.command()
def show(ctx: typer.Context, queue: QueueName, key: Key, *, _json: Json = False) -> None:
    """Show one schedule, and its next five times."""
    with _schedules(ctx, queue) as schedules:
        _emit(ctx, schedules.get(key))


@app.command()
def pause(ctx: typer.Context, queue: QueueName, key: Key, *, _json: Json = False) -> None:
    """Let a schedule fire no more until `resume`. A firing that has begun goes on."""
    with _schedules(ctx, queue) as schedules:
        _emit(ctx, schedules.pause(key), f"Schedule {key} is paused.")


@app.command()
def resume(ctx: typer.Context, queue: QueueName, key: Key, *, _json: Json = False) -> None:
    """Undo `pause`: it goes on with the next time from now."""
    with _schedules(ctx, queue) as schedules:
        schedule = schedules.resume(key)
        _emit(ctx, schedule, f"Schedule {key} is {schedule.state}; it fires at {_next(schedule)}.")


@app.command("run-now")
def run_now(ctx: typer.Context, queue: QueueName, key: Key, *, _json: Json = False) -> None:
    """Fire a schedule now, beside its own times, whatever its state. Prints the message's id."""
    cli: CliContext = ctx.obj
    with _schedules(ctx, queue) as schedules:
        id_ = schedules.run_now(key)
    cli.emit({"queue": queue, "key": key, "id": id_}, id_)


@app.command()
def remove(ctx: typer.Context, queue: QueueName, key: Key, *, _json: Json = False) -> None:
    """Remove a schedule. A firing that has begun runs to its end."""
    cli: CliContext = ctx.obj
    with _schedules(ctx, queue) as schedules:
        schedules.remove(key)
    cli.emit({"queue": queue, "removed": key}, f"Schedule {key} is removed.")


def _emit(ctx: typer.Context, schedule: Schedule, text: str | None = None) -> None:
    cli: CliContext = ctx.obj
    description = described(schedule, upcoming=UPCOMING)
    cli.emit(description, text or (lambda: print_schedule(cli, description)))


def _next(schedule: Schedule) -> str:
    return "no time any more" if schedule.next_at is None else schedule.next_at.isoformat()


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
