"""`cqueue send`: one message, or one a line."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cqueue.cli.bodies import check_source, encoded, open_source, read_body
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.interrupts import told_of_interrupt
from cqueue.cli.opening import find_queue, open_client, open_queue
from cqueue.cli.options import BodyFile, Headers, Priority, QueueName, TaskArgs, given
from cqueue.cli.values import parse_pairs
from cqueue.errors import BadInput, CqueueError
from cqueue.runtime.suggestions import did_you_mean, nearest

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.message import Message, MessageId
    from cqueue.unique import Unique

app = typer.Typer()

While = Literal["pending", "running", "ever"]
OnConflict = Literal["raise", "skip", "replace", "debounce", "throttle"]
"""As of `cqueue.unique`, whose import takes too long for --help."""


@command(app)
def send(
    cli: CliContext,
    name: QueueName,
    body: Annotated[str | None, "BODY|-", "The body as text; - reads standard input."] = None,
    *,
    file: BodyFile = None,
    lines: Annotated[bool, "Each line of standard input (or of --file) is a message."] = False,
    task: Annotated[str | None, "NAME", "Call this task, as its `enqueue` does."] = None,
    args: TaskArgs = None,
    kwargs: Annotated[str | None, "JSON", "The task's arguments by name, beside an array."] = None,
    delay: Annotated[timedelta | None, "Deliver later by this: 30s, 5m, 1h30m, 2d."] = None,
    due: Annotated[datetime | None, "Deliver then: ISO 8601 with a zone, 2030-01-31T08:00Z."] = None,
    priority: Priority = 0,
    header: Headers = None,
    ttl: Annotated[timedelta | None, "How long after it was sent the message may still be delivered."] = None,
    key: Annotated[
        str | None, "A key of your own; in a keyed queue, `cqueue find --key` looks it up."
    ] = None,
    unique: Annotated[
        str | None, "KEY", "Send only if no other message of this unique key is in the way."
    ] = None,
    while_: Annotated[
        While | None, "How long it is in the way; by default while it waits or is held."
    ] = None,
    within: Annotated[timedelta | None, "No longer than this after it was sent: 30s, 5m."] = None,
    on_conflict: Annotated[OnConflict | None, "What follows; by default an error."] = None,
) -> None:
    """Send a message, with --lines one a line, or with --task a call of a task; done once it is stored.

    Prints the message's id, or with --lines how many were sent. Ctrl-C lets the batch under way end
    and says how many lines are sent, so that the rest can be sent later.
    """
    options: dict[str, Any] = {
        "delay": delay,
        "due": due,
        "priority": priority,
        "headers": parse_pairs(header),
        "ttl": ttl,
        "key": key,
        "unique": _unique(unique, given(while_=while_, within=within, on_conflict=on_conflict)),
    }
    if task is not None or args is not None or kwargs is not None:
        if body is not None or file is not None or lines:
            raise BadInput(
                "A task is called with --args and --kwargs; leave the body, --file and --lines out."
            )
        _send_task(cli, name, _call(task, args, kwargs, options))
        return
    if lines and unique is not None:
        raise BadInput("--unique is for one message: with --lines all of them would have one key.")
    check_source(body, file, lines=lines)
    if lines:
        _send_lines(cli, name, file, options)
    else:
        _send_one(cli, name, read_body(body, file), options)


def _unique(key: str | None, options: dict[str, Any]) -> Unique | None:
    if key is not None:
        from cqueue.unique import Unique  # noqa: PLC0415 - only where it is needed

        return Unique(key, **options)
    if options:
        raise BadInput("--while, --within and --on-conflict say when a --unique KEY is taken: give --unique.")
    return None


def _emit(cli: CliContext, result: dict[str, Any], id_: MessageId | None) -> None:
    """Tell the id of a message, and that it is an earlier one's, if it is."""
    if id_ is not None and id_.skipped:
        cli.emit({**result, "id": id_, "skipped": True}, id_)
        cli.remark("Nothing was sent: this message of the unique key is in the way.")
    else:
        cli.emit({**result, "id": id_}, id_)


def _call(task: str | None, args: str | None, kwargs: str | None, options: dict[str, Any]) -> Message:
    """Make the message that calls a task. Only a dispatcher knows whether there is such a task."""
    from cqueue.message import Message  # noqa: PLC0415 - not needed for --help

    if task is None:
        raise BadInput("--args and --kwargs are those of a task: give --task as well.")
    body, codec = encoded(args, kwargs)
    return Message(body, task=task, codec=codec, **options)


def _send_task(cli: CliContext, name: str, message: Message) -> None:
    with open_client(cli) as client:
        queue = find_queue(client, name)
        with _in_doubt(cli, name):
            result = queue.send_many([message])
        for _, error in result.failed:
            raise error
        _emit(cli, {"queue": name, "task": message.task}, result.ids[0])
        with suppress(CqueueError):  # the message is sent, whatever becomes of the remark
            _remark_unknown(cli, client, name, str(message.task))


def _remark_unknown(cli: CliContext, client: Client, queue: str, task: str) -> None:
    """Say that none of the workers of the queue knows the task, if all say what they know."""
    from cqueue.dispatcher.service import membership  # noqa: PLC0415 - not for --help

    workers, _ = membership.listed(client)
    if not membership.is_orphan(task, queue, workers):
        return
    known = {one for each in workers if each.polls(queue) for one in each.tasks or () if one is not None}
    hint = did_you_mean(_nearest(task, known), "`cqueue --json workers` shows the tasks that each knows.")
    cli.remark(
        f"No worker of queue {queue} knows a task {task!r}: the message waits for one that does.{hint}"
    )


def _nearest(task: str, known: Iterable[str]) -> str | None:
    """Return the task that may be meant, first of those whose part behind the colon is the same."""
    names = sorted(known)
    same = [name for name in names if name.rpartition(":")[2] == task.rpartition(":")[2]]
    return nearest(task, same, cutoff=0) or nearest(task, names)


def _send_one(cli: CliContext, name: str, body: bytes, options: dict[str, Any]) -> None:
    with open_queue(cli, name) as queue, _in_doubt(cli, name):
        id_ = queue.send(body, **options)
    _emit(cli, {"queue": name}, id_)


def _in_doubt(cli: CliContext, name: str) -> AbstractContextManager[None]:
    """Say where an interrupt ends the block that the message may be stored."""
    text = f"The message may be sent or not; `cqueue list {name}` shows what is there."
    return told_of_interrupt(cli, text)


def _send_lines(cli: CliContext, name: str, file: Path | None, options: dict[str, Any]) -> None:
    """Send each line as a message."""
    from cqueue.cli.send_lines import Target, send_each  # noqa: PLC0415 - only where it is needed
    from cqueue.message import Message  # noqa: PLC0415 - not needed for --help

    with open_source(file) as source, open_queue(cli, name) as queue:

        def send(bodies: list[bytes]) -> list[tuple[int, CqueueError]]:
            return queue.send_many([Message(body, **options) for body in bodies]).failed

        send_each(cli, Target("queue", name, "message", "sent", send), source)
