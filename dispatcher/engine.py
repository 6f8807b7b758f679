"""The parts of a dispatcher: put together, started, and ended in the right order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from cqueue.dispatcher.delivery import INTERRUPTED
from cqueue.dispatcher.events import Event
from cqueue.dispatcher.feeder import Feeders
from cqueue.dispatcher.firing import ScheduleStep
from cqueue.dispatcher.handlers import ByTask, resolver_of
from cqueue.dispatcher.handover import Handover, Line
from cqueue.dispatcher.keeper import Keeper
from cqueue.dispatcher.lanes import Lane, Roster, Source, queue_of
from cqueue.dispatcher.loop import Loop
from cqueue.dispatcher.middleware import Middleware
from cqueue.dispatcher.options import Options
from cqueue.dispatcher.running import Runner
from cqueue.dispatcher.settler import Settler
from cqueue.dispatcher.tally import Account, Depths, Stats, total
from cqueue.dispatcher.watcher import Watcher
from cqueue.dispatcher.workers import Crew
from cqueue.doorbell import HintCounts
from cqueue.doorbell.counts import added

INTERRUPT_S: Final = 1.0
"""How long handlers that were interrupted at the end of the grace are waited for."""
AFTERWARDS_S: Final = 2.0
"""How long a stop whose grace is over goes on storing what was decided."""
UNSETTLED: Final = 10_000
"""Settlements not yet stored (or four backlogs of them, if that is more), before no more is received."""
LOOK_S: Final = 0.02


class Engine:
    """Receives, runs handlers, and settles, from `start` to `wind_down`.

    Args:
        sources: the queues, each once.
        handler, middleware, options: as `Dispatcher` takes them.
        account: told what happens.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        handler: Any,
        *,
        middleware: Sequence[Middleware],
        options: Options,
        account: Account,
    ) -> None:
        self.options = options
        self.resolver = resolver_of(handler)
        ledgers = [queue_of(source).schedules.ledger for source in sources]
        self.settler = Settler(options, middleware, account)
        self.runner = Runner(
            account,
            middleware,
            ScheduleStep(ledgers),
            self.settler.settle,
            unknown_task_wait=options.unknown_task_wait,
        )
        self.roster = Roster(
            self._room,
            options.poll_interval.total_seconds(),
            options.longest_poll_s(len(sources), queue_of(sources[0]).default_max_poll),
        )
        self.handover = Handover(
            Line(options.threads, options.backlog),
            Line(options.coroutines, options.backlog),
            call_loop=lambda: self.loop.call(),  # noqa: PLW0108 - made below
            feed=self.roster.feed,
        )
        self.crew = Crew(self.handover, self.runner)
        self.loop = Loop(self.handover, self.runner)
        self.keeper = Keeper(self.handover, self.runner, self._watch)
        self.feeders = Feeders(self.roster, self.handover, self.runner, self.resolver, hold=self.keeper.keep)
        self.depths = Depths(map(queue_of, sources))
        self.watcher = Watcher(ledgers, beside=self.depths.look)

    def start(self, lanes: Sequence[Lane]) -> None:
        """Start all threads, to receive by these lanes."""
        self.mark_busy()
        self.crew.start()
        self.loop.start()
        self.keeper.start()
        self.watcher.start()
        for lane in lanes:
            self.roster.enter(lane)
        self.feeders.start(self.options.consumers)
        self.runner.account.say(
            Event.STARTED, queues=len({lane.name for lane in lanes}), threads=self.options.threads
        )

    def make_lanes(self, sources: Sequence[Source]) -> list[Lane]:
        """A lane for each queue; where there are fewer queues than consumers, more of them."""
        each = max(1, self.options.consumers // len(sources))
        rest = self.resolver.rest if isinstance(self.resolver, ByTask) else None
        kinds = {rest.is_async} if rest is not None else set()
        lanes: list[Lane] = []
        try:
            for source in sources:
                of = min(each, queue_of(source).config.shards)
                for number in range(of):
                    lanes.append(lane := Lane(source, self.roster, self.options, number=number, of=of))
                    lane.kinds |= kinds
                    lane.learn()
        except BaseException:
            for lane in lanes:
                lane.consumer.close()
            raise
        return lanes

    # ── looking ──

    def mark_busy(self) -> None:
        """What was sent until now is to be looked for before `is_drained`."""
        self.roster.busy_s = time.monotonic()

    def is_drained(self) -> bool:
        """Whether nothing is due in any queue, and all is settled; what can say so is polled at once."""
        if self.handover.waiting or self.handover.running or self.settler.pending:
            self.mark_busy()
            return False
        return self.roster.is_quiet()

    def stats(self, state: str) -> Stats:
        """What was done, and what is being done."""
        counts = self.runner.account.by_queue([lane.name for lane in self.roster.lanes])
        handover, trouble = self.handover, self.feeders.trouble
        return Stats(
            total=total(counts),
            queues=counts,
            running=handover.running,
            unstarted=handover.waiting,
            unsettled=self.settler.pending,
            state=state,
            failing=trouble.subjects,
            stuck=trouble.stuck,
            hints=self._hints(),
        )

    def _hints(self) -> HintCounts:
        """Of all clients that its queues belong to."""
        return added({id(lane.sender): lane.queue.hints for lane in self.roster.lanes}.values())

    def quarantined(self) -> dict[str, int]:
        """How many damaged rows this process has met, by queue or log; "" for rows that are of neither."""
        stores = {lane.consumer.driver.store for lane in self.roster.lanes}
        found: Counter[str] = Counter()
        for store in stores:
            for owner, rows in store.quarantine.counts().items():
                found[owner.partition("@")[0]] += rows
        return dict(found)

    @property
    def threads(self) -> list[threading.Thread]:
        """Those that live as long as it runs; workers may be replaced."""
        return [self.keeper.thread, self.watcher.thread, *self.feeders.threads]

    # ── what the parts ask ──

    def _room(self, lane: Lane, coming: int) -> int:
        """How many messages a lane may receive now."""
        if self.settler.pending > max(UNSETTLED, 4 * self.options.backlog):
            return 0
        return self.handover.room(lane, self.options.batch_size, coming)

    def _watch(self) -> None:
        self.loop.watch(time.monotonic())
        self.crew.watch(time.monotonic())

    # ── the end ──

    def wind_down(self, left_s: Callable[[], float]) -> None:
        """Receive no more, give back what was not started, wait for handlers, settle, and let go.

        left_s: seconds of the grace that are left, by the latest wish.
        """
        handover, account = self.handover, self.runner.account
        account.say(Event.STOPPING, running=handover.running, unstarted=handover.waiting)
        self.runner.stopping.set()
        self.roster.close()
        self.watcher.close()
        self.runner.give_back(handover.close())
        while not handover.wait_calm(min(LOOK_S, max(0.0, left_s()))) and left_s() > 0:
            pass
        if handover.running:
            self._interrupt()
        afterwards_s = max(AFTERWARDS_S, left_s())
        self.feeders.join(min(afterwards_s, AFTERWARDS_S))
        settled = self.settler.flush(afterwards_s)
        self.keeper.close()
        self.settler.close()
        self.loop.close(INTERRUPT_S)
        closer = threading.Thread(target=self.feeders.close_lanes, name="cqueue-closer", daemon=True)
        closer.start()
        closer.join(AFTERWARDS_S)
        account.say(Event.STOPPED, unsettled=0 if settled else self.settler.pending)

    def _interrupt(self) -> None:
        """End what runs; give back what cannot be ended, as the process is about to end it."""
        self.loop.interrupt_all()
        until_s = time.monotonic() + INTERRUPT_S
        while time.monotonic() < until_s:
            self.crew.interrupt_all(time.monotonic())  # again: one may just have been about to begin
            if self.handover.wait_calm(LOOK_S):
                return
        for delivery in [*self.crew.running(), *self.handover.coroutines.running.copy().values()]:
            self.runner.give_up(delivery, INTERRUPTED, Event.ABANDONED)
