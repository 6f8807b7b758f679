"""Which queue is looked at next, and by which of its consumers.

A lane is one consumer of one queue. Feeder threads share all lanes: each takes the one that is longest due
for which there is room. A lane that found nothing waits twice as long each time, so a thousand idle
queues cost a few polls a second; a send in this process makes its queue due at once.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from cqueue.consuming import Consuming
from cqueue.protocol.poll import Share
from cqueue.queue import Queue
from cqueue.store.operations import WideRow

if TYPE_CHECKING:
    from cqueue.dispatcher.options import Options

FAILED_S: Final = 0.2
"""Pause after a receive that failed; doubled up to 5 s."""
LONGEST_FAILED_S: Final = 5.0
QUIET_S: Final = 0.3
"""Longer than somebody else's lock is kept between two claims: a poll after it has seen everything due."""
HANGS_S: Final = 0.5
TIDY_S: Final = 0.3
"""How often a helper that is not needed looks after what it still holds."""
STALE: Final = 8
"""Entries a lane, most of them out of date, before the heap is made anew."""
RECHECK_S: Final = 0.1
"""How often room is looked for again while a lane goes without: handlers may have become quicker."""


@runtime_checkable
class Source(Protocol):
    """What consumers come from: a `cqueue.Queue`, or a recorder of one."""

    def consumer(self, *args: Any, **options: Any) -> Consuming:
        """A consumer."""
        ...


def queue_of(source: Source) -> Queue:
    """The queue itself, under a recorder if there is one."""
    queue: Any = source
    own: Queue = getattr(queue, "queue", queue)
    return own


class Lane:
    """One consumer of one queue, polled by one feeder at a time.

    helper: it looks only while it and another lane of its queue find full batches, or where that one hangs.
        The two keep out of each other's way meanwhile: a claim beside another one's on the same wide row
        costs both of them.
    """

    def __init__(self, source: Source, roster: Roster, options: Options, *, helper: bool) -> None:
        self.queue = queue_of(source)
        self.name = self.queue.name
        self.helper = helper
        self.helpers: list[Lane] = []
        self.main: Lane = self  # whose helper it is
        self.helps = False
        self.share: Share | None = None  # of the queue's wide rows, this process's to look at first
        self.consumer: Consuming = source.consumer(
            poll_interval=options.poll_interval,
            max_poll_interval=max(options.poll_interval, timedelta(seconds=1)),
            wake=lambda: roster.ring(self),
        )
        self.sender = self.consumer.settles_with  # acks of one go together
        self.want = 0
        self.kinds: set[bool] = set()  # whether its handlers were coroutine functions
        self.is_polled = False  # a receive is under way, since then:
        self.began_s = 0.0
        self.lively = True  # the last poll found something
        self.is_extra = False  # the next one is made at once, for what is known to be there
        self.due_s = self.planned_s = 0.0  # when it is due, and when it would be had nobody rung
        self.ticket = 0  # of its latest entry in the roster; 0 while it is being polled
        self.rung = False
        self.pause_s = 0.0
        self.failures = 0
        self.visibility_s = 30.0
        self.max_attempts = 0
        self.shards = 1
        self.empty_since_s: float | None = None
        """When the first poll began of those that found nothing; None after one that found some."""
        self.empty_until_s = 0.0

    def divide(self) -> None:
        """Let its consumer look at its part of the wide rows first: what other lanes do not look at."""
        lanes = [self.main, *(lane for lane in self.main.helpers if lane.helps)]
        self.consumer.share = self.share
        if len(lanes) > 1 and self in lanes:
            self.consumer.share = _part(self.share, lanes.index(self), len(lanes))

    def is_needed(self, now_s: float) -> bool:
        """Whether it is to look for messages, and not leave that to the lane that it helps."""
        if not self.helper or self.helps or self.main.failures:
            return True
        return self.main.is_polled and now_s - self.main.began_s >= HANGS_S

    def tidy(self) -> bool:
        """What a poll does besides looking for messages; whether there will be more of that soon."""
        return self.consumer.tidy()

    def learn(self) -> None:
        """Take note of the queue's configuration, which may have been altered."""
        config = self.queue.config
        self.visibility_s = config.visibility_ms / 1000
        self.shards = config.shards
        self.max_attempts = 0 if self.is_dead_letter else config.max_attempts

    def is_quiet(self, since_s: float) -> bool:
        """Whether polls since then have found nothing for long enough to say that nothing is due."""
        if self.empty_since_s is None:
            return False
        return self.empty_until_s - max(self.empty_since_s, since_s) >= QUIET_S

    @property
    def is_dead_letter(self) -> bool:
        """Whether its messages have died before: they cannot die again."""
        return self.name.endswith(".dead")

    def now_ms(self) -> int:
        """The cluster's time."""
        return round(self.queue.now.timestamp() * 1000)


def _part(share: Share | None, number: int, parts: int) -> Share:
    """Every so many-th shard of a share."""

    def holds(wide_row: WideRow) -> bool:
        return wide_row.shard % parts == number and (share is None or share(wide_row))

    return holds


