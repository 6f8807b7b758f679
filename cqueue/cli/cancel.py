"""`cqueue cancel`: delete one message, in any queue."""

from __future__ import annotations

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.find import check_key, look, say_missing
from cqueue.cli.opening import find_queue, open_client, open_queue
from cqueue.cli.options import InQueue, OfKey, SomeMessage
from cqueue.cli.short_ids import queue_of, short
from cqueue.cli.values import counted
from cqueue.errors import BadInput
from cqueue.protocol.spec import DEAD_SUFFIX

app = typer.Typer()


@command(app)
def cancel(cli: CliContext, text: SomeMessage = None, *, key: OfKey = None, queue: InQueue = None) -> None:
    """Delete one message, so that it does not come any more, whether it is due or not.

    A handler that has it goes on to its end; the message does not come again after it. A dead letter is
    left alone: `cqueue dead drop` deletes it. Exit code 1: there is no such message (any more).
    """
    from cqueue.dead_letters import DeadLetter  # noqa: PLC0415 - not needed for --help

    if text is None or key is not None:
        _cancel_key(cli, *check_key(text, key, queue))
        return
    with open_client(cli) as client, cli.status("Cancelling…"):
        found = look(client, text, queue)
        if isinstance(found, DeadLetter):
            name = queue_of(found.id).removesuffix(DEAD_SUFFIX)
            raise BadInput(f"The message is dead. `cqueue dead drop {name} {short(found.id)}` deletes it.")
        done = found is not None and find_queue(client, queue_of(found.id)).cancel(found.id)
    if found is None or not done:
        say_missing(cli, text)
        return
    name, held = queue_of(found.id), found.state == "claimed"
    value = {"queue": name, "id": found.id, "cancelled": True, "held": held}
    cli.emit(value, f"Message {short(found.id)} of {name} is cancelled.")
    if held:
        cli.remark("A consumer holds it: its handler goes on, and the message does not come again.")


def _cancel_key(cli: CliContext, key: str, queue: str) -> None:
    with open_queue(cli, queue) as opened, cli.status("Cancelling…"):
        count = opened.delete_by_key(key)
    value = {"queue": queue, "key": key, "cancelled": count}
    cli.emit(value, f"{counted(count, 'message')} of {queue} with the key {key} cancelled.")
    if not count:
        raise typer.Exit(ExitCode.CHECK_FAILED)
