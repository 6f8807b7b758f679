"""Reads that all viewers share: each is made once in a while for all of them, and its last answer is kept.

So ten open pages cost the cluster what one costs, a slow read never holds a page up for long, and while
Cassandra is away the pages show what was known before, and since when.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Lock, Semaphore
from typing import Any, Final, Generic, TypeVar

from cqueue.errors import BadInput, CqueueError, NotDone, Unavailable
from cqueue.runtime.logs import describe, logger, trace
from cqueue.web.rate import RateLimit

LOGGER: Final = "cqueue.web"
"""Name of the dashboard's logger."""
FRESH_S: Final = 2.0
"""Seconds for which an answer is shown without asking again."""
DUTY: Final = 20
"""An answer is kept this many times as long as its read took, so a read takes at most a 20th of a thread."""
OLD_S: Final = 15.0
"""An answer that is kept longer, as its read took long, is shown with its age from then on."""
WAIT_S: Final = 3.0
"""Seconds that a page waits for a read; then it shows the last answer, or says that there is none. If there
is one they count from the read's beginning: reads that hang hold up one look, together no longer than one."""
THREADS: Final = 8
"""Reads side by side, at most, for all viewers together."""
PAGES: Final = 30
"""Pages that wait for reads at a time; others show what is known. Starlette makes pages on 40 threads: if all
of them wait, pages whose answers are known wait behind them."""
TURN_S: Final = 0.2
"""Seconds that a page waits to be one of these: while Cassandra answers in that time, others have ended by
then. Otherwise a page of which nothing is known says so, and asks again after some seconds."""
MOST: Final = 3000
"""Answers that are kept beside those of the largest list: those used last. The largest has some 40 KB."""
MOST_WAITING: Final = 2000
"""Reads under way or waiting for a thread, at most: while Cassandra is away, each look would add some."""
A_SECOND: Final = 50
"""Reads of lists (of queues, of logs) begun a second, at most, on an average."""
AT_ONCE: Final = 1000
"""Reads of lists begun at once, at most: so up to 1,000 queues are all counted at the first look."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """An answer.

    age_s: seconds since it was read. trouble: why there is no newer one, or None. is_kept: none was due, as
        its read takes long.
    """

    value: T
    age_s: float
    trouble: str | None = None
    is_kept: bool = False


@dataclass(slots=True)
class _Entry:
    """What is known of one read. Changed only under the mutex."""

    value: Any = None
    read_s: float | None = None  # when the value was read; None: never
    begun_s: float = 0.0  # of the read under way
    tried_s: float = float("-inf")
    took_s: float = 0.0
    error: CqueueError | None = None
    under_way: Future[None] | None = field(default=None, repr=False)
    put_off: bool = False  # it was due and not begun, as too many others waited

    @property
    def trouble(self) -> str | None:
        """Return why there is no newer answer; None if none is due."""
        if self.error is not None:
            return str(self.error)
        if self.under_way is not None:
            return "the newest answer is still on its way"
        if self.put_off:
            return "too many reads wait for Cassandra's answers"
        return None

    def is_kept(self, now_s: float) -> bool:
        """Return whether the answer is old, as its read took long."""
        return now_s - self.tried_s > OLD_S and DUTY * self.took_s > OLD_S


class Shared:
    """Makes reads on a few threads, and keeps their answers. Thread-safe."""

    def __init__(self, *, threads: int = THREADS, time_s: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cqueue-web")
        self._time_s = time_s
        self._mutex = Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()  # by their last use
        self._room = MOST
        self._pace = RateLimit(A_SECOND, AT_ONCE, time_s=time_s)  # used under the mutex
        self._under_way = 0
        self._pages = Semaphore(PAGES)

    def get(self, key: Hashable, read: Callable[[], T], *, wait_s: float = WAIT_S) -> Known[T]:
        """Return the answer of a read: a fresh one, or `wait_s` after it began the last one.

        Raises:
            BadInput: the read says that there is no such thing (any more).
            NotDone, OutcomeUnknown: the read failed, and there is no earlier answer.
        """
        return self.begin(key, read).get(wait_s)

    def find(self, key: Hashable, read: Callable[[], T]) -> Known[T] | None:
        """Return what `get` returns, for a part of a page that may lack; None if `get` would fail."""
        return self.begin(key, read).find()

    def begin(self, key: Hashable, read: Callable[[], T], *, fresh_s: float | None = None) -> Begun[T]:
        """Begin a read, so that others can begin beside it; not if its last answer is fresh.

        fresh_s: seconds for which it is; by default `FRESH_S`.
        """
        with self._mutex:
            entry = self._used(key)
            self._begin(entry, read, FRESH_S if fresh_s is None else fresh_s)
        return Begun(lambda wait_s: self._found({key: entry}, wait_s)[key])

    def get_many(
        self, reads: Mapping[K, Callable[[], T]], *, wait_s: float = WAIT_S
    ) -> dict[K, Known[T] | CqueueError | None]:
        """Return for each read its answer; its error if there never was one; None if it is not known yet."""
        with self._mutex:
            entries = {key: self._used(key) for key in reads}
            for key, entry in entries.items():
                self._begin(entry, reads[key], FRESH_S)
        return self._found(entries, wait_s)

    def get_list(
        self, reads: Mapping[K, Callable[[], T]], *, wait_s: float = WAIT_S
    ) -> dict[K, Known[T] | CqueueError | None]:
        """Return what `get_many` returns, of a list that may be long: at most 50 reads a second are begun.

        The reads whose answers are the oldest come first; an answer is fresh until the others have had time.
        """
        fresh_s = max(FRESH_S, len(reads) / A_SECOND)
        with self._mutex:
            self._room = max(self._room, MOST + len(reads))
            entries = {key: self._used(key) for key in reads}
            for key, entry in sorted(entries.items(), key=lambda pair: pair[1].tried_s):
                if self._is_due(entry, fresh_s):
                    if not self._is_full and not self._pace.take(""):
                        break
                    self._begin(entry, reads[key], fresh_s)
        return self._found(entries, wait_s)

    def _found(self, entries: Mapping[K, _Entry], wait_s: float) -> dict[K, Known[Any] | CqueueError | None]:
        """Wait for the reads that are under way, as `WAIT_S` says; return what is known then."""
        with self._mutex:
            now_s, left_s = self._time_s(), dict[Future[None], float]()
            for entry in entries.values():
                if entry.under_way is not None:
                    since_s = now_s if entry.read_s is None else entry.begun_s
                    left_s[entry.under_way] = since_s + wait_s - now_s
        longest_s = max(left_s.values(), default=0.0)
        if longest_s > 0 and self._pages.acquire(timeout=min(TURN_S, longest_s)):
            try:
                wait([future for future, some_s in left_s.items() if some_s > 0], timeout=longest_s)
            finally:
                self._pages.release()
        with self._mutex:
            now_s = self._time_s()
            return {key: _answer(entry, now_s) for key, entry in entries.items()}

    def forget(self, *keys: Hashable) -> None:
        """Read these anew at the next look, because somebody has just changed them."""
        with self._mutex:
            for key in keys:
                self._entries.pop(key, None)

    def close(self) -> None:
        """Begin no more reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _used(self, key: Hashable) -> _Entry:
        """Return what is known of a read, and forget those that were not used for the longest time."""
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        while len(self._entries) > self._room and next(iter(self._entries.values())).under_way is None:
            self._entries.popitem(last=False)  # never a read under way: the next look would begin it again
        return entry

    def _is_due(self, entry: _Entry, fresh_s: float) -> bool:
        """Return whether the answer is old, and no newer one is on its way."""
        is_old = self._time_s() >= entry.tried_s + max(fresh_s, DUTY * entry.took_s)
        return is_old and entry.under_way is None

    @property
    def _is_full(self) -> bool:
        return self._under_way >= MOST_WAITING

    def _begin(self, entry: _Entry, read: Callable[[], Any], fresh_s: float) -> None:
        """Let a thread make the read if that is due; put it off while too many others wait."""
        is_due = self._is_due(entry, fresh_s)
        entry.put_off = is_due and self._is_full
        if is_due and not entry.put_off:
            entry.begun_s = self._time_s()
            entry.under_way = self._pool.submit(self._read, entry, read)
            self._under_way += 1

    def _read(self, entry: _Entry, read: Callable[[], Any]) -> None:
        began_s, value, error = self._time_s(), None, None
        try:
            value = read()
        except CqueueError as exc:
            error = exc
        except Exception as exc:  # noqa: BLE001 - a page has to say something, and the next look tries again
            logger(LOGGER).error("dashboard_read_failed", error=describe(exc), **trace(exc, is_final=True))
            error = NotDone(f"the dashboard failed with {type(exc).__name__}; its log says more")
        with self._mutex:
            self._under_way -= 1
            entry.tried_s = self._time_s()
            entry.took_s = 0.0 if error else entry.tried_s - began_s
            entry.error, entry.under_way = error, None
            if error is None:
                entry.value, entry.read_s = value, began_s


@dataclass(frozen=True, slots=True)
class Begun(Generic[T]):
    """A read that was begun, or whose answer is fresh. answer: waits for it, as `get_many` does."""

    answer: Callable[[float], Known[T] | CqueueError | None]

    def get(self, wait_s: float = WAIT_S) -> Known[T]:
        """Return what `Shared.get` returns, or raise what it raises."""
        found = self.answer(wait_s)
        if found is None:
            raise Unavailable("Cassandra has not answered yet")
        if isinstance(found, CqueueError):
            raise found
        return found

    def find(self) -> Known[T] | None:
        """Return what `get` returns; None if `get` would fail."""
        found = self.answer(WAIT_S)
        return found if isinstance(found, Known) else None


def _answer(entry: _Entry, now_s: float) -> Known[Any] | CqueueError | None:
    if entry.read_s is None or isinstance(entry.error, BadInput):
        return entry.error
    age_s = now_s - entry.read_s
    if entry.trouble is None and entry.is_kept(now_s):
        why = f"the read took {entry.took_s:.1f} s, so it is made seldom"
        return Known(entry.value, age_s, why, is_kept=True)
    return Known(entry.value, age_s, entry.trouble)
