"""What is wrong with the doorbell, for the log: each kind once, as it costs latency and nothing else."""

from __future__ import annotations

from cqueue.logs import logger


class Trouble:
    """Kinds of trouble that were logged."""

    def __init__(self) -> None:
        self._told = set[str]()

    def tell(self, event: str, error: Exception) -> None:
        """Log it, if it is the first of its kind."""
        if event not in self._told:
            self._told.add(event)
            logger("cqueue.doorbell").warning(event, error=str(error), then="messages are found by polling")
