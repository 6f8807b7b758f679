"""What was found out about a queue or a log while Cassandra answered, for starts at which it does not.

It is one small file beside the topic's directory, and never newer than the truth: whoever reaches Cassandra
writes it again if it has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import LASTING, NotDone, OutcomeUnknown, Unavailable

T = TypeVar("T")

SUFFIX: Final = ".json"
OPEN_S: Final = 3.0
"""How long Cassandra is waited for where what is asked is known from an earlier time."""


def look_up(what: str, known: T | None, look: Callable[[], T], driver: BlockingDriver) -> T:
    """What `look` finds, or what is known where Cassandra does not answer.

    Raises:
        Unavailable: it does not answer, and nothing is known.
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
    """Write it durably, if it is not there already."""
    if recall(root, topic) == known:
        return
    path = root / f"{topic}{SUFFIX}"
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        json.dump(known, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    directory = os.open(root, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def recall(root: Path, topic: str) -> dict[str, Any] | None:
    """What was written; None if there is nothing, or it cannot be read."""
    try:
        found = json.loads((root / f"{topic}{SUFFIX}").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
