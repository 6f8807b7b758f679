"""`cqueue cancel`: delete one message, in any queue."""

from __future__ import annotations

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.find import look, say_missing
from cqueue.cli.opening import find_queue, open_client
from cqueue.cli.options import InQueue, MessageIdText
from cqueue.cli.short_ids import queue_of, short
from cqueue.errors import BadInput
from cqueue.protocol.spec import DEAD_SUFFIX

app = typer.Typer()


@command(app)
def cancel(cli: CliContext, text: MessageIdText, *, queue: InQueue = None) -> None:
    """Delete one message, so that it does not come any more, whether it is due or not.

    A handler that has it goes on to its end; the message does not come again after it. A dead letter is
    left alone: `cqueue dead drop` deletes it. Exit code 1: there is no such message (any more).
    """
    from cqueue.dead_letters import DeadLetter  # noqa: PLC0415 - not needed for --help

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
