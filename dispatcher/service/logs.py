"""Logging of a daemon: every line goes through structlog, also those of the driver and other libraries.

Events are stable names with fields, so that a query for `message_dead` keeps working. The daemon's own names
stand here. Of a message only the id is ever logged.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import sysconfig
import time
from enum import Enum
from typing import Any, Final, TextIO

import structlog

from cqueue.message import short
from cqueue.runtime.logs import DISPATCHER, TRACEBACKS

DRIVER: Final = "cassandra"
"""Logger of the Cassandra driver."""
REPEAT_S: Final = 60.0
"""Seconds in which a line of the driver about one node and one error is shown once. It logs each attempt to
reconnect to a node that is away, every five seconds.
"""
_STDLIB: Final = sysconfig.get_path("stdlib") + os.sep
_FRAMES: Final = re.compile(rf'(?:  File "{re.escape(_STDLIB)}(?!site-packages).*\n(?:    .*\n)*)+')
"""Frames of Python's own library that follow one another in a traceback."""


class Format(Enum):
    """Format of log lines."""

    CONSOLE = "console"
    JSON = "json"


class DaemonEvent:
    """Names of the daemon's events; `Event` has those of messages and handlers."""

    STARTING = "daemon_starting"
    READY = "daemon_ready"
    STOPPING = "daemon_stopping"
    STOPPED = "daemon_stopped"
    GRACE_PASSED = "daemon_grace_passed"
    LEFT = "daemon_left"
    NOT_CONNECTED = "daemon_not_connected"
    STALLED = "daemon_stalled"
    HEALTH = "health_listening"
    HEARTBEAT_FAILED = "heartbeat_failed"
    MEMBERS = "members_changed"
    CHILD_STARTED = "child_started"
    CHILD_READY = "child_ready"
    CHILD_ENDED = "child_ended"
    CHILD_FAILED = "child_failed"
    CHILD_STALLED = "child_stalled"
    RELOADING = "reloading"


def configure(style: Format, *, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Send all log lines of this process, of any library, to standard error in one format.

    Args:
        style: JSON, one object a line; or text for people. In text every failure has its traceback; in JSON
            only the final failure of a message has. On a terminal, text has the local time, short ids of
            messages, and no frames of Python's own library, unless `verbose`.
        verbose: log DEBUG of this library with every traceback, and INFO of the driver; otherwise INFO and
            WARNING, and what the driver repeats of a node once a minute.
        stream: instead of standard error.
    """
    out = stream or sys.stderr
    is_closed = out is None  # as by `2>&-`
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a test, or an application, may configure again
    )
    handler: logging.Handler = logging.NullHandler() if is_closed else logging.StreamHandler(out)
    is_terminal = not is_closed and out.isatty()
    colors = is_terminal and not os.environ.get("NO_COLOR")
    handler.setFormatter(_formatter(style, colors=colors, brief=is_terminal and not verbose))
    if not verbose:
        handler.addFilter(_Repeats())
    if style is Format.CONSOLE and not verbose:
        handler.addFilter(_without_driver_traceback)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("cqueue").setLevel(logging.DEBUG if verbose else logging.INFO)
    shown = logging.DEBUG if style is Format.CONSOLE else logging.NOTSET
    logging.getLogger(TRACEBACKS).setLevel(shown)
    logging.getLogger(DRIVER).setLevel(logging.INFO if verbose else logging.WARNING)
    logging.captureWarnings(capture=True)


def _without_driver_traceback(record: logging.LogRecord) -> bool:
    """Leave the traceback out of a record of the driver, which logs one for each node that is away; not the
    error.
    """
    if record.name.startswith(DRIVER) and record.exc_info:
        record.msg, record.args = "%s %s", (record.getMessage(), record.exc_info[1])
        record.exc_info = None
    return True


class _Repeats(logging.Filter):
    """Leaves out what the driver has said of the same node, with the same error, a moment ago."""

    def __init__(self) -> None:
        super().__init__()
        self._told_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != DRIVER:
            return True
        told = record.args if isinstance(record.args, tuple) else ()
        # All but numbers, which are the pause until the next attempt, or the connection
        kind = f"{record.msg} {[str(one) for one in told if not isinstance(one, (int, float))]}"
        kind += str(record.exc_info[1]) if record.exc_info else ""
        now_s = time.monotonic()
        self._told_s = {one: at_s for one, at_s in self._told_s.items() if now_s - at_s < REPEAT_S}
        is_new = kind not in self._told_s
        self._told_s.setdefault(kind, now_s)
        return is_new


def logger(**fields: Any) -> Any:
    """Return a logger of the daemon that adds these fields to every line."""
    return structlog.get_logger(DISPATCHER).bind(**fields)


def _shared() -> list[Any]:
    """Return the processors that complete a line of any origin."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _formatter(style: Format, *, colors: bool, brief: bool) -> logging.Formatter:
    first: list[Any] = []
    if style is Format.JSON:
        last: list[Any] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ]
    else:
        # structlog's default prints local variables, which hold arguments and secrets
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
        if brief:
            local = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
            first = [local, structlog.processors.format_exc_info, _brief]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *first, *last],
    )


def _brief(_logger: Any, _method: str, line: dict[str, Any]) -> dict[str, Any]:
    """Shorten a line for a terminal, where a line and its failure are to be seen at once."""
    if line.get("logger") == DISPATCHER:
        del line["logger"]
    if isinstance(id_ := line.get("message_id"), str):
        line["message_id"] = short(id_)
    if isinstance(text := line.get("exception"), str):
        line["exception"] = _FRAMES.sub(_counted, text)
    return line


def _counted(frames: re.Match[str]) -> str:
    return f"  … {frames[0].count('  File ')} frames of Python's library\n"
