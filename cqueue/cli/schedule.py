"""`cqueue schedule`: list, add, show, pause, resume, run-now, remove; while everything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.arguments import encoded
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.opening import find_queue, open_client, open_queue, say_left_out
from cqueue.cli.options import Headers, Priority, QueueName, TaskArgs, duration, given, moment
from cqueue.cli.render import print_fields
from cqueue.cli.table import print_table
from cqueue.cli.values import NONE, body_text, parse_headers, show_moment
from cqueue.config import to_ms
from cqueue.errors import BadInput, QueueNotFound
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.durations import show_duration

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dispatcher.schedules.schedules import Schedule, Schedules
    from cqueue.dispatcher.schedules.triggers import Trigger

app = typer.Typer(help="Make, look at, change and remove schedules.", no_args_is_help=True)

UPCOMING = 5

Key = Annotated[
    str, typer.Argument(metavar="KEY", help="The schedule's key in its queue.", show_default=False)
]


@contextmanager
def _schedules(cli: CliContext, queue: str) -> Iterator[Schedules]:
    with open_queue(cli, queue) as opened:
        yield opened.schedules


@command(app, "list")
def list_schedules(
    cli: CliContext,
    queue: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="Which queue; by default all.")
    ] = None,
) -> None:
    """List the schedules of a queue, or of all queues.

    One is an orphan if none of the processes that run handlers of the queue knows its task: it fires nothing
    until one does.
    """
    from cqueue.dispatcher.service.membership import is_orphan, listed  # noqa: PLC0415 - not for --help

    with open_client(cli) as client, cli.status("Looking…"):
        found = _all(client) if queue is None else find_queue(client, queue).schedules.list()
        workers, _ = listed(client)
        say_left_out(cli, client, "schedules")
    orphans = {(one.queue, one.key) for one in found if is_orphan(one.task, one.queue, workers)}
    if found or cli.json:
        shown = [{**schedule_fields(one), "orphan": (one.queue, one.key) in orphans} for one in found]
        cli.emit(shown, lambda: _print_all(cli, found, orphans=orphans, queues=queue is None))
        return
    whose, where = (f"Queue {queue} has", queue) if queue is not None else ("There is", "QUEUE")
    cli.remark(f"{whose} no schedule yet. `cqueue schedule add {where} KEY …` makes one.")


def _all(client: Client) -> list[Schedule]:
    """Return the schedules of all queues but dead-letter queues."""
    found: list[Schedule] = []
    for name in client.queues():
        if not name.endswith(DEAD_SUFFIX):
            with suppress(QueueNotFound):  # deleted since it was listed
                found += client.queue(name).schedules.list()
    return found


@command(app)
def add(
    cli: CliContext,
    queue: QueueName,
    key: Key,
    *,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION", help="When: 5 fields, or 6 with seconds first, such as '*/5 * * * *'."
        ),
    ] = None,
    every: Annotated[timedelta | None, duration("When: at this interval, 100ms or more.", "--every")] = None,
    at: Annotated[datetime | None, moment("When: once, at this time: ISO 8601 with a zone.", "--at")] = None,
    in_: Annotated[timedelta | None, duration("When: once, after this time.", "--in")] = None,
    timezone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Of --cron, such as Europe/Berlin; by default UTC.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(metavar="NAME", help="The task that the messages are for.")
    ] = None,
    body: Annotated[
        str | None, typer.Option(metavar="TEXT|-", help="The messages' body; - reads standard input.")
    ] = None,
    args: TaskArgs = None,
    header: Headers = None,
    priority: Priority = 0,
    count: Annotated[int | None, typer.Option(metavar="N", help="Stop after N firings.")] = None,
    until: Annotated[datetime | None, moment("Fire nothing after this time.", "--until")] = None,
    misfire: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="Which missed times to fire: latest (the default), all, or skip for none."
        ),
    ] = None,
    grace: Annotated[
        timedelta | None, duration("Skip a firing later than this; by default 10s with skip.", "--grace")
    ] = None,
    jitter: Annotated[
        timedelta | None, duration("Fire up to this much later, at random.", "--jitter")
    ] = None,
    auto_commit: Annotated[
        bool, typer.Option("--auto-commit", help="Send the next firing before the handler runs, not after.")
    ] = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if it exists with the same definition.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another definition; a paused one stays paused.")
    ] = False,
) -> None:
    """Make a schedule: give one of --cron, --every, --at and --in.

    It fires while a dispatcher serves the queue; nothing needs to be restarted.
    """
    shared = given(misfire=misfire, grace=grace, jitter=jitter, auto_commit=auto_commit or None)
    repeated = given(count=count, until=until)
    whens = {"--cron": cron, "--every": every, "--at": at, "--in": in_}
    chosen = [name for name, value in whens.items() if value is not None]
    if len(chosen) != 1:
        raise BadInput(f"Say when: one of {', '.join(whens)}; {', '.join(chosen) or 'none'} is given.")
    if timezone is not None and cron is None:
        raise BadInput("--timezone belongs to --cron; --at carries its own zone.")
    if repeated and cron is None and every is None:
        raise BadInput("--count and --until belong to --cron and --every.")
    trigger = _trigger(cron, every, at, in_, timezone, {**shared, **repeated})
    content, codec = _body(body, args, task)
    with _schedules(cli, queue) as schedules:
        schedule = schedules.add(
            key, trigger, content, task=task, codec=codec, headers=parse_headers(header or ()) or None,
            priority=priority, exist_ok=exist_ok, replace=replace,
        )  # fmt: skip
        _emit(cli, schedule, f"Schedule {key} is there; it fires at {_next(schedule)}.")


def _trigger(
    cron: str | None,
    every: timedelta | None,
    at: datetime | None,
    in_: timedelta | None,
    timezone: str | None,
    options: dict[str, Any],
) -> Trigger:
    from cqueue.dispatcher.schedules.triggers import Cron, Repeating, RunOnce  # noqa: PLC0415 - not for --help

    if cron is not None:
        return Cron(cron, timezone or "UTC", **options)
    if every is not None:
        return Repeating(every, **options)
    return RunOnce(in_, at, **options)


def _body(body: str | None, args: str | None, task: str | None) -> tuple[bytes, str | None]:
    """Return the body of the messages, and its codec."""
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


@command(app)
def show(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Show one schedule, and its next five times."""
    with _schedules(cli, queue) as schedules:
        _emit(cli, schedules.get(key))