class Roster:
    """All lanes by when they are due.

    Args:
        room: how many messages a lane may receive now, if so many more are likely to come from others.
        shortest_s, longest_s: pause after the first poll in vain, and the longest one.
    """

    def __init__(
        self,
        room: Callable[[Lane, int], int],
        shortest_s: float,
        longest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._room = room
        self._shortest_s, self._longest_s = shortest_s, longest_s
        self.clock = clock
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Lane]] = []
        self._tickets = itertools.count(1)
        self._hungry: list[Lane] = []  # due, and without room
        self._polled: list[Lane] = []
        self.lanes: list[Lane] = []
        self._closed = False

    def enter(self, lane: Lane) -> None:
        """A new lane, due at once unless it is a helper."""
        with self._changed:
            self.lanes.append(lane)
            self._put(lane, self.clock() + (self._longest_s if lane.helper else 0.0))

    def ring(self, lane: Lane) -> None:
        """Something was sent to its queue: it is due at once, or right after the poll that is under way."""
        if lane.rung:
            return
        with self._changed:
            lane.rung = True
            if lane.ticket and not lane.failures:
                self._put(lane, self.clock())

    def feed(self) -> None:
        """There may be room for lanes that went without."""
        with self._changed:
            self._requeue()
            self._changed.notify()

    def hurry(self, lanes: Sequence[Lane]) -> None:
        """Make them due at once."""
        with self._changed:
            for lane in lanes:
                lane.helps = True
                if lane.ticket:
                    self._put(lane, self.clock())

    def _put(self, lane: Lane, due_s: float) -> None:
        lane.due_s, lane.ticket = due_s, next(self._tickets)
        if len(self._heap) > STALE * (len(self.lanes) + 1):
            self._heap = [(one.due_s, one.ticket, one) for one in self.lanes if one.ticket]
            heapq.heapify(self._heap)
            self._hungry.clear()
        else:
            heapq.heappush(self._heap, (due_s, lane.ticket, lane))
        self._changed.notify()

    def _requeue(self) -> None:
        for lane in self._hungry:
            heapq.heappush(self._heap, (lane.due_s, lane.ticket, lane))
        self._hungry.clear()

    def next(self) -> Lane | None:
        """The next lane to be polled, with how much it wants; waits for it. None: there is none any more."""
        with self._changed:
            while not self._closed:
                lane = self._next_due()
                if lane is not None:
                    lane.began_s = self.clock()
                    lane.ticket, lane.rung = 0, False
                    lane.is_polled = True
                    self._polled.append(lane)
                    return lane
                self._changed.wait(self._rest_s())
                if self._hungry:
                    self._requeue()
        return None

    def _next_due(self) -> Lane | None:
        now = self.clock()
        while self._heap and self._heap[0][0] <= now:
            _, ticket, lane = heapq.heappop(self._heap)
            if ticket != lane.ticket:
                continue
            lane.want = self._room(lane, self._coming(now))
            if lane.want:
                return lane
            self._hungry.append(lane)
        return None

    def _coming(self, now_s: float) -> int:
        """Messages that polls under way are likely to find; one that hangs will find none."""
        return sum(one.want for one in self._polled if one.lively and now_s - one.began_s < HANGS_S)

    def _rest_s(self) -> float | None:
        rest_s = max(0.0, self._heap[0][0] - self.clock()) if self._heap else None
        if self._hungry:
            return RECHECK_S if rest_s is None else min(rest_s, RECHECK_S)
        return rest_s

    # ── what a poll brought ──

    def found(self, lane: Lane, count: int, *, more: bool = False) -> None:
        """A poll is over, with so many messages. more: it is known where the next one may find some.

        If that one finds none, somebody else was quicker: it is no sign that there is little to do.
        """
        now = self.clock()
        was_extra, lane.is_extra = lane.is_extra, more
        lane.lively, lane.failures = bool(count), 0
        is_full = 0 < count >= lane.want
        if count:
            lane.pause_s = self._shortest_s
            lane.empty_since_s = None
            if is_full and lane.helpers:
                self.hurry(lane.helpers)
        elif not was_extra:
            if lane.empty_since_s is None:
                lane.empty_since_s = lane.began_s
            lane.empty_until_s = lane.began_s
            lane.pause_s = min(max(lane.pause_s * 2, self._shortest_s), self._longest_s)
        lane.helps = lane.helps and is_full
        pause_s = lane.pause_s if lane.is_needed(now) else min(TIDY_S, self._longest_s)
        self._back(lane, now if is_full or more else now + pause_s)

    def tidied(self, lane: Lane, *, more: bool) -> None:
        """A helper that is not needed has been looked after; it may be needed by now."""
        lane.lively, lane.failures = False, 0
        pause_s = 0.0 if lane.helps else min(TIDY_S, self._longest_s) if more else self._longest_s
        self._back(lane, self.clock() + pause_s)

    def failed(self, lane: Lane) -> None:
        """A poll has failed."""
        lane.failures += 1
        lane.lively = lane.helps = False
        lane.empty_since_s = None
        pause_s = min(LONGEST_FAILED_S, FAILED_S * 2 ** min(lane.failures - 1, 10))
        self._back(lane, self.clock() + pause_s)

    def _back(self, lane: Lane, due_s: float) -> None:
        with self._changed:
            lane.planned_s = due_s
            lane.is_polled = False
            self._polled.remove(lane)
            self._requeue()
            self._put(lane, self.clock() if lane.rung and not lane.failures else due_s)

    def close(self) -> None:
        """No lane is due from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
