"""Log the doorbell's failures, each kind once, because a failure costs only latency."""

from __future__ import annotations

from cqueue.runtime.logs import logger


class FailureLog:
    """The kinds of failure that were logged already."""

    def __init__(self) -> None:
        self._logged = set[str]()

    def log_once(self, event: str, error: Exception) -> None:
        """Log a failure, if it is the first of its kind."""
        if event not in self._logged:
            self._logged.add(event)
            logger("cqueue.doorbell").warning(event, error=str(error), then="messages are found by polling")