@command(app)
def pause(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Let a schedule fire no more until `resume`. A firing that has begun goes on."""
    with _schedules(cli, queue) as schedules:
        _emit(cli, schedules.pause(key), f"Schedule {key} is paused.")


@command(app)
def resume(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Undo `pause`: it goes on with the next time from now."""
    with _schedules(cli, queue) as schedules:
        schedule = schedules.resume(key)
        _emit(cli, schedule, f"Schedule {key} is {schedule.state}; it fires at {_next(schedule)}.")


@command(app, "run-now")
def run_now(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Fire a schedule now, beside its own times, whatever its state. Prints the message's id."""
    with _schedules(cli, queue) as schedules:
        id_ = schedules.run_now(key)
    cli.emit({"queue": queue, "key": key, "id": id_}, id_)


@command(app)
def remove(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Remove a schedule. A firing that has begun runs to its end."""
    with _schedules(cli, queue) as schedules:
        schedules.remove(key)
    cli.emit({"queue": queue, "removed": key}, f"Schedule {key} is removed.")


def schedule_fields(schedule: Schedule, *, upcoming: int = 0) -> dict[str, Any]:
    """Return what --json shows of a schedule: times in ISO 8601, durations in ms."""
    body, encoding = body_text(schedule.body)
    fields: dict[str, Any] = {
        "queue": schedule.queue,
        "key": schedule.key,
        "state": schedule.state,
        "when": _when(schedule),
        "trigger": _trigger_fields(schedule),
        "task": schedule.task,
        "body": body,
        "encoding": encoding,
        "headers": dict(schedule.headers),
        "priority": schedule.priority,
        "next": _iso(schedule.next_at),
        "previous": _iso(schedule.previous),
        "fired": schedule.fired,
    }
    if upcoming:
        fields["upcoming"] = [_iso(time) for time in schedule.upcoming(upcoming)]
    return fields


def _when(schedule: Schedule) -> str:
    """Describe the trigger in a few words."""
    from cqueue.dispatcher.schedules.triggers import Cron, Repeating  # noqa: PLC0415 - not needed for --help

    match schedule.trigger:
        case Cron(expression=expression, timezone=timezone):
            return f"{expression} {timezone}"
        case Repeating(interval=interval):
            return f"every {show_duration(interval)}"
    return "once"


def _trigger_fields(schedule: Schedule) -> dict[str, Any]:
    from cqueue.dispatcher.schedules.triggers import given as given_values  # noqa: PLC0415 - not needed for --help

    values: dict[str, Any] = {"kind": type(schedule.trigger).__name__}
    for name, value in given_values(schedule.trigger).items():
        if isinstance(value, timedelta):
            values[f"{name}_ms"] = to_ms(value)
        else:
            values[name] = _iso(value) if isinstance(value, datetime) else value
    return values


def _print_all(
    cli: CliContext, schedules: list[Schedule], *, orphans: Container[tuple[str, str]], queues: bool
) -> None:
    """Print a table of schedules; one whose task no worker knows is marked as an orphan.

    queues: say which queue each is of.
    """
    columns: dict[str, Callable[[Schedule], str]] = {
        "queue": lambda one: one.queue,
        "key": lambda one: one.key,
        "state": lambda one: (
            "orphan" if one.state == "active" and (one.queue, one.key) in orphans else one.state
        ),
        "next": lambda one: show_moment(one.next_at),
        "when": _when,
        "task": lambda one: one.task or NONE,
        "previous": lambda one: show_moment(one.previous),
        "fired": lambda one: str(one.fired),
    }
    if not queues:
        del columns["queue"]
    rows = [[text(one) for text in columns.values()] for one in schedules]
    print_table(cli, list(columns), rows, right=("fired",), spare=("previous", "fired", "when"))


def _print_one(cli: CliContext, shown: dict[str, Any]) -> None:
    fields = {name: value for name, value in shown.items() if name != "encoding"}
    print_fields(cli, {**fields, "upcoming": shown.get("upcoming", [])})


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _emit(cli: CliContext, schedule: Schedule, text: str | None = None) -> None:
    shown = schedule_fields(schedule, upcoming=UPCOMING)
    cli.emit(shown, text or (lambda: _print_one(cli, shown)))


def _next(schedule: Schedule) -> str:
    return "no time any more" if schedule.next_at is None else schedule.next_at.isoformat()
