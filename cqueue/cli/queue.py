"""`cqueue queue`: create, list, show, alter, delete, pause, resume, purge."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.confirm import confirm
from cqueue.cli.context import CliContext
from cqueue.cli.opening import find_queue, open_client, open_queue, say_left_out, suggesting
from cqueue.cli.options import ExistOk, QueueName, Yes, duration, given
from cqueue.cli.render import print_fields, print_rows
from cqueue.cli.values import counted
from cqueue.config import FIXED, QueueConfig, to_ms
from cqueue.errors import BadInput, DamagedRow, QueueNotFound
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.durations import show_duration

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.queue import Queue

app = typer.Typer(help="Make, look at, change and remove queues.", no_args_is_help=True)

_COLUMNS = ("queue", "state", "visibility_ms", "max_attempts", "shards", "time_shard_ms")

# Shown in the help of each option of `create`; `alter` keeps what is not given.
DEFAULTS = QueueConfig()
KEPT = "kept if not given"


def _number(name: str, text: str, default: int | str) -> Any:
    help_ = f"{text}; {default if default == KEPT else f'by default {default}'}."
    return typer.Option(f"--{name}", help=help_, metavar="N", show_default=False)


def _duration(name: str, text: str, default: timedelta | str) -> Any:
    help_ = f"{text}; {default if isinstance(default, str) else f'by default {show_duration(default)}'}."
    return duration(help_, f"--{name}")


_SHARDS = ("shards", "Consumers that can claim at once, up to max-shards")
_VISIBILITY = ("visibility", "How long a received message is hidden from others, 2s to 12h")
_MAX_ATTEMPTS = ("max-attempts", "Deliveries before the dead-letter queue, 2 or more; 0 means for ever")
_LEASE = ("lease", "How long a consumer may lock a part of the queue to claim, 1s or more")

Shards = Annotated[int | None, _number(*_SHARDS, DEFAULTS.shards)]
Visibility = Annotated[timedelta | None, _duration(*_VISIBILITY, DEFAULTS.visibility)]
MaxAttempts = Annotated[int | None, _number(*_MAX_ATTEMPTS, DEFAULTS.max_attempts)]
Lease = Annotated[timedelta | None, _duration(*_LEASE, DEFAULTS.lease)]
NewShards = Annotated[int | None, _number(*_SHARDS, KEPT)]
NewVisibility = Annotated[timedelta | None, _duration(*_VISIBILITY, KEPT)]
NewMaxAttempts = Annotated[int | None, _number(*_MAX_ATTEMPTS, KEPT)]
NewLease = Annotated[timedelta | None, _duration(*_LEASE, KEPT)]
TimeShard = Annotated[
    timedelta | None,
    _duration(
        "time-shard",
        "Width of a partition in time, 1s to 30d, dividing an hour or a multiple of one; fixed",
        DEFAULTS.time_shard,
    ),
]
MaxShards = Annotated[
    int | None, _number("max-shards", "Upper bound of shards, 1 to 1000; fixed", DEFAULTS.max_shards)
]
OpenShards = Annotated[
    int | None,
    _number("open-shards", "Shards for sends that may land late, 1 to 64; fixed", DEFAULTS.open_shards),
]
DerivedSends = Annotated[
    bool,
    typer.Option(
        "--derived-sends", help="Take messages with a source, as schedules send them; cannot be undone."
    ),
]


@command(app)
def create(
    cli: CliContext,
    name: QueueName,
    *,
    shards: Shards = None,
    time_shard: TimeShard = None,
    visibility: Visibility = None,
    max_attempts: MaxAttempts = None,
    lease: Lease = None,
    max_shards: MaxShards = None,
    open_shards: OpenShards = None,
    derived_sends: DerivedSends = False,
    exist_ok: ExistOk = False,
) -> None:
    """Make a queue, and with it a dead-letter queue called QUEUE.dead."""
    config = QueueConfig(
        **given(
            shards=shards,
            time_shard=time_shard,
            visibility=visibility,
            max_attempts=max_attempts,
            lease=lease,
            max_shards=max_shards,
            open_shards=open_shards,
            derived_sends=derived_sends or None,
        )
    )
    with open_client(cli) as client:
        queue = client.create_queue(name, config, exist_ok=exist_ok)
        cli.emit(
            queue_fields(queue), f"Queue {name} is there; its dead letters go to {queue.dead_letter_name}."
        )


@command(app, "list")
def list_queues(
    cli: CliContext,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Dead-letter queues as well.")] = False,
) -> None:
    """List the queues and their configuration."""
    with open_client(cli) as client:
        names = [name for name in client.queues() if all_ or not name.endswith(DEAD_SUFFIX)]
        rows = [row for name in names if (row := _described_if_there(client, name)) is not None]
        say_left_out(cli, client, "queues")
    if rows or cli.json:
        spare = ("time shard", "shards", "max attempts")
        cli.emit(rows, lambda: print_rows(cli, rows, _COLUMNS, left=2, spare=spare))
    else:
        cli.remark("There is no queue yet. `cqueue queue create NAME` makes one.")


@command(app)
def show(cli: CliContext, name: QueueName) -> None:
    """Show one queue's configuration."""
    with open_queue(cli, name) as queue:
        _emit_one(cli, queue)


