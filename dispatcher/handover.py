"""Between those who receive and those who run: what waits, whose turn it is, and how much more may come.

Queues take turns, so one that is full keeps no other waiting. A suspect (its last holder let it expire)
goes before all others, because while it is held no other suspect of its queue can be.
Everything here is short and under one lock, which a batch takes once and a worker once a message.

What is claimed and not started keeps others from it. So the room for waiting messages follows from how
long handlers take, those that run at the moment included: when they become slow, the next receive
asks for less, and in the end only for what an idle thread can start at once.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from cqueue.dispatcher.delivery import Delivery

if TYPE_CHECKING:
    from cqueue.dispatcher.lanes import Lane

STARTED_WITHIN: Final = 0.25
"""The part of the timeout in which what waits should be started."""
WEIGHT: Final = 0.05
UNKNOWN_BACKLOG: Final = 2
"""Messages a thread, before any handler has returned."""


class Line:
    """What waits for one kind of runner, threads or the event loop, and what they run. Not thread-safe.

    Args:
        size: handlers that can run at a time.
        most: messages that may wait, however quick handlers are.
    """

    def __init__(self, size: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = size
        self._clock = clock
        self._most = most
        self._mean_s: float | None = None  # how long handlers took
        self.running: dict[int, Delivery] = {}  # by `id`; may be copied without the lock
        self.waiting = 0
        self.low: int | None = None
        """A feeder went without: to be told once no more than this wait, or a runner is idle."""
        self.by_queue: OrderedDict[str, deque[Delivery]] = OrderedDict()  # the first one's turn it is
        self._suspects: deque[Delivery] = deque()

    def capacity(self, visibility_s: float) -> int:
        """How many messages may wait, as long as handlers take: at least one for each idle runner."""
        now_s = self._clock()
        running = self.running.copy().values()
        if self._mean_s is None and not running:
            return min(self._most, UNKNOWN_BACKLOG * self.size)
        ages_s = sum(max(0.0, now_s - delivery.begun_s) for delivery in running)
        mean_s = max(self._mean_s or 0.0, ages_s / self.size, 1e-6)
        startable = int(self.size * visibility_s * STARTED_WITHIN / mean_s)
        if self._mean_s is None:
            startable = min(startable, UNKNOWN_BACKLOG * self.size)
        return min(self._most, max(self.size - len(running), startable))

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """They wait from now on."""
        self.waiting += len(deliveries)
        for delivery in deliveries:
            if delivery.suspect:
                self._suspects.append(delivery)
            else:
                self.by_queue.setdefault(delivery.lane.name, deque()).append(delivery)

    def start(self) -> Delivery | None:
        """The next one, which is running from now on; None: none waits, or no runner is free."""
        if not self.waiting or len(self.running) >= self.size:
            return None
        delivery = self._next()
        self.waiting -= 1
        self.running[id(delivery)] = delivery
        return delivery

    def finish(self, done: int) -> None:
        """A runner is free again: the run of the delivery with this `id` is over."""
        delivery = self.running.pop(done, None)
        if delivery is None:
            return
        seconds, mean_s = max(0.0, self._clock() - delivery.begun_s), self._mean_s
        self._mean_s = seconds if mean_s is None else mean_s + WEIGHT * (seconds - mean_s)

    def _next(self) -> Delivery:
        if self._suspects:
            return self._suspects.popleft()
        name, queue = next(iter(self.by_queue.items()))
        delivery = queue.popleft()
        if queue:
            self.by_queue.move_to_end(name)
        else:
            del self.by_queue[name]
        return delivery

    def has_room_again(self) -> bool:
        """Whether who went without is to be told now; that is said once."""
        is_idle = not self.waiting and len(self.running) < self.size
        if self.low is None or not (is_idle or self.waiting <= self.low):
            return False
        self.low = None
        return True

    def room(self, name: str, batch: int, *, capacity: int, coming: int) -> int:
        """How many more of a queue may be received; see `Handover.room`."""
        most = 2 * capacity if capacity > self.size else capacity  # for a queue that comes late to its share
        mine = len(self.by_queue.get(name, ()))  # suspects aside
        sharing = len(self.by_queue) + (not mine)
        share = max(0, capacity - coming) // sharing
        room = min(max(1, share) - mine, max(0, most - coming) - self.waiting, batch)
        # Half a batch costs as much as a whole one; but if only one fits, none would come meanwhile.
        whole = capacity // sharing >= 2 * batch
        worth = batch if whole else max(1, min(batch, share) // 2)
        if room >= worth:
            return room
        self.low = max(self.low or 0, self.waiting - (worth - room))
        return 0

    def take_out(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove what is not to be started."""
        everything = [*self._suspects, *(one for queue in self.by_queue.values() for one in queue)]
        out = [delivery for delivery in everything if unwanted(delivery)]
        if out:
            gone = set(map(id, out))
            self.waiting = 0
            self._suspects.clear()
            self.by_queue.clear()
            self.add([delivery for delivery in everything if id(delivery) not in gone])
        return out


