"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.values import parse_duration, parse_moment


class Log(Enum):
    """The format of log lines."""

    CONSOLE = "console"
    JSON = "json"


LogFormat = Annotated[
    Log | None,
    typer.Option("--log", help="By default console on a terminal, json elsewhere.", show_default=False),
]


def log_format(cli: CliContext, log: Log | None) -> Log:
    """Return the format that was asked for; by default console on a terminal, JSON elsewhere."""
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
"""`--json` behind the command as well, where people write it; its callback sets `CliContext.json`."""
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
Headers = Annotated[
    list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
]
Priority = Annotated[int, typer.Option(metavar="N", help="0 (most urgent, the default) to 9.")]
TaskArgs = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="The task's arguments: an array, or an object of them by name."),
]
BodyFile = Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The body is a file.")]
ExistOk = Annotated[
    bool, typer.Option("--exist-ok", help="Succeed if it exists with the same configuration.")
]


def duration(text: str, *names: str) -> Any:
    """Make an option that takes a duration, such as 30s; text: its help."""
    return typer.Option(*names, help=text, metavar="DURATION", parser=parse_duration, show_default=False)


def moment(text: str, *names: str) -> Any:
    """Make an option that takes a time with its zone; text: its help."""
    return typer.Option(*names, help=text, metavar="TIME", parser=parse_moment, show_default=False)


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given, which are not None."""
    return {name: value for name, value in options.items() if value is not None}
