"""Ask before something that cannot be undone; a script, which cannot be asked, gives --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cqueue.cli.context import CliContext
from cqueue.cli.failures import ExitCode
from cqueue.errors import BadInput


def check_prompt(cli: CliContext, *, yes: bool) -> None:
    """Refuse a command that would have to ask and cannot.

    Raises:
        BadInput: there is nobody to ask.
    """
    if not yes and (cli.json or sys.stdin is None or not sys.stdin.isatty()):
        why = "with --json there is no prompt" if cli.json else "without a terminal there is no prompt"
        raise BadInput(f"This command asks before it acts, and {why}. Add --yes to confirm.")


def _before_all(ctx: typer.Context, yes: bool) -> bool:  # noqa: FBT001 - called by typer
    check_prompt(ctx.ensure_object(CliContext), yes=yes)
    return yes


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.", callback=_before_all)]
"""Checked before the command connects."""
YesLater = Annotated[bool, "--yes -y", "Do not ask."]
"""Checked by the command, which looks for another fault in its options first."""


def confirm(
    cli: CliContext,
    question: str,
    *,
    yes: bool,
    otherwise: str = "Nothing was deleted.",
) -> None:
    """Ask on the terminal; leave if the answer is no.

    What the question names has been found before: nobody should have to agree to a name that is mistyped.
    """
    check_prompt(cli, yes=yes)
    if yes:
        return
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
