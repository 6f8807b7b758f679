"""Store entries of many threads in batches. Sends, background calls and settlements all use this one class.

A caller chooses how it hears of its entry. `call` waits for the outcome. `submit` returns a future. `put`
reports nothing, and an entry that was put and failed is stored again until it succeeds. The batcher's own
threads do the storing. They end after `IDLE_S` without work, so an idle batcher costs nothing.

- Bounds: a batch has at most `most` entries, and `at_a_time` batches are stored side by side. Later entries
  queue up. `submit` and `call` block while `room` entries are queued or being stored, so memory is bounded.
  The `store` function bounds bytes: a send writes at most a few MiB at once, however many entries it gets.
- Errors: the `store` function returns an outcome or an error for each entry. If the function raises, every
  entry of the batch gets that error.
- Ctrl-C interrupts only threads of callers, and those only wait. An entry whose caller was interrupted is
  withdrawn, unless a batch with it is being stored already.
- Deadlines: an entry that is still queued after `limit_s` is withdrawn, and its caller gets `NotDone`. An
  entry that is being stored is waited for.
- Close: new entries are refused. Queued entries are stored, or given up after a while.
- Fork: a child process has none of the threads, so its calls raise `Closed`.
"""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, RLock, Thread, current_thread
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from cqueue.errors import Closed, NotDone
from cqueue.runtime import waiting
from cqueue.runtime.sequences import grouped
from cqueue.runtime.waiting import Future

Entry = TypeVar("Entry")
Outcome = TypeVar("Outcome")

IDLE_S: Final = 0.1
"""Seconds that a thread without work waits before it ends: waking a thread is cheaper than starting one."""
CLOSED: Final = "the client has been closed"
FIRST_PAUSE_S: Final = 0.2
"""Seconds before a failed entry is stored again. Each further failure doubles the pause: an outage is not
answered with a flood of requests."""
LONGEST_PAUSE_S: Final = 10.0
"""Upper bound of that pause in seconds, so that entries are stored soon after an outage ends."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a batcher does at once.

    Attributes:
        most: entries in one batch, 1 or more.
        at_a_time: batches that are stored side by side, 1 or more.
        linger_s: seconds that the first entry of a batch waits for others, unless there are `enough` sooner.
        enough: entries for which no others are waited; a batch has all that are queued by then, up to `most`.
            None: `most`.
        room: number of queued and unfinished entries at which `submit` and `call` block. None: no bound.
    """

    most: int = 1
    at_a_time: int = 1
    linger_s: float = 0.0
    enough: int | None = None
    room: int | None = None


class _Expected(NamedTuple, Generic[Entry]):
    """An entry together with the future through which its caller learns the outcome."""

    entry: Entry
    future: Future[Any]


class _Batch(NamedTuple, Generic[Entry]):
    """Entries that are stored together.

    futures: those of entries that are not from `put`, by place.
    tries: how often storing these entries has failed already.
    """

    entries: list[Entry]
    futures: dict[int, Future[Any]]
    tries: int = 0


class _RetryHeap(Generic[Entry]):
    """Entries from `put` whose storing failed, kept until they are tried again.

    repeat: entries that give equal values are tried again in one batch.
    """

    def __init__(self, repeat: Callable[[Entry], Hashable], clock: Callable[[], float]) -> None:
        self._repeat = repeat
        self._clock = clock
        self._heap: list[tuple[float, int, _Batch[Entry]]] = []
        self._numbers = itertools.count()
        self._longest_s = LONGEST_PAUSE_S
        self._drops = False
        self.dropped = 0

    def __len__(self) -> int:
        return sum(len(batch.entries) for *_, batch in self._heap)

    def push(self, failed: list[Entry], tries: int) -> None:
        """Keep entries that have just failed, after `tries` earlier failures."""
        if self._drops:
            self.dropped += len(failed)
            return
        pause_s = min(self._longest_s, FIRST_PAUSE_S * 2 ** min(tries, 10))
        for entries in grouped((self._repeat(entry), entry) for entry in failed).values():
            again = _Batch([*entries], {}, tries + 1)
            heapq.heappush(self._heap, (self._clock() + pause_s, next(self._numbers), again))

    def pop(self) -> _Batch[Entry] | None:
        """Remove and return the batch that has been due longest; None if none is due."""
        return heapq.heappop(self._heap)[2] if self._heap and self.left_s() <= 0 else None

    def left_s(self) -> float:
        """Return the seconds until the first batch is due; zero or less if one is due."""
        return self._heap[0][0] - self._clock()

    def hurry(self) -> None:
        """Make all batches due now, and keep later pauses at `FIRST_PAUSE_S`."""
        self._longest_s = FIRST_PAUSE_S
        self._heap = [(self._clock(), number, batch) for _, number, batch in sorted(self._heap)]

    def drop(self, others: int) -> None:
        """Give up all entries here and all that fail from now on.

        others: how many queued entries were given up elsewhere; they count as dropped, too.
        """
        self._drops = True
        self.dropped += len(self) + others
        self._heap.clear()


