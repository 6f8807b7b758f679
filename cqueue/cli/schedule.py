"""`cqueue schedule`: list, add, show, pause, resume, run-now, remove; while everything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.bodies import encoded, read_body
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.opening import audited, find_queue, open_client, open_queue, say_left_out
from cqueue.cli.options import Headers, Priority, QueueName, TaskArgs, given
from cqueue.cli.render import emit_one, in_ms, print_list
from cqueue.cli.values import body_text, parse_pairs, show_moment
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from cqueue.dispatcher.schedules.schedules import Schedule, Schedules
    from cqueue.dispatcher.schedules.triggers import Trigger

app = typer.Typer(help="Make, look at, change and remove schedules.", no_args_is_help=True)

UPCOMING = 5

Key = Annotated[str, "KEY", "The schedule's key in its queue."]


@command(app, "list")
def list_schedules(
    cli: CliContext, queue: Annotated[str | None, "QUEUE", "Which queue; by default all."] = None
) -> None:
    """List the schedules of a queue, or of all queues.

    One is an orphan if none of the processes that run handlers of the queue knows its task: it fires nothing
    until one does. One is overdue if its next time has passed by more than 15 s.
    """
    from cqueue.dispatcher.schedules.schedules import list_all  # noqa: PLC0415 - not for --help
    from cqueue.dispatcher.schedules.triggers import described  # noqa: PLC0415 - as above
    from cqueue.dispatcher.service.membership import is_orphan, listed  # noqa: PLC0415 - as above

    with open_client(cli) as client, cli.status("Looking…"):
        found = list_all(client) if queue is None else find_queue(client, queue).schedules.list()
        workers, _ = listed(client)
        say_left_out(cli, client, "schedules")

    def orphan(one: Schedule) -> bool:
        return is_orphan(one.task, one.queue, workers)

    def state(one: Schedule) -> str:
        return "orphan" if one.state == "active" and orphan(one) else "overdue" if one.overdue else one.state

    columns: dict[str, Callable[[Schedule], Any]] = {
        **({"queue": attrgetter("queue")} if queue is None else {}),
        "key": attrgetter("key"),
        "state": state,
        "next": attrgetter("next_at"),
        "when": lambda one: described(one.trigger),
        "task": attrgetter("task"),
        "previous": attrgetter("previous"),
        "fired": attrgetter("fired"),
    }
    whose, where = (f"Queue {queue} has", queue) if queue is not None else ("There is", "QUEUE")
    none = f"{whose} no schedule yet. `cqueue schedule add {where} KEY …` makes one."
    print_list(
        cli,
        found,
        lambda one: {**schedule_fields(one), "orphan": orphan(one)},
        columns,
        none=none,
        spare=("previous", "fired", "when"),
    )


@command(app)
def add(
    cli: CliContext,
    queue: QueueName,
    key: Key,
    *,
    cron: Annotated[
        str | None, "EXPRESSION", "When: 5 fields, or 6 with seconds first, such as '*/5 * * * *'."
    ] = None,
    every: Annotated[timedelta | None, "When: at this interval, 100ms or more."] = None,
    at: Annotated[datetime | None, "When: once, at this time: ISO 8601 with a zone."] = None,
    in_: Annotated[timedelta | None, "When: once, after this time."] = None,
    timezone: Annotated[str | None, "ZONE", "Of --cron, such as Europe/Berlin; by default UTC."] = None,
    task: Annotated[str | None, "NAME", "The task that the messages are for."] = None,
    body: Annotated[str | None, "TEXT|-", "The messages' body; - reads standard input."] = None,
    args: TaskArgs = None,
    header: Headers = None,
    priority: Priority = 0,
    count: Annotated[int | None, "Stop after N firings."] = None,
    until: Annotated[datetime | None, "Fire nothing after this time."] = None,
    misfire: Annotated[
        str | None, "POLICY", "Which missed times to fire: latest (the default), all, or skip for none."
    ] = None,
    grace: Annotated[timedelta | None, "Skip a firing later than this; by default 10s with skip."] = None,
    jitter: Annotated[timedelta | None, "Fire up to this much later, at random."] = None,
    auto_commit: Annotated[bool, "Send the next firing before the handler runs, not after."] = False,
    exist_ok: Annotated[bool, "Succeed if it exists with the same definition."] = False,
    replace: Annotated[bool, "Replace another definition; a paused one stays paused."] = False,
) -> None:
    """Make a schedule: give one of --cron, --every, --at and --in.

    It fires while a dispatcher serves the queue; nothing needs to be restarted.
    """
    from cqueue.dispatcher.schedules.triggers import Cron, Repeating, RunOnce  # noqa: PLC0415 - not for --help

    shared = given(misfire=misfire, grace=grace, jitter=jitter, auto_commit=auto_commit or None)
    repeated = given(count=count, until=until)
    whens = {"--cron": cron, "--every": every, "--at": at, "--in": in_}
    chosen = [name for name, value in whens.items() if value is not None]
    if len(chosen) != 1:
        raise BadInput(f"Say when: one of {', '.join(whens)}; {', '.join(chosen) or 'none of them'} given.")
    if timezone is not None and cron is None:
        raise BadInput("--timezone belongs to --cron; --at carries its own zone.")
    if repeated and cron is None and every is None:
        raise BadInput("--count and --until belong to --cron and --every.")
    trigger: Trigger
    if cron is not None:
        trigger = Cron(cron, timezone or "UTC", **shared, **repeated)
    elif every is not None:
        trigger = Repeating(every, **shared, **repeated)
    else:
        trigger = RunOnce(in_, at, **shared)
    content, codec = _body(body, args, task)
    with open_queue(cli, queue) as opened:
        schedule = opened.schedules.add(
            key, trigger, content, task=task, codec=codec, headers=parse_pairs(header),
            priority=priority, exist_ok=exist_ok, replace=replace,
        )  # fmt: skip
        _emit(cli, schedule, f"Schedule {key} is there; it fires at {_next(schedule)}.")


def _body(body: str | None, args: str | None, task: str | None) -> tuple[bytes, str | None]:
    """Return the body of the messages, and its codec."""
    if args is not None and body is not None:
        raise BadInput("Give --body or --args, not both.")
    if args is not None and task is None:
        raise BadInput("--args are those of a task: give --task as well.")
    if task is not None and body is None:
        return encoded(args)
    return read_body(body or "", None), None


@command(app)
def show(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Show one schedule, and its next five times."""
    from cqueue.dispatcher.schedules import triggers  # noqa: PLC0415 - not needed for --help

    with open_queue(cli, queue) as opened:
        schedule = opened.schedules.get(key)
        fields = schedule_fields(schedule, upcoming=UPCOMING)
        trigger = {"kind": fields["trigger"]["kind"], **triggers.given(schedule.trigger)}
        told = {"encoding": None, "headers": fields["headers"] or None, "trigger": trigger}
        emit_one(cli, fields, told)


