"""`cqueue extend`: keep messages that a consumer holds invisible for longer, in any queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from cqueue.cli.changes import change
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.options import InQueue, MessageIds
from cqueue.message import check_extension

app = typer.Typer()


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
