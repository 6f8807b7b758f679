"""`cqueue queue`: create, list, show, alter, delete, pause, resume, purge."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.confirm import Yes, confirm
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import going_on
from cqueue.cli.opening import (
    NO_QUEUE,
    audited,
    check_deletable,
    find_queue,
    open_client,
    open_queue,
    say_left_out,
)
from cqueue.cli.options import ExistOk, QueueName, given
from cqueue.cli.render import columns_of, emit_one, in_ms, print_list
from cqueue.cli.values import counted
from cqueue.config import FIXED, QueueConfig, with_other_settings
from cqueue.errors import BadInput, QueueExists, unknown_if_not_done
from cqueue.protocol.spec import DEAD_SUFFIX
from cqueue.runtime.durations import show_duration

if TYPE_CHECKING:
    from cqueue.queue import Queue

app = typer.Typer(help="Make, look at, change and remove queues.", no_args_is_help=True)

DEFAULTS = QueueConfig()
_Fixed = Annotated[str | None, typer.Option(hidden=True)]
"""An option of `create` that `alter` takes only to say why it does not."""


@dataclass(frozen=True, slots=True)
class Changeable:
    """The settings that `alter` can change."""

    shards: Annotated[
        int | None,
        f"Consumers that can claim at once, up to max-shards; at first {DEFAULTS.shards}; kept if not given.",
    ] = None
    visibility: Annotated[
        timedelta | None,
        "How long a received message is hidden from others, 2s to 12h; at first "
        f"{show_duration(DEFAULTS.visibility)}; kept if not given.",
    ] = None
    max_attempts: Annotated[
        int | None,
        "Deliveries before the dead-letter queue, 2 or more; 0 means for ever; at first "
        f"{DEFAULTS.max_attempts}; kept if not given.",
    ] = None
    lease: Annotated[
        timedelta | None,
        "How long a consumer may lock a part of the queue to claim, 1s or more; at first "
        f"{show_duration(DEFAULTS.lease)}; kept if not given.",
    ] = None
    derived_sends: Annotated[
        bool | None, "Take messages with a source, as schedules send them; cannot be undone."
    ] = None
    history: Annotated[
        timedelta | None,
        "How long to keep what became of messages, 1m to 10 years; 0s: not at all, as at first; kept if not "
        "given.",
    ] = None
    keyed: Annotated[
        bool | None, "Find messages by their keys, those sent from then on; cannot be undone."
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the settings that were given."""
        values = given(**asdict(self))
        return values | ({"history": None} if self.history == timedelta() else {})


@command(app)
def create(
    cli: CliContext,
    name: QueueName,
    settings: Changeable,
    *,
    time_shard: Annotated[
        timedelta | None,
        "Width of a partition in time, 1s to 30d, dividing an hour or a multiple of one; fixed; "
        f"by default {show_duration(DEFAULTS.time_shard)}.",
    ] = None,
    max_shards: Annotated[
        int | None, f"Upper bound of shards, 1 to 1000; fixed; by default {DEFAULTS.max_shards}."
    ] = None,
    open_shards: Annotated[
        int | None,
        f"Shards for sends that may land late, 1 to 64; fixed; by default {DEFAULTS.open_shards}.",
    ] = None,
    exist_ok: ExistOk = False,
) -> None:
    """Make a queue, and with it a dead-letter queue called QUEUE.dead."""
    fixed = given(time_shard=time_shard, max_shards=max_shards, open_shards=open_shards)
    options = settings.given() | fixed
    with open_client(cli) as client:
        queue = client.create_queue(name, QueueConfig(**options) if options else None, exist_ok=exist_ok)
        with unknown_if_not_done(f"queue {name} is there, but cannot be read"):
            if differ := with_other_settings(queue.config, options):  # an option may give a default
                raise QueueExists(f"queue {name!r} exists {differ}")
            fields = queue_fields(queue)
        cli.emit(fields, f"Queue {name} is there; its dead letters go to {queue.dead_letter_name}.")


@command(app, "list")
def list_queues(cli: CliContext, *, all_: Annotated[bool, "Dead-letter queues as well."] = False) -> None:
    """List the queues and their configuration."""
    from cqueue.client import inside  # noqa: PLC0415 - the driver takes long to import
    from cqueue.runtime.catalog import PAUSED  # noqa: PLC0415 - as above

    with open_client(cli) as client:
        rows = [
            _fields(one.row.name, one.config, paused=one.row.state == PAUSED)
            for one in inside(client).catalog.all()
            if all_ or not one.row.name.endswith(DEAD_SUFFIX)
        ]
        say_left_out(cli, client, "queues")
    columns = columns_of("queue", "state", "visibility_ms", "max_attempts", "shards", "time_shard_ms")
    print_list(cli, rows, dict, columns, none=NO_QUEUE, spare=("time shard", "shards", "max attempts"))


