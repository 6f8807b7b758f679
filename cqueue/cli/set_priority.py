"""`cqueue set-priority`: give messages another priority, in any queue."""

from __future__ import annotations

from typing import Annotated

import typer

from cqueue.cli.changes import change
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.options import InQueue, MessageIds
from cqueue.message import check_priority

app = typer.Typer()


@command(app, "set-priority")
def set_priority(
    cli: CliContext,
    priority: Annotated[int, "PRIORITY", "0 (most urgent) to 9."],
    texts: MessageIds,
    *,
    queue: InQueue = None,
) -> None:
    """Give messages another priority; each gets a new id.

    One that a consumer holds stays as it is, with exit code 3. Exit code 1: one is not there (any more).
    """
    check_priority(priority)
    change(
        cli,
        texts,
        queue,
        lambda own, ids: own.set_priority_many(ids, priority),
        "changed",
        priority=priority,
    )