class Batcher(Generic[Entry, Outcome]):
    """Stores entries of many threads together. Thread-safe.

    Args:
        store: stores a batch, and returns an outcome or an error for each entry, in order.
        bounds: how much is stored at once.
        name: the name of the batcher's threads.
        daemon: whether the process may end while a thread stores.
        repeat: groups failed entries for the next try. Entries that give equal values are tried together, so
            a wide row that cannot be reached delays no other.
        clock: seconds of a clock that never steps back.

    Example:
        batcher = Batcher(store_all, Bounds(most=500), name="sends")
        outcome = batcher.call(entry, limit_s=10.0)
    """

    def __init__(
        self,
        store: Callable[[list[Entry]], Sequence[Outcome | BaseException]],
        bounds: Bounds,
        *,
        name: str,
        daemon: bool = False,
        repeat: Callable[[Entry], Hashable] = id,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._bounds = bounds
        self._enough = bounds.enough or bounds.most
        self._thread = partial(waiting.Thread, target=self._work, name=name, daemon=daemon)
        self._mutex = RLock()  # an RLock belongs to its thread: a wait ended by Ctrl-C releases nobody else's
        self._entry_came = Condition(self._mutex)  # wakes the batcher's threads: an entry came
        self._entry_done = Condition(self._mutex)  # wakes callers that wait for room, and `wait_stored`
        self._waiting: deque[Entry | _Expected[Entry]] = deque()
        self._retries: _RetryHeap[Entry] = _RetryHeap(repeat, clock)
        self._workers: dict[Thread, int] = {}  # number of entries that each thread is storing
        self._awake = False  # the only thread looks at the queue again before it sleeps or ends
        self._closed = False
        self._pid = os.getpid()

    # ── on the threads of callers ──

    def put(self, entry: Entry) -> None:
        """Store an entry soon, and again until it succeeds. Returns at once.

        Takes the mutex only to wake a thread, because callers put thousands of entries a second. Where no
        thread can be started, the entry stays queued; the next `put`, `hurry` or `start_late` tries again.

        Raises:
            Closed: `close` was called.
        """
        if self._closed:
            raise Closed(CLOSED)
        self._waiting.append(entry)
        if not self._awake or len(self._waiting) % self._enough == 0:
            with self._mutex:
                self._wake()
                self._awake = self._bounds.at_a_time == 1 and bool(self._workers)

    def start_late(self) -> None:
        """Start a thread for entries of `put` if none could be started."""
        if self._waiting and not self._workers:  # looked at often
            with self._mutex:
                self._wake()

    def submit(self, entry: Entry) -> Future[Outcome]:
        """Store an entry soon. Return a future of its outcome or error. Blocks while there is no room.

        Raises:
            Closed: `close` was called, or this process was forked.
            NotDone: no thread can be started.
        """
        future: Future[Outcome] = Future()
        self._enqueue(entry, future)
        return future

    def call(self, entry: Entry, limit_s: float) -> Outcome:
        """Store an entry, and wait for its outcome.

        Raises:
            NotDone: the entry was still queued after `limit_s` seconds, and has been withdrawn; or as
                `submit`.
            Closed: as `submit`.
        """
        future: Future[Outcome] = Future()
        ended = waiting.lock()
        ended.acquire()
        future.add_done_callback(lambda _: ended.release())
        try:
            self._enqueue(entry, future)
            # A Ctrl-C inside `future.result(limit_s)` could leave the future locked: the batcher would hang.
            if not ended.acquire(timeout=limit_s) and not future.cancel():
                ended.acquire()  # the entry is being stored, which takes a bounded time
        except BaseException:  # Ctrl-C
            future.cancel()
            raise
        if future.cancelled():
            raise NotDone("it was not sent: sends before it took all of its time")
        return future.result()

    def _enqueue(self, entry: Entry, future: Future[Any]) -> None:
        waiting.check_fork(self._pid)  # before the mutex, which may have been locked for good
        with self._mutex:
            while self._is_full():
                self._entry_done.wait()
            if self._closed:
                raise Closed(CLOSED)
            self._start_thread()
            self._waiting.append(_Expected(entry, future))
            if len(self._waiting) == 1 or self._is_batch():
                self._entry_came.notify_all()

    def _is_full(self) -> bool:
        """Whether a caller has to wait for room. A thread of the batcher never does: it would wait for
        itself.
        """
        if self._bounds.room is None or self._closed or current_thread() in self._workers:
            return False
        return self._count() >= self._bounds.room

    def _start_thread(self) -> None:
        """Start a thread if the free ones are not enough. The caller holds the mutex until its entry is
        queued.
        """
        free = list(self._workers.values()).count(0)
        if len(self._workers) == self._bounds.at_a_time or len(self._waiting) < free * self._bounds.most:
            return
        thread = self._thread()
        try:
            self._workers[thread] = 0
            thread.start()
        except BaseException as exc:
            self._workers.pop(thread, None)
            if "new thread" in str(exc):  # a Ctrl-C may end as another RuntimeError
                raise NotDone(f"it was not done: no thread can be started for it ({exc})") from exc
            raise

    def _wake(self) -> None:
        """Have the queued entries stored, if a thread runs or can be started."""
        if self._waiting:
            with suppress(NotDone):
                self._start_thread()
        self._entry_came.notify_all()

    def _is_batch(self) -> bool:
        """Whether the queued entries may be stored now: without `linger_s`, or because there are enough."""
        return not self._bounds.linger_s or len(self._waiting) >= self._enough

    @property
    def queued(self) -> int:
        """Number of entries that wait to be stored. Takes no lock."""
        return len(self._waiting)

    @property
    def is_repeating(self) -> bool:
        """Whether entries wait to be stored again."""
        return bool(self._retries)

    @property
    def pending(self) -> int:
        """Number of entries that are not stored: queued, being stored, failed, or given up."""
        with self._mutex:
            return self._count()

    def _count(self) -> int:
        return len(self._waiting) + sum(self._workers.values()) + len(self._retries) + self._retries.dropped

    def hurry(self) -> None:
        """Stop waiting: from now on store each entry at once, and failed entries without their pause."""
        with self._mutex:
            self._bounds = replace(self._bounds, linger_s=0.0)
            self._retries.hurry()
            self._wake()

    def wait_stored(self, wait_s: float) -> bool:
        """Wait until everything is stored, at its own pace. Return False after `wait_s` seconds."""
        with self._mutex:
            return self._entry_done.wait_for(lambda: not self._count(), wait_s)

    def close(
        self,
        *,
        drop_after_s: float | None = None,
        go_on: Callable[[], bool] = lambda: False,
        wait_s: float | None = None,
    ) -> None:
        """Refuse new entries, and wait until the batcher's threads have ended.

        Args:
            drop_after_s: seconds after which entries that are not being stored yet are given up; their
                callers get `Closed`. An entry that is being stored then and fails is not tried again. None:
                all are stored.
            go_on: asked each time when these seconds are over; if true, they begin again.
            wait_s: seconds to wait for each thread. None: until it has ended.
        """
        if waiting.is_fork_of(self._pid):
            return
        self.hurry()
        given_up: list[Future[Any]] = []
        with self._mutex:
            self._closed = True
            self._entry_done.notify_all()
            if drop_after_s is not None:
                over = partial(self._entry_done.wait_for, lambda: not (self._waiting or self._retries))
                while not over(drop_after_s) and go_on():
                    pass
                given_up = self._drop()
            workers = self._workers.keys() - {current_thread()}
        for future in given_up:  # without the mutex: its callbacks are the application's
            future.set_exception(Closed(CLOSED))
        for thread in workers:
            thread.join(wait_s)

    def _drop(self) -> list[Future[Any]]:
        """Give up what waits; return the futures whose callers are to be told. The mutex is held."""
        expected = [item.future for item in self._waiting if isinstance(item, _Expected)]
        self._retries.drop(len(self._waiting))
        self._waiting.clear()
        return [future for future in expected if future.set_running_or_notify_cancel()]

    # ── on its own threads ──

    def _work(self) -> None:
        batch = self._take(new_first=True)
        while batch is not None:
            self._run(batch)
            time.sleep(0)  # lets callers with an outcome run first: their next entries join this batch
            batch = self._take(new_first=batch.tries > 0)

    def _take(self, *, new_first: bool) -> _Batch[Entry] | None:
        """Wait for the next batch. Return None if there is none; then the thread ends.

        new_first: prefer new entries to failed ones. The caller alternates, so that neither starves.
        """
        me = current_thread()
        with self._mutex:
            self._workers[me] = 0
            self._entry_done.notify_all()
            while (batch := self._next(new_first=new_first)) is None:
                self._awake = False
                if self._waiting:  # `put` may have read `_awake` as still true
                    continue
                wait_s = self._retries.left_s() if self._retries else 0.0 if self._closed else IDLE_S
                if not self._entry_came.wait(wait_s):
                    self._awake = False  # `put` may have set it for an entry that was stored meanwhile
                    if not self._waiting and not self._retries:
                        del self._workers[me]
                        return None
            self._workers[me] = len(batch.entries)
            return batch

    def _next(self, *, new_first: bool) -> _Batch[Entry] | None:
        late = None if new_first and self._waiting else self._retries.pop()
        return late or self._gather()

    def _gather(self) -> _Batch[Entry] | None:
        """Return the queued entries as a batch, without withdrawn ones; None if nothing is left."""
        if self._waiting:
            self._entry_came.wait_for(self._is_batch, self._bounds.linger_s)
        entries: list[Entry] = []
        futures: dict[int, Future[Any]] = {}
        for item in [self._waiting.popleft() for _ in range(min(len(self._waiting), self._bounds.most))]:
            if not isinstance(item, _Expected):
                entries.append(item)
            elif item.future.set_running_or_notify_cancel():
                futures[len(entries)] = item.future
                entries.append(item.entry)
        return _Batch(entries, futures) if entries else None

    def _run(self, batch: _Batch[Entry]) -> None:
        """Store a batch, and give each caller the outcome of its entry."""
        entries = batch.entries
        try:
            outcomes = list(zip(entries, self._store(entries), strict=True))
        except BaseException as exc:  # noqa: BLE001 - callers wait, and have to hear of it
            outcomes = [(entry, exc) for entry in entries]
        for place, future in batch.futures.items():
            _, outcome = outcomes[place]
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        failed = [
            entry
            for place, (entry, outcome) in enumerate(outcomes)
            if isinstance(outcome, BaseException) and place not in batch.futures
        ]
        if failed:
            with self._mutex:
                self._retries.push(failed, batch.tries)
                self._workers[current_thread()] -= len(failed)  # else they count twice for a moment


Calls: TypeAlias = Batcher[Callable[[], Any], Any]


def calls(name: str, *, at_a_time: int, room: int | None = None) -> Calls:
    """Make a batcher that runs calls in the background, one at a time in each of `at_a_time` threads.

    The outcome of a call is the value that it returns or the error that it raises. `submit` blocks while
    `room` calls are queued or running; without a room it never does.
    """
    return Batcher(lambda batch: [call() for call in batch], Bounds(1, at_a_time, room=room), name=name)
