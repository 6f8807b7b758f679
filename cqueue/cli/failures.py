"""Report errors: a message for the user, an exit code for scripts.

0 done; 1 a check failed; 2 wrong usage or input; 3 not done, try again; 4 outcome unknown; 5 ownership lost;
130 interrupted. docs/reference/cli.md lists them for users.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final

from cqueue.cli.context import CliContext, on_stderr, safe_for_terminal
from cqueue.errors import (
    AppendUnknown,
    BadInput,
    CqueueError,
    NotDone,
    OutcomeUnknown,
    OwnershipLost,
    SendUnknown,
)


class ExitCode(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    NOT_DONE = 3
    UNKNOWN = 4
    LOST = 5
    BUG = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130


_CODES: Final = (
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (BadInput, ExitCode.USAGE),
    (NotDone, ExitCode.NOT_DONE),
    (OutcomeUnknown, ExitCode.UNKNOWN),
    (OwnershipLost, ExitCode.LOST),
)
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a disk that takes no more; a closed pipe is typer's matter, with the same exit code."""
_WORST: Final = (ExitCode.UNKNOWN, ExitCode.NOT_DONE, ExitCode.USAGE, ExitCode.LOST, ExitCode.BUG)


def report_failure(exc: BaseException, context: CliContext) -> ExitCode:
    """Print an error, with a traceback only for --verbose or a bug of ours, and return its exit code."""
    code = exit_code(exc)
    with on_stderr():
        _report(exc, context, code)
    return code


def _report(exc: BaseException, context: CliContext, code: ExitCode) -> None:
    if code is ExitCode.INTERRUPTED and not context.json:
        if not context.is_interrupt_told:
            context.after_ctrl_c()
            _write("Interrupted.")
        return
    if context.verbose or code is ExitCode.BUG:
        _write("".join(traceback.format_exception(exc)))
    if context.json:
        _write(json.dumps({**error_fields(exc), "exit_code": int(code)}))
    elif code is ExitCode.BUG:
        _write("This is a bug in cqueue, or an error of the system that it should have understood.")
    else:
        context.err_console.print("Error:", style="bold red", end=" ")
        lines = filter(None, (_text(exc), ids_to_look_for(exc)))
        context.err_console.print(safe_for_terminal("\n".join(lines)))


def exit_code(exc: BaseException) -> ExitCode:
    """Return the exit code of an error."""
    if isinstance(exc, OSError) and exc.errno in _UNWRITABLE:
        return ExitCode.CHECK_FAILED
    return next((code for kind, code in _CODES if isinstance(exc, kind)), ExitCode.BUG)


def worst(errors: Iterable[CqueueError]) -> CqueueError:
    """Return the first error of the worst family: an unknown outcome, then not done, then bad input."""
    return min(errors, key=lambda error: _WORST.index(exit_code(error)))


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return what --json shows of an error."""
    fields: dict[str, Any] = {"error": type(error).__name__, "message": _text(error)}
    return {**fields, "ids": ids} if (ids := _ids_in_question(error)) else fields


def _ids_in_question(error: BaseException) -> tuple[str, ...]:
    """Return the ids of messages or records that may be stored."""
    return error.ids if isinstance(error, SendUnknown | AppendUnknown) else ()


def ids_to_look_for(error: BaseException) -> str:
    """Return a sentence that names the ids of messages or records that may be stored; else nothing."""
    if not (ids := _ids_in_question(error)):
        return ""
    look = "; `cqueue find ID` shows what is there" if isinstance(error, SendUnknown) else ""
    return f"Ids to look for: {', '.join(ids)}{look}."


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return f"The output cannot be written: {error.strerror}. What the command has done stays done."
    return "Interrupted." if isinstance(error, KeyboardInterrupt) else str(error)


def _write(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text + "\n")
