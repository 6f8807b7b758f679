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
) -> None:
    """Ask on the terminal; leave if the answer is no, or if there is nobody to ask.

    What the question names has been found before: nobody should have to agree to a name that is mistyped.

    Raises:
        BadInput: there is nobody to ask.
    """
    if yes:
        return
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
