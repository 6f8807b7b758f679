"""What the queues of a dispatcher hold, for `/metrics`.

The figures are estimated by a thread that looks after schedules anyway, twice a minute, and not when somebody
scrapes: a monitor that asks often, or an outage of Cassandra, holds up no scrape.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cqueue.dispatcher.events import describe, logger

if TYPE_CHECKING:
    from cqueue.queue import Queue


@dataclass(frozen=True, slots=True)
class Depth:
    """What a queue held at the last look, estimated.

    Attributes:
        ready: messages due and held by nobody.
        in_flight: messages that consumers hold, of all processes.
        dead: letters in its dead-letter queue; None of a dead-letter queue.
        oldest_age_s: for how long the oldest message has been ready; 0 if none is.
    """

    ready: int
    in_flight: int
    dead: int | None
    oldest_age_s: float


class Depths:
    """The latest figures by queue, once somebody wants them."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.wanted = False
        self.latest: dict[str, Depth] = {}
        self._queues = tuple(queues)

    def look(self) -> None:
        """Estimate anew. A queue that cannot be read has no figures: old ones would look like news."""
        if self.wanted:
            self.latest = {
                queue.name: depth for queue in self._queues if (depth := _depth(queue)) is not None
            }


def _depth(queue: Queue) -> Depth | None:
    try:
        stats = queue.stats()
        age_s = (queue.now - stats.oldest).total_seconds() if stats.oldest is not None else 0.0
    except Exception as exc:  # noqa: BLE001 - the thread must outlive whatever one look meets
        logger().info("depth_unknown", queue=queue.name, error=describe(exc))
        return None
    return Depth(stats.ready, stats.claimed, stats.dead, max(0.0, age_s))
