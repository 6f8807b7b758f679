"""`cqueue cancel`: delete messages, in any queue."""

from __future__ import annotations

import typer

from cqueue.cli.changes import change, change_key
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.options import InQueue, OfKey, SomeMessages

app = typer.Typer()


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
