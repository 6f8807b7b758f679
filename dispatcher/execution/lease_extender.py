"""Extends the leases of messages that run, and gives back messages that wait too long.

At half of a lease's timeout this module decides. If a message of the lease runs, or its ack is not stored
yet, the lease is extended: the whole lease, because it is one row. Messages that still wait to be started are
given back first, so that an idle process elsewhere can take them. Other threads do the calls, because
each call may wait long for Cassandra.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from cqueue.dispatcher.execution.backlog import Backlog
from cqueue.dispatcher.execution.delivery import Delivery, LeasedBatch
from cqueue.dispatcher.execution.events import Event, Trouble
from cqueue.dispatcher.execution.runner import Runner
from cqueue.errors import CqueueError, NotDone
from cqueue.runtime.batcher import calls

EXTENDERS = 4
"""Threads that extend leases. Four, so that one slow call delays no other queue's lease for long."""
TICK_S = 0.1
"""Seconds between two checks of all leases: short beside the shortest useful visibility timeout."""
TICKS_TO_FORGET = 10
"""Checks between two sweeps that drop settled deliveries: once a second."""
RETRY_MS = 1000
"""Ms between a failed extension and the next attempt: a second gives several attempts within half a timeout.
"""


def is_halfway(batch: LeasedBatch, visibility_ms: int, now_ms: int) -> bool:
    """Return whether half of a batch's timeout has passed, and an extension may be tried now."""
    return not batch.busy and now_ms >= max(batch.again_ms, batch.lease.due_ms - visibility_ms // 2)


class LeaseExtender:
    """Checks all leased batches ten times a second, on a thread of its own.

    Args:
        backlog: knows which deliveries wait to be started.
        runner: gives deliveries back to their queues, and logs what happens.
        watch: called at each check, for handlers that run too long.
    """

    def __init__(self, backlog: Backlog, runner: Runner, watch: Callable[[], None]) -> None:
        self._backlog = backlog
        self._runner = runner
        self._telemetry = runner.telemetry
        self._watch = watch
        self._extensions = calls("cqueue-extend", at_a_time=EXTENDERS)
        self._trouble = Trouble(runner.telemetry, Event.EXTEND_FAILED, Event.EXTEND_RESUMED)
        self.batches: set[LeasedBatch] = set()  # copied before a look: fetchers add to it
        self._ticks = 0
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="cqueue-lease-extender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def close(self) -> None:
        """Extend no lease from now on."""
        self._stop.set()
        if self.thread.is_alive():
            self.thread.join(1.0)
        self._extensions.close(drop_after_s=0.0, wait_s=0)

    def keep(self, batch: LeasedBatch) -> None:
        """Add a batch to those that are checked. Called on any thread."""
        self.batches.add(batch)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self._watch()
                self.tick()
            except Exception as exc:  # noqa: BLE001 - a lease extender that ends would lose every long handler's lease
                self._telemetry.say(Event.BROKEN, error=exc)

    def tick(self) -> None:
        """Check all batches once."""
        self._ticks += 1
        now_ms: dict[str, int] = {}
        for batch in self.batches.copy():
            if self._ticks % TICKS_TO_FORGET == 0:
                batch.forget()
            if not self._look(batch, now_ms):
                self.batches.discard(batch)

    def _look(self, batch: LeasedBatch, clock_ms: dict[str, int]) -> bool:
        """Do what a batch needs; return whether it needs further checks."""
        poller = batch.poller
        if not batch.lease.is_held:
            if batch.lease.lost:
                self._lost(batch.undecided)
            batch.end()
            return False
        if cancelled := batch.cancelled:
            self._lost(cancelled)
        if poller.name not in clock_ms:
            clock_ms[poller.name] = poller.now_ms()
        now_ms = clock_ms[poller.name]
        if is_halfway(batch, round(poller.visibility_s * 1000), now_ms):
            self._at_half_time(batch)
        return True

    def _at_half_time(self, batch: LeasedBatch) -> None:
        if stale := self._backlog.withdraw(batch.undecided):
            self._runner.give_back(stale)
        batch.forget()
        if any(one.message.is_held and not one.is_left for one in batch.deliveries):
            batch.busy = True
            try:
                self._extensions.submit(partial(self.extend, batch))
            except NotDone as exc:  # the process has too many threads just now, or it stops
                batch.busy = False
                self._failed(batch, exc)

    def extend(self, batch: LeasedBatch) -> None:
        """Extend the lease of a batch, on one of the threads for that. Never raises."""
        poller = batch.poller
        try:
            deliveries = batch.deliveries
            if not deliveries:  # all of them were settled meanwhile
                return
            poller.consumer.extend(deliveries[0].message, timedelta(seconds=poller.visibility_s))
        except CqueueError as exc:
            if not deliveries[0].message.is_cancelled:  # then the rest of the lease is extended
                self._failed(batch, exc)
        except Exception as exc:  # noqa: BLE001 - nobody looks at the future
            self._telemetry.say(Event.BROKEN, error=exc)
        else:
            self._trouble.succeeded(poller.name, queue=poller.name)
        finally:
            batch.busy = False

    def _failed(self, batch: LeasedBatch, error: Exception) -> None:
        """Try again later; the next check notices a lease that was lost or settled meanwhile."""
        if batch.lease.is_held:
            self._trouble.failed(batch.poller.name, error, queue=batch.poller.name)
        try:
            batch.again_ms = batch.poller.now_ms() + RETRY_MS
        except CqueueError:
            return

    def _lost(self, undecided: list[Delivery]) -> None:
        """Start none of these messages, and tell their running handlers. Acks are sent all the same."""
        self._backlog.withdraw(undecided)
        for delivery in undecided:
            self._telemetry.lost(delivery)
