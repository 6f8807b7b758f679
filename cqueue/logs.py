"""Where this package logs: through structlog, with stable event names and fields."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import structlog

DISPATCHER: Final = "cqueue.dispatcher"
"""The logger of dispatchers, schedules and tasks."""
TRACEBACKS: Final = "cqueue.tracebacks"
"""Where this logger's level is DEBUG, every failure is logged with its traceback; else only what is final."""
_HERE: Final = str(Path(__file__).parent) + os.sep


def logger(name: str) -> Any:
    """A structlog logger; where structlog is not configured, lines go to the standard library."""
    if structlog.is_configured():
        return structlog.get_logger(name)
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def describe(error: BaseException) -> str:
    """Return an error in one line: its class, and up to 300 characters of the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def trace(error: BaseException, *, is_final: bool) -> dict[str, Any]:
    """The field with an error's traceback, where it is to be logged; no field where it is not.

    is_final: it is not tried again, so that there will be no better time to tell it.
    """
    if not is_final and not logging.getLogger(TRACEBACKS).isEnabledFor(logging.DEBUG):
        return {}
    return {"exc_info": (type(error), error, own_frames(error))}


def own_frames(error: BaseException) -> TracebackType | None:
    """Its traceback, from where this package called the application's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_HERE):
        frames = frames.tb_next
    return frames or error.__traceback__
