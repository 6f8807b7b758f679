"""Between those who receive and those who run: what waits, whose turn it is, and how much more may come.

Queues take turns, so one that is full keeps no other waiting. A suspect (its last holder let it expire)
goes before all others, because while it is held no other suspect of its queue can be.
Everything here is short and under one lock, which a batch takes once and a worker once a message.

Of handlers that take next to no time, several threads do less than one, as only one of them can hold the
interpreter, and each hand-over of it costs more than the handler. So while handlers are quick one worker
goes on; another one is on the lookout, and takes part as soon as nothing was started for `LOOK_S`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cqueue.dispatcher.delivery import Delivery, Stage

LOOK_S: Final = 0.002
"""What a message may wait for a quick handler that is not quick this time, while other workers are idle."""
CALLED: Final = 0
"""No thread's ident: an idle worker is to be the lookout, and does not know yet."""
_RUNNING: Final = Stage.RUNNING  # looking members of enums up is slow before Python 3.12


class Line:
    """What waits for one kind of runner: threads, or the event loop. Not thread-safe."""

    def __init__(self) -> None:
        self.waiting = 0
        self.running = 0
        self.idle = 0  # runners that would start one at once
        self.started = 0
        self.starter = 0  # the thread that started the last one
        self.quick = False  # one worker does
        self.lookout: int | None = None
        self.low: int | None = None
        """A feeder went without: to be told once no more than this wait, or a runner is idle."""
        self._clear()

    def _clear(self) -> None:
        self.waiting = 0
        self.by_queue: dict[str, deque[Delivery]] = {}
        self._turns: deque[str] = deque()  # names of queues that have something
        self._suspects: deque[Delivery] = deque()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """They wait from now on."""
        self.waiting += len(deliveries)
        for delivery in deliveries:
            if delivery.suspect:
                self._suspects.append(delivery)
                continue
            name = delivery.lane.name
            queue = self.by_queue.get(name)
            if queue is None:
                queue = self.by_queue[name] = deque()
                self._turns.append(name)
            queue.append(delivery)

    def start(self, thread: int = 0) -> Delivery | None:
        """The next one, which is running from now on."""
        if not self.waiting:
            return None
        self.running += 1
        self.starter = thread
        return self._started()

    def next_of(self, thread: int) -> Delivery | None:
        """The next one for a quick worker that has done one, if nobody else needs to be told."""
        if (
            self.starter == thread
            and self.waiting
            and self.quick
            and (self.lookout is not None or not self.idle)
            and (self.low is None or self.waiting > self.low + 1)
        ):
            return self._started()
        return None

    def _started(self) -> Delivery:
        delivery = self._next()
        delivery.stage = _RUNNING
        self.waiting -= 1
        self.started += 1
        return delivery

    def has_room_again(self, *, idle: bool) -> bool:
        """Whether who went without is to be told now; that is said once."""
        if self.low is None or not (idle or self.waiting <= self.low):
            return False
        self.low = None
        return True

    def _next(self) -> Delivery:
        if self._suspects:
            return self._suspects.popleft()
        name = self._turns[0]
        queue = self.by_queue[name]
        delivery = queue.popleft()
        if not queue:
            del self.by_queue[name]
            self._turns.popleft()
        elif len(self._turns) > 1:
            self._turns.rotate(-1)
        return delivery

    def of(self, name: str) -> int:
        """How many of a queue wait, suspects aside."""
        queue = self.by_queue.get(name)
        return len(queue) if queue else 0

    def take_out(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Remove what is not to be started."""
        everything = [*self._suspects, *(one for queue in self.by_queue.values() for one in queue)]
        out = [delivery for delivery in everything if unwanted(delivery)]
        if out:
            self._clear()
            gone = set(map(id, out))
            self.add([delivery for delivery in everything if id(delivery) not in gone])
        return out


class Handover:
    """Both lines, and who waits for them.

    Args:
        call_loop: called, on any thread, when coroutine handlers wait and the loop may take them.
        feed: called when so little waits that a feeder that went without may have room now.
    """

    def __init__(self, call_loop: Callable[[], None], feed: Callable[[], None]) -> None:
        self._mutex = threading.Lock()
        self._ready = threading.Condition(self._mutex)
        self._calm = threading.Condition(self._mutex)
        self._call_loop = call_loop
        self._feed = feed
        self.threads = Line()
        self.coroutines = Line()
        self._closed = False

    def put(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Let them wait to be started; gives back those that cannot be any more."""
        for_loop = [delivery for delivery in deliveries if delivery.is_async]
        for_threads = [delivery for delivery in deliveries if not delivery.is_async]
        with self._mutex:
            if self._closed:
                return list(deliveries)
            self.threads.add(for_threads)
            self.coroutines.add(for_loop)
            if self.threads.lookout is None or not self.threads.running:
                self._wake(self.threads)
        if for_loop:
            self._call_loop()
        return []

    def take(self, *, done: bool, quick: bool = False) -> Delivery | None:
        """The next one for the calling worker, which waits for it. None: there will be no more.

        done: the worker has run one before, which is settled or on its way to be.
        quick: handlers are, so that a second worker would only be in the way.
        """
        line, me = self.threads, threading.get_ident()
        with self._mutex:
            if done and quick and (delivery := line.next_of(me)) is not None:
                return delivery
            if done:
                self._finished(line, 1)
            line.quick = quick
            if quick and line.running and line.starter != me:  # it is not needed
                delivery = None
                line.lookout = CALLED if line.lookout is None else line.lookout
            else:
                delivery = line.start(me)
            tell = line.has_room_again(idle=False) if delivery is not None else False
            if delivery is not None:
                self._wake_next(line)
        if tell:
            self._feed()
        return self._wait() if delivery is None else delivery

    def _wait(self) -> Delivery | None:
        """Wait for one; a feeder that went without learns that a worker is idle."""
        line = self.threads
        with self._mutex:
            line.idle += 1
            tell = line.has_room_again(idle=True)
        if tell:
            self._feed()
        with self._mutex:
            delivery = self._idle(line, threading.get_ident())
            line.idle -= 1
            if delivery is not None:
                self._wake_next(line)
        return delivery

    def _idle(self, line: Line, me: int) -> Delivery | None:
        """Wait for one, or be the lookout. The mutex is held."""
        seen = -1
        while not self._closed:
            if line.lookout in {CALLED, me}:
                if line.waiting and line.running and line.started != seen:
                    line.lookout, seen = me, line.started
                    self._ready.wait(LOOK_S)
                    continue
                line.lookout = None
            if (delivery := line.start(me)) is not None:
                return delivery
            self._ready.wait()
        return None

    def _wake_next(self, line: Line) -> None:
        """One was started: wake the next worker, if there is work for it. The mutex is held."""
        if not line.quick:
            line.lookout = None
            self._wake(line)
        elif line.lookout is None and line.idle and line.waiting:
            line.lookout = CALLED
            self._ready.notify()

    def _wake(self, line: Line) -> None:
        if line.idle and line.waiting:
            self._ready.notify()

    def take_now(self, *, done: int, idle: int) -> Delivery | None:
        """The next one for the event loop, if there is one.

        Args:
            done: how many the loop has finished since it asked last.
            idle: how many it could start.
        """
        line = self.coroutines
        with self._mutex:
            self._finished(line, done)
            line.idle = idle
            delivery = line.start() if idle else None
            if delivery is not None:
                line.idle -= 1
            tell = line.has_room_again(idle=line.idle > 0)
        if tell:
            self._feed()
        return delivery

    def _finished(self, line: Line, count: int) -> None:
        line.running -= count
        if self._closed and not self.running:
            self._calm.notify_all()

    def abandon(self) -> None:
        """A thread is not waited for any more; it will not say that it is done."""
        with self._mutex:
            self._finished(self.threads, 1)

    # ── how much there is ──

    @property
    def waiting(self) -> int:
        """To be started."""
        return self.threads.waiting + self.coroutines.waiting

    @property
    def running(self) -> int:
        """Started and not finished."""
        return self.threads.running + self.coroutines.running

    def waiting_by_queue(self) -> dict[str, int]:
        """To be started, by queue."""
        with self._mutex:
            counts: dict[str, int] = {}
            for line in (self.threads, self.coroutines):
                for name, queue in line.by_queue.items():
                    counts[name] = counts.get(name, 0) + len(queue)
            return counts

    def room(self, line: Line, name: str, batch: int, *, capacity: int, most: int, coming: int = 0) -> int:
        """How many more messages of a queue may be received: all queues that have some share alike.

        0 if it is so little that a receive would not be worth its while; then `feed` is called later.

        Args:
            line: where its messages go to.
            name: of the queue.
            batch: most messages of one receive.
            capacity: messages that may wait, to be shared.
            most: messages that may wait once a queue comes late to its share.
            coming: how many of either are taken by receives under way.
        """
        with self._mutex:
            mine = line.of(name)
            sharing = len(line.by_queue) + (not mine)
            share = max(0, capacity - coming) // sharing
            room = min(max(1, share) - mine, max(0, most - coming) - line.waiting, batch)
            # Half a batch costs as much as a whole one; but if only one fits, none would come meanwhile.
            whole = capacity // sharing >= 2 * batch
            worth = batch if whole else max(1, min(batch, share) // 2)
            if room >= worth:
                return room
            line.low = max(line.low or 0, line.waiting - (worth - room))
            return 0

    # ── what is not to be started ──

    def withdraw(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Take back those of them that nobody has started."""
        wanted = set(map(id, deliveries))
        with self._mutex:
            return [
                delivery
                for line in (self.threads, self.coroutines)
                for delivery in line.take_out(lambda delivery: id(delivery) in wanted)
            ]

    def close(self) -> list[Delivery]:
        """Start nothing from now on; what was waiting."""
        with self._mutex:
            self._closed = True
            left = [one for line in (self.threads, self.coroutines) for one in line.take_out(lambda _: True)]
            self._ready.notify_all()
            if not self.running:
                self._calm.notify_all()
        return left

    def wait_calm(self, seconds: float) -> bool:
        """Wait until nothing runs, after `close`; False if something still does."""
        with self._mutex:
            return self._calm.wait_for(lambda: not self.running, seconds)