@command(app)
def alter(
    cli: CliContext,
    name: QueueName,
    *,
    shards: NewShards = None,
    visibility: NewVisibility = None,
    max_attempts: NewMaxAttempts = None,
    lease: NewLease = None,
    derived_sends: DerivedSends = False,
) -> None:
    """Change a queue while it runs. All clients follow within two seconds.

    What is fixed cannot be changed: make a new queue and move over.
    """
    changes = given(
        shards=shards,
        visibility=visibility,
        max_attempts=max_attempts,
        lease=lease,
        derived_sends=derived_sends or None,
    )
    if not changes:
        raise BadInput(
            "Nothing to change: give --shards, --visibility, --max-attempts, --lease or --derived-sends."
        )
    with open_queue(cli, name) as queue:
        queue.alter(**changes)
        _emit_one(cli, queue)


@command(app)
def delete(cli: CliContext, name: QueueName, *, yes: Yes = False) -> None:
    """Delete a queue, its dead-letter queue, and all their messages.

    If it is interrupted, the queue can no longer be used; repeat the command to finish.
    """
    if name.endswith(DEAD_SUFFIX):
        raise BadInput(f"{name!r} goes with its queue. `cqueue queue purge {name}` empties it.")
    confirm(cli, f"Delete queue {name}, its dead-letter queue and all their messages?", yes=yes)
    with open_client(cli) as client, cli.status("Deleting…"), suggesting("queue", name, client.queues):
        count = client.delete_queue(name)
    cli.emit(
        {"queue": name, "deleted": count},
        f"Queue {name} is deleted, and with it {counted(count, 'message')}.",
    )


@command(app)
def pause(cli: CliContext, name: QueueName) -> None:
    """Let consumers receive nothing until `resume`. Sends go on. Obeyed within two seconds."""
    with open_queue(cli, name) as queue:
        queue.pause()
        cli.emit(queue_fields(queue), f"Queue {name} is paused.")


@command(app)
def resume(cli: CliContext, name: QueueName) -> None:
    """Undo `pause`."""
    with open_queue(cli, name) as queue:
        queue.resume()
        cli.emit(queue_fields(queue), f"Queue {name} is active.")


@command(app)
def purge(cli: CliContext, name: QueueName, *, yes: Yes = False) -> None:
    """Delete all messages of a queue, delayed ones as well. The queue stays, and its dead letters too.

    Interrupted, it has deleted some; the same command goes on. What is sent meanwhile may stay.
    """
    confirm(cli, f"Delete all messages of queue {name}?", yes=yes)
    with open_queue(cli, name) as queue, cli.status("Purging…"):
        count = queue.purge()
    cli.emit({"queue": name, "deleted": count}, f"{counted(count, 'message')} of {name} deleted.")


def queue_fields(queue: Queue) -> dict[str, Any]:
    """Return what --json shows of a queue: durations in ms, as they are stored."""
    settings: dict[str, Any] = {}
    for field in fields(queue.config):
        value = getattr(queue.config, field.name)
        if isinstance(value, timedelta):
            settings[f"{field.name}_ms"] = to_ms(value)
        else:
            settings[field.name] = value
    dead = None if queue.name.endswith(DEAD_SUFFIX) else queue.dead_letter_name
    state = "paused" if queue.paused else "active"
    return {"queue": queue.name, "state": state, "dead_letter_queue": dead, **settings}


def _described_if_there(client: Client, name: str) -> dict[str, Any] | None:
    try:
        return queue_fields(find_queue(client, name))
    except (QueueNotFound, DamagedRow):  # since it was listed
        return None


def _emit_one(cli: CliContext, queue: Queue) -> None:
    shown = queue_fields(queue)
    cli.emit(shown, lambda: print_fields(cli, shown, fixed=FIXED))