@command(app)
def pause(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Let a schedule fire no more until `resume`. A firing that has begun goes on."""
    with _changing(cli, queue, "pause_schedule", key) as schedules:
        schedule = schedules.pause(key)
    _emit(cli, schedule, f"Schedule {key} is paused.")


@command(app)
def resume(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Undo `pause`: it goes on with the next time from now."""
    with _changing(cli, queue, "resume_schedule", key) as schedules:
        schedule = schedules.resume(key)
    _emit(cli, schedule, f"Schedule {key} is {schedule.state}; it fires at {_next(schedule)}.")


@command(app, "run-now")
def run_now(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Fire a schedule now, beside its own times, whatever its state. Prints the message's id."""
    with _changing(cli, queue, "fire_schedule", key) as schedules:
        id_ = schedules.run_now(key)
    cli.emit({"queue": queue, "key": key, "id": id_}, id_)


@command(app)
def remove(cli: CliContext, queue: QueueName, key: Key) -> None:
    """Remove a schedule. A firing that has begun runs to its end."""
    with _changing(cli, queue, "remove_schedule", key) as schedules:
        schedules.remove(key)
    cli.emit({"queue": queue, "removed": key}, f"Schedule {key} is removed.")


@contextmanager
def _changing(cli: CliContext, queue: str, what: str, key: str) -> Iterator[Schedules]:
    """Yield the schedules of a queue, to change one; see `audited`. A mistyped key is not written down."""
    with open_client(cli) as client:
        schedules = find_queue(client, queue).schedules
        schedules._row(key, as_stored=True)  # noqa: SLF001 - refuses a mistyped key, and no damaged schedule
        with audited(cli, client, what, queue=queue, schedule=key):
            yield schedules


def schedule_fields(schedule: Schedule, *, upcoming: int = 0) -> dict[str, Any]:
    """Return what --json shows of a schedule."""
    from cqueue.dispatcher.schedules import triggers  # noqa: PLC0415 - not needed for --help

    body, encoding = body_text(schedule.body)
    fields: dict[str, Any] = {
        "queue": schedule.queue,
        "key": schedule.key,
        "state": schedule.state,
        "when": triggers.described(schedule.trigger),
        "trigger": {"kind": type(schedule.trigger).__name__, **in_ms(triggers.given(schedule.trigger))},
        "task": schedule.task,
        "body": body,
        "encoding": encoding,
        "headers": dict(schedule.headers),
        "priority": schedule.priority,
        "next": schedule.next_at,
        "previous": schedule.previous,
        "fired": schedule.fired,
        "overdue": schedule.overdue,
    }
    if upcoming:
        fields["upcoming"] = schedule.upcoming(upcoming)
    return fields


def _emit(cli: CliContext, schedule: Schedule, text: str) -> None:
    cli.emit(schedule_fields(schedule, upcoming=UPCOMING), text)


def _next(schedule: Schedule) -> str:
    return "no time any more" if schedule.next_at is None else show_moment(schedule.next_at)
