"""`cqueue reschedule`: make messages due at another time, in any queue."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Annotated

import typer

from cqueue.cli.changes import change, change_key
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.options import InQueue, OfKey, SomeMessages
from cqueue.errors import BadInput
from cqueue.message import due_us

app = typer.Typer()


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
