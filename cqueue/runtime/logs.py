"""Logging: structlog loggers, with stable event names and structured fields.

An error that the application raises may quote a message in its text. So the text of an error is logged only
if the library has written it, or the application allows it; the class and the frames always are.
"""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from cqueue.errors import CqueueError

DISPATCHER: Final = "cqueue.dispatcher"
"""The logger of dispatchers, schedules and tasks."""
TRACEBACKS: Final = "cqueue.tracebacks"
"""Name of a logger whose level is a switch. DEBUG: every failure is logged with its traceback. Else: only
failures that are not tried again."""
_CAUSED: Final = "The above exception was the direct cause of the following exception:"
_DURING: Final = "During handling of the above exception, another exception occurred:"
_HERE: Final = str(Path(__file__).parents[1]) + os.sep


def logger(name: str) -> Any:
    """Return a structlog logger. Its lines go to the standard library unless structlog is configured.

    It asks that at each line: a logger that a module makes at its import is older than any configuration.
    """
    return _Late(name)


class _Late:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_made(self._name), attribute)


def _made(name: str) -> Any:
    # With it come rich and Pygments: a third of the time in which a program that logs nothing connects.
    import structlog  # noqa: PLC0415

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


def is_ours(error: BaseException) -> bool:
    """Return whether this library has written and raised an error, so that its text may be logged.

    A handler may raise the library's classes with a text of its own. So the frame that raised counts as well.
    """
    if not isinstance(error, CqueueError):
        return False
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return frames is None or frames.tb_frame.f_code.co_filename.startswith(_HERE)


def describe(error: BaseException, *, texts: bool | None = None) -> str:
    """Return an error in one line: its class, and up to 300 characters of the first line of its text.

    texts: True: with the text. False: the class alone, because the text may quote a message. None: with the
        text if the class is the library's. An error of the operating system has its number's text always.
    """
    if texts is None:
        texts = isinstance(error, CqueueError)
    said = text_of(error) if texts else _of_system(error)
    text = said.strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """Return an error's text; an application's error may fail to make one."""
    try:
        return str(error)
    except Exception as exc:  # noqa: BLE001 - as above
        return f"its text cannot be made: {type(exc).__name__}"


def _of_system(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if isinstance(number, int) else ""


def trace(
    error: BaseException, *, is_final: bool, said: str | None = None, texts: bool = False
) -> dict[str, Any]:
    """Return the log field with an error's traceback, or no field if the traceback is not to be logged.

    Args:
        error: the error.
        is_final: the failed call is not tried again, so its traceback is always logged.
        said: the traceback's last line; None: as `describe` says.
        texts: the traceback has the texts of all errors in it; otherwise only those of the library's own.
    """
    if not is_final and not logging.getLogger(TRACEBACKS).isEnabledFor(logging.DEBUG):
        return {}
    if texts:
        return {"exc_info": (type(error), error, own_frames(error))}
    return {"exception": frames_of(error, said or describe(error))}


def frames_of(error: BaseException, said: str) -> str:
    """Return an error and its causes as a traceback without the texts of the application's errors.

    said: the traceback's last line.
    """
    parts: list[str] = []
    seen: set[int] = set()
    one: BaseException | None = error
    link = ""  # from the error before
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        frames = "".join(traceback.format_tb(own_frames(one)))
        what = said if one is error else describe(one, texts=is_ours(one))
        head = "Traceback (most recent call last):\n" if frames else ""
        parts += (link, f"{head}{frames}{what}")
        cause, context = one.__cause__, None if one.__suppress_context__ else one.__context__
        link, one = (_DURING, context) if cause is None else (_CAUSED, cause)
    return "\n\n".join(reversed(parts[1:]))


def own_frames(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the frames of this package above the application's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_HERE):
        frames = frames.tb_next
    return frames or error.__traceback__
