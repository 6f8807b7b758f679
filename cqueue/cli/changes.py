"""`cqueue cancel`, `reschedule`, `set-priority` and `extend`: change messages by id, in any queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode, error_fields, exit_code, worst
from cqueue.cli.messages import check_key, look, missing
from cqueue.cli.opening import find_queue, open_client, open_queue
from cqueue.cli.options import InQueue, MessageIds, OfKey, SomeMessages
from cqueue.cli.short_ids import grouped
from cqueue.cli.values import counted
from cqueue.errors import BadInput, CqueueError
from cqueue.message import MessageId, check_extension, check_priority, due_us, queue_of, short
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
    from cqueue.dead_letters import DeadLetter
    from cqueue.queue import Queue, StoredMessage
    from cqueue.sending.changes import ChangeResult

app = typer.Typer()


Change = Callable[["Queue", Sequence[MessageId]], "ChangeResult"]


@command(app)
def cancel(cli: CliContext, texts: SomeMessages = None, *, key: OfKey = None, queue: InQueue = None) -> None:
    """Delete messages, so that they do not come any more, whether they are due or not.

    A handler that has one goes on until it asks; the message does not come again after it. A dead letter is
    left alone: `cqueue dead drop` deletes it. Exit code 1: one is not there (any more).
    """
    if key is not None or not texts:
        change_key(cli, (texts, key, queue), lambda own, key: own.delete_by_key(key), "cancelled")
    elif change(cli, texts, queue, lambda own, ids: own.cancel_many(ids), "cancelled"):
        cli.remark("A consumer holds it: its handler goes on until it asks; the message does not come again.")


@command(app)
def reschedule(
    cli: CliContext,
    texts: SomeMessages = None,
    *,
    due: Annotated[datetime | None, "When they are to be due."] = None,
    in_: Annotated[timedelta | None, "--in DURATION", "So long from now; 0s: at once."] = None,
    key: OfKey = None,
    queue: InQueue = None,
) -> None:
    """Make messages due at another time, earlier or later, by --due or --in.

    One that a consumer holds stays with it, with exit code 3. Exit code 1: one is not there (any more).
    """
    when = due if in_ is None else in_
    if when is None or (due is not None and in_ is not None):
        raise BadInput("Say when: --due TIME, or --in DURATION; one of these.")
    due_us(when, time.time_ns() // 1000)  # refuses a time out of range before anything is looked for
    if key is not None or not texts:
        change_key(cli, (texts, key, queue), lambda own, key: own.reschedule_by_key(key, when), "rescheduled")
    else:
        change(cli, texts, queue, lambda own, ids: own.reschedule_many(ids, when), "rescheduled")


@command(app, "set-priority")
def set_priority(
    cli: CliContext,
    priority: Annotated[int, "PRIORITY", "0 (most urgent) to 9; before the ids."],
    texts: MessageIds,
    *,
    queue: InQueue = None,
) -> None:
    """Give messages another priority; each gets a new id.

    One that a consumer holds stays as it is, with exit code 3. Exit code 1: one is not there (any more).
    """
    check_priority(priority)

    def act(own: Queue, ids: Sequence[MessageId]) -> ChangeResult:
        return own.set_priority_many(ids, priority)

    change(cli, texts, queue, act, "changed", priority=priority)


@command(app)
def extend(
    cli: CliContext,
    texts: MessageIds,
    *,
    by: Annotated[timedelta, "--for DURATION", "From now on, 2s to 12h; a timeout is never shortened."],
    queue: InQueue = None,
) -> None:
    """Keep messages that a consumer holds from being given to another one, for --for from now on.

    Exit code 5: nobody holds one, or its visibility timeout has passed. Exit code 1: one is not there.
    """
    check_extension(by)
    change(cli, texts, queue, lambda own, ids: own.extend_many(ids, by), "extended")


def change(
    cli: CliContext, texts: Sequence[str], queue: str | None, act: Change, done: str, **more: Any
) -> bool:
    """Change messages, and say what became of each; return whether a consumer holds one that was changed.

    done: what has happened to a message then, in one word, as JSON names it. more: what else JSON says of it.

    Raises:
        BadInput: one is a dead letter; nothing was changed.
        Exit: a message was not there, or not changed.
    """
    with open_client(cli) as client, cli.status("Looking…"):
        looked = {text: _alive(one) for text, one in look(client, texts, queue).items()}
        # Both forms of an id may be given.
        found = {text if message is None else message.id: message for text, message in looked.items()}
        there = {message.id: message for message in found.values() if message is not None}
        names = dict.fromkeys(map(queue_of, there))
        results = [act(find_queue(client, name), [i for i in there if queue_of(i) == name]) for name in names]
    changed = {old: new for result in results for old, new in result.done.items()}
    failed = {id_: error for result in results for id_, error in result.failed.items()}
    for text, message in found.items():
        if message is not None and message.id in changed:
            _tell(cli, message, changed[message.id], {done: True, **more}, done)
        elif message is not None and message.id in failed:
            _tell_failure(cli, message.id, failed[message.id])
        else:
            missing(cli, text, {"id": text, done: False})
    if failed:
        raise typer.Exit(exit_code(worst(failed.values())))
    if len(changed) < len(there) or None in found.values():
        raise typer.Exit(ExitCode.CHECK_FAILED)
    return any(there[id_].state == "claimed" for id_ in changed)


def change_key(
    cli: CliContext,
    named: tuple[Sequence[str] | None, str | None, str | None],
    act: Callable[[Queue, str], ChangeResult],
    done: str,
) -> None:
    """Change all messages with a key, and say how many, and which were not changed.

    named: ids, of which there must be none, key, queue.

    Raises:
        BadInput: ids are named, or no key, or no queue.
        Exit: there was no such message, or one was not changed.
    """
    key, queue = check_key(*named)
    with open_queue(cli, queue) as own, cli.status("Looking…"):
        result = act(own, key)
    failed = [{"id": id_, **error_fields(error)} for id_, error in result.failed.items()]
    value = {"queue": queue, "key": key, done: len(result.done), "failed": failed}
    cli.emit(value, f"{counted(len(result.done), 'message')} of {queue} with the key {key} {done}.")
    for line in grouped((id_, f"{type(error).__name__}: {error}") for id_, error in result.failed.items()):
        cli.remark(line)
    if failed:
        raise typer.Exit(exit_code(worst(result.failed.values())))
    if not result.done:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _alive(found: StoredMessage | DeadLetter | None) -> StoredMessage | None:
    """Return what was found. Raises BadInput if it is a dead letter."""
    from cqueue.dead_letters import DeadLetter  # noqa: PLC0415 - not needed for --help

    if isinstance(found, DeadLetter):
        name = queue_of(found.id).removesuffix(DEAD_SUFFIX)
        letter = f"{name} {short(found.id)}"
        raise BadInput(f"The message is dead. `cqueue dead drop {letter}` deletes the dead letter.")
    return found


def _tell(
    cli: CliContext, message: StoredMessage, new: MessageId, told: Mapping[str, Any], done: str
) -> None:
    name, held = queue_of(message.id), message.state == "claimed"
    value = {"queue": name, "id": message.id, **told, "held": held}
    text = f"Message {short(message.id)} of {name} is {done}."
    if new != message.id:
        value["new_id"] = new
        text += f" Its new id is {new}"
    cli.emit(value, text)


def _tell_failure(cli: CliContext, id_: MessageId, error: CqueueError) -> None:
    cli.emit({"queue": queue_of(id_), "id": id_, **error_fields(error)})
    cli.remark(f"{short(id_)}: {type(error).__name__}: {error}")
