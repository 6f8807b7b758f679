"""Received messages that wait to be started: which one is next, and how many more may be received.

Queues take turns, so a long queue delays no other. A suspect (a message whose last lease expired) goes before
all others, because no other suspect of its queue can be claimed while it is held. Every operation is short
and under one lock, which is taken once a batch and once a message.

A message that is claimed and not started keeps other processes from it. So the room for waiting messages
follows from how long handlers take, those that run now included. When handlers become slow, the next receive
asks for less, and in the end only for what an idle thread can start at once.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from cqueue.dispatcher.execution.delivery import Delivery

if TYPE_CHECKING:
    from cqueue.dispatcher.execution.pollers import Poller

STARTED_WITHIN: Final = 0.25
"""Fraction of the visibility timeout within which waiting messages should be started.

A quarter, because the lease extender gives them back at half time.
"""
WEIGHT: Final = 0.05
"""Weight of a new run in the moving average of run times: the average follows the last 20 runs or so."""
UNKNOWN_BACKLOG: Final = 2
"""Messages a thread that may wait before any handler has returned."""


class RunQueue:
    """Messages that wait for threads or for the event loop, and those that run there. Not thread-safe.

    Args:
        size: handlers that can run at the same time.
        most: messages that may wait, however quick handlers are.
        clock: monotonic seconds.
    """

    def __init__(self, size: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = size
        self._clock = clock
        self._most = most
        self._mean_s: float | None = None  # moving average of run times
        self.running: dict[int, Delivery] = {}  # by `id`; copied without the lock
        self.waiting = 0
        self.refill_at: int | None = None
        """A fetcher went without: to be told once no more than this wait, or a runner is idle."""
        self.by_queue: OrderedDict[str, deque[Delivery]] = OrderedDict()  # the first queue is next
        self._suspects: deque[Delivery] = deque()

    def capacity(self, visibility_s: float) -> int:
        """Return how many messages may wait at the present run times: at least one for each idle runner."""
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
        """Queue deliveries to be started."""
        self.waiting += len(deliveries)
        for delivery in deliveries:
            if delivery.is_suspect:
                self._suspects.append(delivery)
            elif (queue := self.by_queue.get(delivery.poller.name)) is not None:
                queue.append(delivery)
            else:
                self.by_queue[delivery.poller.name] = deque([delivery])

    def start(self) -> Delivery | None:
        """Return the next delivery, marked as running; None: none waits, or no runner is free."""
        if not self.waiting or len(self.running) >= self.size:
            return None
        if self._suspects:
            delivery = self._suspects.popleft()
        else:
            name = next(iter(self.by_queue))
            queue = self.by_queue[name]
            delivery = queue.popleft()
            if not queue:
                del self.by_queue[name]
            elif len(self.by_queue) > 1:
                self.by_queue.move_to_end(name)
        self.waiting -= 1
        self.running[id(delivery)] = delivery
        return delivery

    def finish(self, done: int) -> None:
        """Free the runner of the delivery with this `id`, and note how long it ran."""
        delivery = self.running.pop(done, None)
        if delivery is None:
            return
        seconds, mean_s = max(0.0, self._clock() - delivery.begun_s), self._mean_s
        self._mean_s = seconds if mean_s is None else mean_s + WEIGHT * (seconds - mean_s)

    def called(self) -> list[Delivery]:
        """Return the deliveries whose handlers are being called now. Needs no lock."""
        return [delivery for delivery in self.running.copy().values() if delivery.is_called]

    def has_room_again(self) -> bool:
        """Return True, once, when a poller that found no room may have room now."""
        if self.refill_at is None:
            return False
        is_idle = not self.waiting and len(self.running) < self.size
        if not is_idle and self.waiting > self.refill_at:
            return False
        self.refill_at = None
        return True

    def room(self, name: str, batch: int, *, capacity: int, coming: int) -> int:
        """Return how many more messages of a queue may be received; see `Backlog.room`."""
        # Twice the capacity, so that a queue that comes late gets its share too.
        most = 2 * capacity if capacity > self.size else capacity
        mine = len(self.by_queue.get(name, ()))  # without suspects
        sharing = len(self.by_queue) + (not mine)
        share = max(0, capacity - coming) // sharing
        room = min(max(1, share) - mine, max(0, most - coming) - self.waiting, batch)
        # A claim of half a batch costs as much as one of a whole batch. But if only one batch fits, waiting
        # for room for all of it would leave runners idle.
        whole = capacity // sharing >= 2 * batch
        worth = batch if whole else max(1, min(batch, share) // 2)
        if room >= worth:
            return room
        self.refill_at = max(self.refill_at or 0, self.waiting - (worth - room))
        return 0

    def take_out(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove and return the deliveries that `unwanted` selects."""
        everything = [*self._suspects, *(one for queue in self.by_queue.values() for one in queue)]
        out = [delivery for delivery in everything if unwanted(delivery)]
        if out:
            gone = set(map(id, out))
            self.waiting = 0
            self._suspects.clear()
            self.by_queue.clear()
            self.add([delivery for delivery in everything if id(delivery) not in gone])
        return out


