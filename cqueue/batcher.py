"""Entries of many threads, stored together: one way for sends, calls in the background, and settlements.

What a caller sees: `call` waits for the outcome of its entry, `submit` gives a future of it, and `put` hears
nothing; what was put and failed is stored again until it succeeds. Threads of the batcher do the storing.
They end when there has been nothing to store for a moment, so an idle batcher costs nothing.

- Bounds: `most` entries go together, and `at_a_time` batches. What comes meanwhile gathers. `submit` and
  `call` wait while `room` entries wait or are being stored, so memory is bounded. Bytes are the business of
  whoever stores: a send writes at most a few MiB at once, however many entries it is given.
- Errors: the function that stores gives each entry an outcome or an error of its own: not done, unknown, or
  bad input. If it raises, that is the error of every entry of the batch.
- Ctrl-C, and whatever else stops a thread in the middle: it hits the threads of callers, which only wait. An
  entry whose caller is gone is not stored, unless it is being stored already. Nobody waits for that caller.
- Deadlines: an entry that waits for all of `limit_s` is withdrawn, and its caller is told that it was not
  done. One that is being stored is waited for.
- Close: no entry enters any more. What is there is stored, or with `drop` given up.
- After a fork the child has none of the threads: its calls raise `Closed`.
"""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition, Lock, RLock, Thread, current_thread
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from cqueue.conditions import Future
from cqueue.errors import Closed, NotDone

Entry = TypeVar("Entry")
Outcome = TypeVar("Outcome")

