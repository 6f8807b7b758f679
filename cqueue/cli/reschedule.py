"""`cqueue reschedule`: make messages due at another time, in any queue."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from cqueue.cli.changes import change
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.options import InQueue, MessageIds
from cqueue.errors import BadInput

app = typer.Typer()


@command(app)
def reschedule(
    cli: CliContext,
    texts: MessageIds,
    *,
    due: Annotated[datetime | None, "When they are to be due."] = None,
    in_: Annotated[timedelta | None, "--in DURATION", "So long from now; 0s: at once."] = None,
    queue: InQueue = None,
) -> None:
    """Make messages due at another time, earlier or later, by --due or --in.

    One that a consumer holds stays with it, with exit code 3. Exit code 1: one is not there (any more).
    """
    when = due if in_ is None else in_
    if when is None or (due is not None and in_ is not None):
        raise BadInput("Say when: --due TIME, or --in DURATION; one of these.")
    change(cli, texts, queue, lambda own, ids: own.reschedule_many(ids, when), "rescheduled")