class Backlog:
    """Both run queues, and the worker threads that wait for them.

    Args:
        threads, coroutines: the run queues.
        wake_loop: called, on any thread, when coroutine handlers wait that the loop may start.
        room_freed: called when a poller that found no room may have room now.
    """

    def __init__(
        self,
        threads: RunQueue,
        coroutines: RunQueue,
        *,
        wake_loop: Callable[[], None],
        room_freed: Callable[[], None],
    ) -> None:
        self._mutex = threading.Lock()
        self._ready = threading.Condition(self._mutex)
        self._wake_loop = wake_loop
        self._room_freed = room_freed
        self.threads = threads
        self.coroutines = coroutines
        self._lines = (threads, coroutines)
        self._asleep = 0  # workers that wait for a delivery
        self._is_waking = False  # a worker was notified, and does not run yet
        self._closed = False

    def put(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Queue deliveries to be started; return those that can no longer be started."""
        for_loop = [delivery for delivery in deliveries if delivery.is_async]
        with self._mutex:
            if self._closed:
                return list(deliveries)
            self.threads.add([delivery for delivery in deliveries if not delivery.is_async])
            self.coroutines.add(for_loop)
            self._wake()
        if for_loop:
            self._wake_loop()
        return []

    def take(self, line: RunQueue, done: int = 0) -> Delivery | None:
        """Return the next delivery of a run queue, if one waits and a runner is free.

        Args:
            line: the run queue.
            done: the `id` of the runner's last delivery, which is settled or on its way; 0 for none.
        """
        # Workers that block on the mutex form a convoy: each release hands it to a thread that has yet to
        # get the interpreter, so every message costs two switches of threads.
        while not self._mutex.acquire(blocking=False):
            time.sleep(0)
        try:
            if done:
                line.finish(done)
            delivery = line.start()
            tell = line.has_room_again()
            if self._asleep and delivery is not None:
                self._wake()
        finally:
            self._mutex.release()
        if tell:
            self._room_freed()
        return delivery

    def wait(self) -> Delivery | None:
        """Wait for the next delivery of the calling worker; None: the backlog is closed."""
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
        """Wake one sleeping worker if there is work for it; that worker wakes the next. The mutex is held.

        Several threads run very short handlers more slowly than one thread does, so no second worker is woken
        meanwhile.
        """
        if self._asleep and self.threads.waiting and not self._is_waking:
            self._is_waking = True
            self._ready.notify()

    def abandon(self, delivery: Delivery) -> None:
        """Free the runner of a delivery whose handler nobody waits for any more."""
        with self._mutex:
            self._lines[delivery.is_async].finish(id(delivery))

    def started(self) -> list[Delivery]:
        """Return the deliveries started and not finished."""
        return [delivery for line in self._lines for delivery in line.running.copy().values()]

    # ── load ──

    @property
    def waiting(self) -> int:
        """Deliveries that wait to be started."""
        return self.threads.waiting + self.coroutines.waiting

    @property
    def running(self) -> int:
        """Deliveries started and not finished."""
        return len(self.threads.running) + len(self.coroutines.running)

    def room(self, poller: Poller, batch: int, coming: int = 0) -> int:
        """Return how many more messages of a queue may be received; queues with waiting messages share alike.

        0 if the room is too small to be worth a receive; `room_freed` is called later.

        Args:
            poller: the poller that would receive.
            batch: most messages of one receive.
            coming: messages that receives under way are likely to bring.
        """
        lines = [self._lines[is_async] for is_async in poller.kinds or {False}]
        capacities = [line.capacity(poller.visibility_s) for line in lines]
        with self._mutex:
            return min(
                line.room(poller.name, batch, capacity=capacity, coming=coming)
                for line, capacity in zip(lines, capacities, strict=True)
            )

    # ── taking deliveries out ──

    def _take_out(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        return [delivery for line in self._lines for delivery in line.take_out(unwanted)]

    def withdraw(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Remove and return those of the deliveries that nobody has started."""
        wanted = set(map(id, deliveries))
        with self._mutex:
            return self._take_out(lambda delivery: id(delivery) in wanted)

    def close(self) -> list[Delivery]:
        """Start nothing from now on; return the deliveries that were waiting."""
        with self._mutex:
            self._closed = True
            left = self._take_out(lambda _: True)
            self._ready.notify_all()
        return left