@command(app)
def show(cli: CliContext, name: QueueName) -> None:
    """Show one queue's configuration."""
    with open_queue(cli, name) as queue:
        emit_one(cli, queue_fields(queue), fixed=FIXED)


@command(app)
def alter(
    cli: CliContext,
    name: QueueName,
    settings: Changeable,
    *,
    time_shard: _Fixed = None,
    max_shards: _Fixed = None,
    open_shards: _Fixed = None,
) -> None:
    """Change a queue while it runs; what is not given stays. All clients follow within two seconds.

    What is fixed cannot be changed: make a new queue and move over.
    """
    DEFAULTS.altered(given(time_shard=time_shard, max_shards=max_shards, open_shards=open_shards))  # refuses
    changes = settings.given()
    if not changes:
        raise BadInput(
            "Nothing to change: give --shards, --visibility, --max-attempts, --lease, --derived-sends, "
            "--history or --keyed."
        )
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with audited(cli, client, "alter_queue", queue=name, changes=in_ms(changes)):
            queue.alter(**changes)
        emit_one(cli, _fields_after(queue), fixed=FIXED)


@command(app)
def delete(cli: CliContext, name: QueueName, *, yes: Yes = False) -> None:
    """Delete a queue, its dead-letter queue, and all their messages.

    If it is interrupted, the queue can no longer be used; repeat the command to finish.
    """
    if name.endswith(DEAD_SUFFIX):
        raise BadInput(f"{name!r} goes with its queue. `cqueue queue purge {name}` empties it.")
    with open_client(cli) as client:
        check_deletable(client, "queue", name)
        confirm(cli, f"Delete queue {name}, its dead-letter queue and all their messages?", yes=yes)
        with going_on(cli), cli.status("Deleting…"), audited(cli, client, "delete_queue", queue=name):
            count = client.delete_queue(name)
    cli.emit(
        {"queue": name, "deleted": count},
        f"Queue {name} is deleted, and with it {counted(count, 'message')}.",
    )


@command(app)
def pause(cli: CliContext, name: QueueName) -> None:
    """Let consumers receive nothing until `resume`. Sends go on. Obeyed within two seconds."""
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with audited(cli, client, "pause_queue", queue=name):
            queue.pause()
        cli.emit(_fields_after(queue), f"Queue {name} is paused.")


@command(app)
def resume(cli: CliContext, name: QueueName) -> None:
    """Undo `pause`."""
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with audited(cli, client, "resume_queue", queue=name):
            queue.resume()
        cli.emit(_fields_after(queue), f"Queue {name} is active.")


@command(app)
def purge(cli: CliContext, name: QueueName, *, yes: Yes = False) -> None:
    """Delete all messages of a queue, delayed ones as well. The queue stays, and its dead letters too.

    Interrupted, it has deleted some; the same command goes on. What is sent meanwhile may stay.
    """
    with open_client(cli) as client:
        queue = find_queue(client, name)
        confirm(cli, f"Delete all messages of queue {name}?", yes=yes)
        with (
            going_on(cli),
            cli.status("Purging…"),
            audited(cli, client, "purge_queue", queue=name) as more,
        ):
            more["deleted"] = count = queue.purge()
        say_left_out(cli, client, "messages", "message_keys")
    cli.emit({"queue": name, "deleted": count}, f"{counted(count, 'message')} of {name} deleted.")


def _fields_after(queue: Queue) -> dict[str, Any]:
    """Return what --json shows of a queue that was changed. It is changed, whether it can be read or not."""
    with unknown_if_not_done(f"queue {queue.name} is changed, but cannot be read"):
        return queue_fields(queue)


def queue_fields(queue: Queue) -> dict[str, Any]:
    """Return what --json shows of a queue: durations in ms, as they are stored."""
    return _fields(queue.name, queue.config, paused=queue.paused)


def _fields(name: str, config: QueueConfig, *, paused: bool) -> dict[str, Any]:
    dead = None if name.endswith(DEAD_SUFFIX) else name + DEAD_SUFFIX
    state = "paused" if paused else "active"
    return {"queue": name, "state": state, "dead_letter_queue": dead, **in_ms(asdict(config))}
