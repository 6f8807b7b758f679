"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from cqueue.cli.context import CliContext


class Log(Enum):
    """How log lines look."""

    CONSOLE = "console"
    JSON = "json"


LogFormat = Annotated[
    Log | None,
    typer.Option("--log", help="By default console on a terminal, json elsewhere.", show_default=False),
]


def log_format(cli: CliContext, log: Log | None) -> Log:
    """The format that was asked for, or what suits where the lines go."""
    if log is not None:
        return log
    return Log.CONSOLE if sys.stderr.isatty() and not cli.json else Log.JSON


def _print_json(ctx: typer.Context, wanted: bool) -> bool:  # noqa: FBT001 - called by typer
    if wanted:
        ctx.ensure_object(CliContext).json = True
    return wanted


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
MessageIdText = Annotated[
    str, typer.Argument(metavar="ID", help="The message's id, whole or short.", show_default=False)
]
InQueue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help="Where to look for a short id; by default everywhere."),
]
LogName = Annotated[str, typer.Argument(metavar="LOG", help="The log's name.", show_default=False)]
Json = Annotated[
    bool, typer.Option("--json", help="Print results as JSON, as `cqueue --json` does.", callback=_print_json)
]
"""`--json` behind the command as well, where people write it. The callback does all."""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AppDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        exists=True,
        file_okay=False,
        resolve_path=True,
        help="Look for MODULE there; by default in the current directory.",
    ),
]