class Handover:
    """Both lines, and who waits for them.

    Args:
        threads, coroutines: the lines.
        call_loop: called, on any thread, when coroutine handlers wait and the loop may take them.
        feed: called when so little waits that a feeder that went without may have room now.
    """

    def __init__(
        self, threads: Line, coroutines: Line, *, call_loop: Callable[[], None], feed: Callable[[], None]
    ) -> None:
        self._mutex = threading.Lock()
        self._ready = threading.Condition(self._mutex)
        self._calm = threading.Condition(self._mutex)
        self._call_loop = call_loop
        self._feed = feed
        self.threads = threads
        self.coroutines = coroutines
        self._lines = (threads, coroutines)
        self._asleep = 0  # workers
        self._is_waking = False  # one of these was told, and does not run yet
        self._closed = False

    def put(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Let them wait to be started; gives back those that cannot be any more."""
        for_loop = [delivery for delivery in deliveries if delivery.is_async]
        with self._mutex:
            if self._closed:
                return list(deliveries)
            self.threads.add([delivery for delivery in deliveries if not delivery.is_async])
            self.coroutines.add(for_loop)
            self._wake()
        if for_loop:
            self._call_loop()
        return []

    def take(self, done: int = 0) -> Delivery | None:
        """The next one for the calling worker, which waits for it. None: there will be no more.

        done: the `id` of the one that it has run before, which is settled or on its way to be.
        """
        return self.take_now(self.threads, done) or self._wait()

    def take_now(self, line: Line, done: int = 0) -> Delivery | None:
        """The next one of a line, if there is one and a runner for it. done: as in `take`."""
        with self._mutex:
            if done:
                self._finished(line, done)
            delivery = line.start()
            tell = line.has_room_again()
            if delivery is not None:
                self._wake()
        if tell:
            self._feed()
        return delivery

    def _wait(self) -> Delivery | None:
        delivery = None
        with self._mutex:
            self._asleep += 1
            while not self._closed and (delivery := self.threads.start()) is None:
                self._ready.wait()
                self._is_waking = False
            self._asleep -= 1
            self._wake()
        return delivery

    def _wake(self) -> None:
        """Wake one worker that sleeps if there is work for it; that one wakes the next. The mutex is held.

        Of handlers that take no time several threads do less than one, so no other is woken meanwhile.
        """
        if self._asleep and self.threads.waiting and not self._is_waking:
            self._is_waking = True
            self._ready.notify()

    def _finished(self, line: Line, done: int) -> None:
        line.finish(done)
        if self._closed and not self.running:
            self._calm.notify_all()

    def abandon(self, delivery: Delivery) -> None:
        """Its thread is not waited for any more, and will not say that it is done."""
        with self._mutex:
            self._finished(self.threads, id(delivery))

    # ── how much there is ──

    @property
    def waiting(self) -> int:
        """To be started."""
        return self.threads.waiting + self.coroutines.waiting

    @property
    def running(self) -> int:
        """Started and not finished."""
        return len(self.threads.running) + len(self.coroutines.running)

    def room(self, lane: Lane, batch: int, coming: int = 0) -> int:
        """How many more messages of a queue may be received: all queues that have some share alike.

        0 if it is so little that a receive would not be worth its while; then `feed` is called later.

        Args:
            lane: what receives them.
            batch: most messages of one receive.
            coming: how many are taken by receives under way.
        """
        lines = [self._lines[is_async] for is_async in lane.kinds or {False}]
        capacities = [line.capacity(lane.visibility_s) for line in lines]
        with self._mutex:
            return min(
                line.room(lane.name, batch, capacity=capacity, coming=coming)
                for line, capacity in zip(lines, capacities, strict=True)
            )

    # ── what is not to be started ──

    def _take_out(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        return [delivery for line in self._lines for delivery in line.take_out(unwanted)]

    def withdraw(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Take back those of them that nobody has started."""
        wanted = set(map(id, deliveries))
        with self._mutex:
            return self._take_out(lambda delivery: id(delivery) in wanted)

    def close(self) -> list[Delivery]:
        """Start nothing from now on; what was waiting."""
        with self._mutex:
            self._closed = True
            left = self._take_out(lambda _: True)
            self._ready.notify_all()
            if not self.running:
                self._calm.notify_all()
        return left

    def wait_calm(self, seconds: float) -> bool:
        """Wait until nothing runs, after `close`; False if something still does."""
        with self._mutex:
            return self._calm.wait_for(lambda: not self.running, seconds)
