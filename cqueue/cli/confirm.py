"""Ask before something that cannot be undone; a script, which cannot be asked, gives --yes."""

from __future__ import annotations

import sys

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.errors import BadInput


def confirm(
    cli: CliContext,
    question: str,
    *,
    yes: bool,
    otherwise: str = "Nothing was deleted.",
    connects: bool = True,
) -> None:
    """Ask on the terminal; leave if the answer is no, or if there is nobody to ask.

    connects: the command goes to a cluster, which is named before the question.

    Raises:
        BadInput: there is nobody to ask.
        ConfigError: what says where to connect is wrong.
    """
    if yes:
        return
    if connects:
        cli.settings()  # says where the command goes, if nobody has named a cluster
    if cli.json or sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(f"{question} This is not a terminal, so there is no prompt. Add --yes to confirm.")
    left: Exception = typer.Exit(ExitCode.CHECK_FAILED)
    try:
        if typer.confirm(question, err=True):
            return
    except typer.Abort as exc:
        cli.after_ctrl_c()
        if isinstance(exc.__context__, KeyboardInterrupt):  # otherwise by Ctrl-D, which is a no
            left = exc
    cli.remark(otherwise)
    raise left
