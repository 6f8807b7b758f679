"""Keeps what is held: extends the timeouts of what runs, and gives back what waits too long.

At half of a lease's timeout it is decided what becomes of it. What is running, or whose ack is not yet
stored, has the lease extended, for the whole lease because that is one row. What waits to be started is
given back before, so that an idle process elsewhere may have it.
What that costs is paid by threads of a pool, as each may wait long for Cassandra.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta

from cqueue.dispatcher.delivery import Hold
from cqueue.dispatcher.events import Event, Trouble
from cqueue.dispatcher.handover import Handover
from cqueue.dispatcher.running import Runner
from cqueue.errors import CqueueError

EXTENDERS = 4
"""Threads that extend timeouts, as each call may wait long for Cassandra."""
TICK_S = 0.1
TICK_MS = 100
TICKS_TO_FORGET = 10
RETRY_MS = 1000
"""Pause after an extension that failed."""


def is_halfway(hold: Hold, visibility_ms: int, now_ms: int) -> bool:
    """Whether something is to be done about a hold: half of its timeout has passed."""
    return not hold.busy and now_ms >= max(hold.again_ms, hold.lease.due_ms - visibility_ms // 2)


class Keeper:
    """Looks through all holds ten times a second, on a thread of its own.

    Args:
        handover: says who waits to be started.
        runner: gives deliveries back to their queues, and is told what happens.
        watch: called at each tick, for handlers that take too long.
    """

    def __init__(self, handover: Handover, runner: Runner, watch: Callable[[], None]) -> None:
        self._handover = handover
        self._runner = runner
        self._account = runner.account
        self._watch = watch
        self._executor: Executor = ThreadPoolExecutor(EXTENDERS, thread_name_prefix="cqueue-extend")
        self._trouble = Trouble(runner.account, Event.EXTEND_FAILED, Event.EXTEND_RESUMED)
        self._new: deque[Hold] = deque()
        self.holds: list[Hold] = []
        self._ticks = 0
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="cqueue-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def close(self) -> None:
        """Keep nothing from now on."""
        self._stop.set()
        if self.thread.is_alive():
            self.thread.join(1.0)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def keep(self, hold: Hold) -> None:
        """Look after it from now on. Called on any thread."""
        self._new.append(hold)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._watch()
                self.tick()
            except Exception as exc:  # noqa: BLE001 - a keeper that ends would lose every long handler's lease
                self._account.say(Event.BROKEN, error=exc)

    def tick(self) -> None:
        """One look at everything that is held."""
        while self._new:
            self.holds.append(self._new.popleft())
        self._ticks += 1
        if self._ticks % TICKS_TO_FORGET == 0:
            for hold in self.holds:
                hold.forget()
        now_ms: dict[str, int] = {}
        self.holds = [hold for hold in self.holds if self._look(hold, now_ms)]

    def _look(self, hold: Hold, clock_ms: dict[str, int]) -> bool:
        """Do what a hold needs; whether to go on with it."""
        lane = hold.lane
        if hold.is_over:
            if hold.lease.lost:
                self._lost(hold)
            hold.end()
            return False
        if lane.name not in clock_ms:
            clock_ms[lane.name] = lane.now_ms()
        now_ms = clock_ms[lane.name]
        if is_halfway(hold, round(lane.visibility_s * 1000), now_ms):
            self._halftime(hold, now_ms)
        return True

    def _halftime(self, hold: Hold, now_ms: int) -> None:
        if stale := self._handover.withdraw(hold.undecided):
            self._runner.give_back(stale)
        hold.forget()
        hold.again_ms = now_ms + TICK_MS
        if any(one.message.is_held and not one.is_left for one in hold.deliveries):
            hold.busy = True
            self._executor.submit(self.extend, hold)

    def extend(self, hold: Hold) -> None:
        """Extend the timeout of a hold, on a thread of the pool. Never raises."""
        lane = hold.lane
        try:
            deliveries = hold.deliveries
            if not deliveries:  # the last of them was settled meanwhile
                return
            lane.consumer.extend(deliveries[0].message, timedelta(seconds=lane.visibility_s))
        except CqueueError as exc:
            self._failed(hold, exc)
        except Exception as exc:  # noqa: BLE001 - nobody looks at the future
            self._account.say(Event.BROKEN, error=exc)
        else:
            self._trouble.succeeded(lane.name, queue=lane.name)
        finally:
            hold.busy = False

    def _failed(self, hold: Hold, error: CqueueError) -> None:
        """The next look tells a lost lease, and one that is settled meanwhile; else it is tried again."""
        if hold.lease.is_held:
            self._trouble.failed(hold.lane.name, error, queue=hold.lane.name)
        try:
            hold.again_ms = hold.lane.now_ms() + RETRY_MS
        except CqueueError:
            return

    def _lost(self, hold: Hold) -> None:
        """Start nothing of it, and tell handlers that run; acks are sent all the same."""
        undecided = hold.undecided
        self._handover.withdraw(undecided)
        for delivery in undecided:
            self._account.lost(delivery)
