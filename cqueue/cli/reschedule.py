"""`cqueue reschedule`: make messages due at another time, in any queue."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cqueue.cli.changes import change, change_key
from cqueue.cli.commands import command
from cqueue.cli.context import CliContext
from cqueue.cli.failures import worst
from cqueue.cli.options import InQueue, OfKey, SomeMessages
from cqueue.errors import BadInput

if TYPE_CHECKING:
    from cqueue.queue import Queue

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
    if key is not None or not texts:
        change_key(cli, (texts, key, queue), lambda own, key: _moved(own, key, when), "rescheduled")
    else:
        change(cli, texts, queue, lambda own, ids: own.reschedule_many(ids, when), "rescheduled")


def _moved(queue: Queue, key: str, when: datetime | timedelta) -> int:
    """Reschedule all messages with a key. Return their number, or raise the worst error of one that stays."""
    result = queue.reschedule_by_key(key, when)
    if result.failed:
        raise worst(result.failed.values())
    return len(result.done)
