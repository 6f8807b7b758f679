"""The log lines of commands that run until a signal ends them."""

from __future__ import annotations

import sys
from typing import Annotated

from cqueue.cli.context import CliContext
from cqueue.dispatcher.service import logs

LogFormat = Annotated[logs.Format | None, "--log", "By default console on a terminal, json elsewhere."]


def configure(cli: CliContext, style: logs.Format | None) -> logs.Format:
    """Send log lines to standard error in the format that was asked for; return the format."""
    if style is None:
        people = sys.stderr is not None and sys.stderr.isatty() and not cli.json
        style = logs.Format.CONSOLE if people else logs.Format.JSON
    logs.configure(style, verbose=cli.verbose)
    return style
