"""What a daemon says: every line through structlog, the driver's and the libraries' lines as well.

Events are stable names with fields, so that a query for `message_dead` goes on working; the names that
the daemon itself uses stand here. Nothing of a message but its id is ever among the fields.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum
from typing import Any, Final, TextIO

import structlog

from cqueue.logs import TRACEBACKS

LOGGER: Final = "cqueue.dispatcher"
DRIVER: Final = "cassandra"


class Format(Enum):
    """How lines look."""

    CONSOLE = "console"
    JSON = "json"


class Event:
    """Names of what the daemon logs; messages and handlers have theirs in the dispatcher."""

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
    """Send all lines of this process, by whatever library, through one pipe to standard error.

    Args:
        style: one line of JSON each, or for people.
            People see the traceback of every failure; in JSON it is in the line of the last one only.
        verbose: DEBUG of this library with every traceback, INFO of the driver; otherwise INFO and WARNING.
        stream: instead of standard error.
    """
    out = stream or sys.stderr
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
    handler = logging.StreamHandler(out)
    handler.setFormatter(_formatter(style, colors=out.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("cqueue").setLevel(logging.DEBUG if verbose else logging.INFO)
    shown = logging.DEBUG if style is Format.CONSOLE else logging.NOTSET
    logging.getLogger(TRACEBACKS).setLevel(shown)
    logging.getLogger(DRIVER).setLevel(logging.INFO if verbose else logging.WARNING)
    logging.captureWarnings(capture=True)


def logger(**fields: Any) -> Any:
    """A logger of the daemon that adds these fields to every line."""
    return structlog.get_logger(LOGGER).bind(**fields)


def _shared() -> list[Any]:
    """What is added to a line wherever it comes from."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def _formatter(style: Format, *, colors: bool) -> logging.Formatter:
    if style is Format.JSON:
        last: list[Any] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ]
    else:
        # The usual formatter prints the values of local variables, which are arguments and secrets
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.ExtraAdder()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
