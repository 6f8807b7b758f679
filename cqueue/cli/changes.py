"""Change messages by id, in any queue: what `cancel`, `reschedule`, `set-priority` and `extend` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode, error_fields, exit_code, worst
from cqueue.cli.find import check_key, look, missing
from cqueue.cli.opening import find_queue, open_client, open_queue
from cqueue.cli.short_ids import grouped, queue_of, short
from cqueue.cli.values import counted
from cqueue.errors import BadInput, CqueueError
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
    from cqueue.dead_letters import DeadLetter
    from cqueue.message import MessageId
    from cqueue.queue import Queue, StoredMessage
    from cqueue.sending.changes import ChangeResult

Change = Callable[["Queue", Sequence["MessageId"]], "ChangeResult"]


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
        found = {text: _alive(one) for text, one in look(client, texts, queue).items()}
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
    if cli.json:
        cli.emit({"queue": queue_of(id_), "id": id_, **error_fields(error)})
    cli.remark(f"{short(id_)}: {type(error).__name__}: {error}")
