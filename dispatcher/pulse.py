"""Whether a dispatcher moves: what `/livez` and systemd's watchdog go by.

Only what waits for nobody is looked at. A handler may take hours, and an ack may wait for Cassandra; but a
thread that has ended, or a poll that does not come back although every call in it has a time limit, will
not get better without a new process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cqueue.dispatcher.health import Signs

if TYPE_CHECKING:
    from cqueue.dispatcher.dispatcher import Dispatcher

VITAL: Final = ("cqueue-feeder", "cqueue-keeper", "cqueue-conductor", "cqueue-watcher")
"""Names of threads that live as long as the dispatcher runs; those of workers may be replaced."""


class Pulse:
    """Made right after the dispatcher's start, when all of its threads live.

    Args:
        clock: that of the dispatcher.
    """

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._vital = [thread for thread in threading.enumerate() if thread.name.startswith(VITAL)]

    def signs(self) -> Signs:
        """What can be seen now."""
        state = self._dispatcher.state
        dead = [thread.name for thread in self._vital if not thread.is_alive()] if state == "running" else []
        names = {lane.name for lane in self._dispatcher.lanes}
        stats = self._dispatcher.stats()
        failing = bool(names) and names.issubset(stats.failing)
        return Signs(state, tuple(dead), self._stalled_s(), failing=failing, stuck=stats.stuck)

    def _stalled_s(self) -> float:
        """For how long the slowest poll has been under way."""
        now_s = self._clock()
        return max((now_s - lane.began_s for lane in self._dispatcher.lanes if not lane.ticket), default=0.0)