IDLE_S: Final = 0.1
"""For how long a thread that has nothing to do waits for more: to start one takes longer than to wake one."""
CLOSED: Final = "the client has been closed"
FIRST_PAUSE_S: Final = 0.2
"""Before what failed is stored again; twice as long after each further try, up to:"""
LONGEST_PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a batcher does at once.

    Attributes:
        most: entries of one batch.
        at_a_time: batches that are being stored.
        linger_s: how long the first entry of a batch waits for others, unless the batch is full before.
        room: entries that wait or are being stored, beyond which `submit` and `call` wait. None: no bound.
    """

    most: int = 1
    at_a_time: int = 1
    linger_s: float = 0.0
    room: int | None = None


class _Asked(NamedTuple, Generic[Entry]):
    """An entry whose caller wants to hear of it."""

    entry: Entry
    future: Future[Any]


class _Batch(NamedTuple, Generic[Entry]):
    """What is stored together: entries as they were put, or with futures; and how often it was tried."""

    items: list[Entry | _Asked[Entry]]
    tries: int = 0


class _Late(Generic[Entry]):
    """What was put and failed, until its pause is over; entries of an equal `repeat` together."""

    def __init__(self, repeat: Callable[[Entry], Hashable], clock: Callable[[], float]) -> None:
        self._repeat = repeat
        self._clock = clock
        self._heap: list[tuple[float, int, _Batch[Entry]]] = []
        self._numbers = itertools.count()
        self._longest_s = LONGEST_PAUSE_S
        self._drops = False
        self.dropped = 0

    def __len__(self) -> int:
        return sum(len(batch.items) for *_, batch in self._heap)

    def push(self, failed: list[Entry], tries: int) -> None:
        """They failed after `tries` other times."""
        if self._drops:
            self.dropped += len(failed)
            return
        pause_s = min(self._longest_s, FIRST_PAUSE_S * 2 ** min(tries, 10))
        together: dict[Hashable, list[Entry | _Asked[Entry]]] = {}
        for entry in failed:
            together.setdefault(self._repeat(entry), []).append(entry)
        for entries in together.values():
            again = _Batch(entries, tries + 1)
            heapq.heappush(self._heap, (self._clock() + pause_s, next(self._numbers), again))

    def pop(self) -> _Batch[Entry] | None:
        """One that is due, if any is."""
        return heapq.heappop(self._heap)[2] if self._heap and self.left_s() <= 0 else None

    def left_s(self) -> float:
        """Until the first one is due."""
        return self._heap[0][0] - self._clock()

    def hurry(self) -> None:
        """All are due now, and pauses do not grow any more."""
        self._longest_s = FIRST_PAUSE_S
        self._heap = [(self._clock(), number, batch) for _, number, batch in sorted(self._heap)]

    def drop(self, others: int) -> None:
        """Give up all that waits here, so many others, and whatever fails from now on."""
        self._drops = True
        self.dropped += len(self) + others
        self._heap.clear()


class Batcher(Generic[Entry, Outcome]):
    """Stores entries of many threads together. Thread-safe.

    Args:
        store: stores a batch; an outcome or an error for each entry, in order.
        bounds: how much at once.
        name: of its threads. daemon: whether the process may end while they store.
        repeat: what was put and failed is stored again, entries of an equal `repeat` together, so that one
            wide row that cannot be reached delays no other.
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
        self._thread = partial(Thread, target=self._work, name=name, daemon=daemon)
        self._mutex = RLock()  # of its thread: a wait that Ctrl-C ends lets go of nobody else's
        self._more = Condition(self._mutex)  # for its threads
        self._less = Condition(self._mutex)  # for those that wait for room, or until all is stored
        self._waiting: deque[Entry | _Asked[Entry]] = deque()
        self._late: _Late[Entry] = _Late(repeat, clock)
        self._workers: dict[Thread, int] = {}  # how many entries each is storing
        self._awake = False  # its only thread will look at what waits before it sleeps or ends
        self._closed = False
        self._pid = os.getpid()

    # ── on the threads of callers ──

    def put(self, entry: Entry) -> None:
        """Store it soon, again and again if need be. Takes no lock but to wake a thread: there are many.

        Raises:
            Closed: `close` was called.
        """
        if self._closed:
            raise Closed(CLOSED)
        self._waiting.append(entry)
        if not self._awake or len(self._waiting) % self._bounds.most == 0:
            with self._mutex:
                self._staff()
                self._more.notify_all()
                self._awake = self._bounds.at_a_time == 1

    def submit(self, entry: Entry) -> Future[Outcome]:
        """Store it soon; the future gives its outcome or its error. Waits for room.

        Raises:
            Closed: `close` was called, or this process was forked.
        """
        future: Future[Outcome] = Future()
        self._enter(entry, future)
        return future

    def call(self, entry: Entry, limit_s: float) -> Outcome:
        """Store it, and wait for its outcome.

        Raises:
            NotDone: it waited for `limit_s` without being taken up.
            Closed: as `submit`.
        """
        future: Future[Outcome] = Future()
        ended = Lock()
        ended.acquire()
        future.add_done_callback(lambda _: ended.release())
        try:
            self._enter(entry, future)
            # `future.result(limit_s)` could be left locked by a Ctrl-C, and the batcher would wait for it.
            if not ended.acquire(timeout=limit_s) and not future.cancel():
                ended.acquire()  # it is being stored, which ends
        except BaseException:  # Ctrl-C
            future.cancel()
            raise
        if future.cancelled():
            raise NotDone("it was not sent: sends before it took all of its time")
        return future.result()

    def _enter(self, entry: Entry, future: Future[Any]) -> None:
        if os.getpid() != self._pid:  # before the mutex, which may have been locked for good
            raise Closed("the client was made before this process was forked; connect again after the fork")
        with self._mutex:
            while self._is_full():
                self._less.wait()
            if self._closed:
                raise Closed(CLOSED)
            self._staff()
            self._waiting.append(_Asked(entry, future))
            if len(self._waiting) == 1 or self._is_batch():
                self._more.notify_all()

    def _is_full(self) -> bool:
        """Whether who comes has to wait; never one of its own threads, which would wait for itself."""
        if self._bounds.room is None or self._closed or current_thread() in self._workers:
            return False
        return self._count() >= self._bounds.room

    def _staff(self) -> None:
        """Start a thread if those that are free are not enough. The mutex is held, so it finds the entry."""
        free = list(self._workers.values()).count(0)
        if len(self._workers) == self._bounds.at_a_time or len(self._waiting) < free * self._bounds.most:
            return
        thread = self._thread()
        try:
            self._workers[thread] = 0
            thread.start()
        except BaseException:
            self._workers.pop(thread, None)
            raise

    def _is_batch(self) -> bool:
        """Whether nothing more is to be waited for."""
        return not self._bounds.linger_s or len(self._waiting) >= self._bounds.most

    @property
    def is_gathering(self) -> bool:
        """Whether entries wait to be taken up."""
        return bool(self._waiting)

    @property
    def pending(self) -> int:
        """Entries that are not stored yet, or were given up."""
        with self._mutex:
            return self._count()

    def _count(self) -> int:
        return len(self._waiting) + sum(self._workers.values()) + len(self._late) + self._late.dropped

    def hurry(self) -> None:
        """From now on wait for nothing: store each entry at once, and what failed without its pause."""
        with self._mutex:
            self._bounds = replace(self._bounds, linger_s=0.0)
            self._late.hurry()
            self._more.notify_all()

    def flush(self, wait_s: float) -> bool:
        """Hurry, and wait until everything is stored; False if that takes longer than `wait_s`."""
        self.hurry()
        with self._mutex:
            return self._less.wait_for(lambda: not self._count(), wait_s)

    def close(self, *, drop: bool = False, wait_s: float | None = None) -> None:
        """Take no more entries, and wait until its threads have ended (None: however long that takes).

        drop: what is not being stored already is given up; its callers get `Closed`. What is being stored
            is not stored again if it fails.
        """
        if os.getpid() != self._pid:
            return
        self.hurry()
        with self._mutex:
            self._closed = True
            self._less.notify_all()
            if drop:
                self._drop()
            workers = self._workers.keys() - {current_thread()}
        for thread in workers:
            thread.join(wait_s)

    def _drop(self) -> None:
        for item in self._waiting:
            if isinstance(item, _Asked) and item.future.set_running_or_notify_cancel():
                item.future.set_exception(Closed(CLOSED))
        self._late.drop(len(self._waiting))
        self._waiting.clear()

    # ── on its own threads ──

    def _work(self) -> None:
        batch = self._take(new_first=True)
        while batch is not None:
            self._run(batch)
            time.sleep(0)  # callers that were told run first: what they have next goes together with the rest
            batch = self._take(new_first=batch.tries > 0)

    def _take(self, *, new_first: bool) -> _Batch[Entry] | None:
        """The next batch. None: there is none, and the thread ends.

        new_first: of a new one and one that failed before; so they take turns.
        """
        me = current_thread()
        with self._mutex:
            self._workers[me] = 0
            self._less.notify_all()
            while (batch := self._next(new_first=new_first)) is None:
                self._awake = False
                if self._waiting:  # put before that could be seen
                    continue
                wait_s = self._late.left_s() if self._late else 0.0 if self._closed else IDLE_S
                if not self._more.wait(wait_s) and not self._waiting and not self._late:
                    del self._workers[me]
                    return None
            self._workers[me] = len(batch.items)
            return batch

    def _next(self, *, new_first: bool) -> _Batch[Entry] | None:
        self._awake = self._bounds.at_a_time == 1
        late = None if new_first and self._waiting else self._late.pop()
        return late or self._gathered() or self._late.pop()

    def _gathered(self) -> _Batch[Entry] | None:
        """What has come, without what was withdrawn."""
        if self._waiting and self._bounds.linger_s:
            self._more.wait_for(self._is_batch, self._bounds.linger_s)
        items = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._bounds.most))]
        kept = [
            item
            for item in items
            if not isinstance(item, _Asked) or item.future.set_running_or_notify_cancel()
        ]
        return _Batch(kept) if kept else None

    def _run(self, batch: _Batch[Entry]) -> None:
        """Store a batch, and tell each entry's caller."""
        entries = [item.entry if isinstance(item, _Asked) else item for item in batch.items]
        try:
            outcomes = _as_many(entries, self._store(entries))
        except BaseException as exc:  # noqa: BLE001 - callers wait, and have to hear of it
            outcomes = [exc] * len(entries)
        failed: list[Entry] = []
        for item, outcome in zip(batch.items, outcomes, strict=True):
            if isinstance(item, _Asked):
                _tell(item.future, outcome)
            elif isinstance(outcome, BaseException):
                failed.append(item)
        if failed:
            with self._mutex:
                self._late.push(failed, batch.tries)


def _tell(future: Future[Any], outcome: Any) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _as_many(entries: Sequence[Any], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    if len(outcomes) != len(entries):
        raise AssertionError(f"{len(outcomes)} outcomes of {len(entries)} entries")
    return outcomes


Calls: TypeAlias = Batcher[Callable[[], Any], Any]


def calls(name: str, *, at_a_time: int, room: int) -> Calls:
    """A batcher of calls, each on its own: what each returns or raises is its outcome."""
    return Batcher(lambda batch: [call() for call in batch], Bounds(1, at_a_time, room=room), name=name)
