"""Logging: structlog loggers, with stable event names and structured fields."""

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
"""Name of a logger whose level is a switch. DEBUG: every failure is logged with its traceback. Else: only
failures that are not tried again."""
_HERE: Final = str(Path(__file__).parents[1]) + os.sep


def logger(name: str) -> Any:
    """Return a structlog logger. Its lines go to the standard library unless structlog is configured."""
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
    """Return the log field with an error's traceback, or no field if the traceback is not to be logged.

    is_final: the failed call is not tried again, so its traceback is always logged.
    """
    if not is_final and not logging.getLogger(TRACEBACKS).isEnabledFor(logging.DEBUG):
        return {}
    return {"exc_info": (type(error), error, own_frames(error))}


def own_frames(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the frames of this package above the application's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_HERE):
        frames = frames.tb_next
    return frames or error.__traceback__
