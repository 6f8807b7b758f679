"""`cqueue find`: one message, in any queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.cli.letter_view import print_letter
from cqueue.cli.message_view import print_one
from cqueue.cli.opening import find_queue, open_client, say_left_out
from cqueue.cli.options import InQueue, MessageIdText
from cqueue.cli.short_ids import message_id, queue_of
from cqueue.errors import LetterNotFound
from cqueue.protocol.spec import DEAD_SUFFIX

if TYPE_CHECKING:
    from cqueue.client import Client
    from cqueue.dead_letters import DeadLetter
    from cqueue.message import MessageId
    from cqueue.queue import StoredMessage

app = typer.Typer()


@command(app)
def find(cli: CliContext, text: MessageIdText, *, queue: InQueue = None) -> None:
    """Show where a message stands: its state, its attempts, when it may come next, and the message.

    A whole id says its queue. A short one is looked for among all messages of all queues, or of --queue.
    Exit code 1: there is no such message (any more).
    """
    from cqueue.dead_letters import DeadLetter  # noqa: PLC0415 - not needed for --help

    with open_client(cli) as client:
        with cli.status("Looking…"):
            found = look(client, text, queue)
        if found is None:
            say_left_out(cli, client, "messages")
            missing(cli, text)
            raise typer.Exit(ExitCode.CHECK_FAILED)
        if isinstance(found, DeadLetter):
            print_letter(cli, found, queue=queue_of(found.id).removesuffix(DEAD_SUFFIX))
        else:
            print_one(cli, found, queue=queue_of(found.id))


def look(client: Client, text: str, queue: str | None) -> StoredMessage | DeadLetter | None:
    """Find the message of an id, or the dead letter that it is or has become; None if there is neither."""
    if queue is not None:
        find_queue(client, queue)
    id_ = message_id(client, text, None if queue is None else queue.removesuffix(DEAD_SUFFIX))
    if id_ is None:
        return None
    name = queue_of(id_)
    message = None if name.endswith(DEAD_SUFFIX) else find_queue(client, name).find(id_)
    return message or _letter(client, name.removesuffix(DEAD_SUFFIX), id_)


def _letter(client: Client, queue: str, id_: MessageId) -> DeadLetter | None:
    try:
        return find_queue(client, queue).dead_letters.get(id_)
    except LetterNotFound:
        return None


def missing(cli: CliContext, text: str) -> None:
    """Say that there is no such message."""
    if cli.json:
        cli.emit(None)
    cli.remark(f"There is no message {text}. It may have been acked or cancelled, or have expired.")
