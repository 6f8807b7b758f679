"""The definition of a queue or a log as Cassandra last gave it, for starts while Cassandra is away.

The definition is kept in a small file beside the topic's directory. Each look-up in Cassandra writes the file
again if the definition has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from cqueue.errors import LASTING, NotDone, OutcomeUnknown, Unavailable
from cqueue.runtime import logs
from cqueue.runtime.driver import BlockingDriver
from cqueue.spool.disk import Disk

T = TypeVar("T")

_log = logs.logger(__name__)

SUFFIX: Final = ".json"
OPEN_S: Final = 3.0
"""Seconds to wait for Cassandra where a definition is known: a producer starts soon while it is away."""


def look_up(what: str, known: T | None, look: Callable[[], T], driver: BlockingDriver) -> T:
    """Return the definition that `look` finds, or the known one if Cassandra does not answer.

    Raises:
        Unavailable: Cassandra does not answer, and no definition is known.
    """
    try:
        with driver.limited(driver.deadline_s if known is None else OPEN_S):
            return look()
    except (NotDone, OutcomeUnknown) as exc:
        if isinstance(exc, LASTING):
            raise
        if known is None:
            raise Unavailable(
                f"Cassandra does not answer, and {what} was never opened with this spool: "
                "open it once while Cassandra answers"
            ) from exc
        return known


def remember(root: Path, topic: str, known: dict[str, Any]) -> None:
    """Write the definition durably, unless the file has it already.

    A disk that takes no file is logged and is no error: only a start while Cassandra is away needs the file,
    and what is in the spool is forwarded without it.
    """
    if recall(root, topic, dict) == known:
        return
    path = root / f"{topic}{SUFFIX}"
    try:
        os.close(Disk().create(path, json.dumps(known).encode()))
    except OSError as exc:
        _log.warning("spool_definition_not_kept", path=str(path), error=str(exc))


def recall(root: Path, topic: str, make: Callable[[dict[str, Any]], T]) -> T | None:
    """Return what `make` makes of the definition that was written.

    None if there is no file, or it is damaged: Cassandra is asked then.
    """
    try:
        return make(json.loads((root / f"{topic}{SUFFIX}").read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
