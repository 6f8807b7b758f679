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
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from cqueue.errors import BadInput, CqueueError, NotDone, Unavailable
from cqueue.runtime.logs import describe, logger, trace

LOGGER: Final = "cqueue.web"
"""Name of the dashboard's logger."""
FRESH_S: Final = 2.0
"""Seconds for which an answer is shown without asking again."""
DUTY: Final = 20
"""An answer is kept this many times as long as its read took, so a read takes at most a 20th of a thread."""
WAIT_S: Final = 3.0
"""Seconds that a page waits for a read; then it shows the last answer, or says that there is none."""
THREADS: Final = 8
"""Reads side by side, at most, for all viewers together."""
MOST: Final = 3000
"""Answers that are kept: those used last. The largest, a list of letters, has some 40 KB."""

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """An answer. age_s: seconds since it was read; trouble: why there is no newer one, or None."""

    value: T
    age_s: float
    trouble: str | None = None


@dataclass(slots=True)
class _Entry:
    """What is known of one read. Changed only under the mutex."""

    value: Any = None
    read_s: float | None = None  # when the value was read; None: never
    tried_s: float = float("-inf")
    took_s: float = 0.0
    error: CqueueError | None = None
    under_way: Future[None] | None = field(default=None, repr=False)


class Shared:
    """Makes reads on a few threads, and keeps their answers. Thread-safe."""

    def __init__(self, *, threads: int = THREADS, time_s: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cqueue-web")
        self._time_s = time_s
        self._mutex = Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, read: Callable[[], T], *, wait_s: float = WAIT_S) -> Known[T]:
        """Return the answer of a read: a fresh one, or after `wait_s` the last one.

        Raises:
            BadInput: the read says that there is no such thing (any more).
            NotDone, OutcomeUnknown: the read failed, and there is no earlier answer.
        """
        entry = self._begun(key, read, FRESH_S)
        _await([entry], wait_s)
        known, error = self._known(entry)
        if isinstance(error, BadInput):
            raise error
        if known is None:
            raise error or Unavailable(f"Cassandra has not answered within {wait_s:.0f} s")
        return known

    def get_many(
        self, reads: Mapping[K, Callable[[], T]], *, fresh_s: float = FRESH_S, wait_s: float = WAIT_S
    ) -> dict[K, Known[T] | CqueueError | None]:
        """Return for each read its answer; its error if there never was one; None if it is not known yet."""
        entries = {key: self._begun(key, read, fresh_s) for key, read in reads.items()}
        _await(list(entries.values()), wait_s)
        found: dict[K, Known[T] | CqueueError | None] = {}
        for key, entry in entries.items():
            known, error = self._known(entry)
            found[key] = error if known is None or isinstance(error, BadInput) else known
        return found

    def forget(self, *keys: Hashable) -> None:
        """Read these anew at the next look, because somebody has just changed them."""
        with self._mutex:
            for key in keys:
                self._entries.pop(key, None)

    def close(self) -> None:
        """Begin no more reads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begun(self, key: Hashable, read: Callable[[], Any], fresh_s: float) -> _Entry:
        """Return what is known of a read, which is under way if the answer is old."""
        with self._mutex:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > MOST:
                self._entries.popitem(last=False)
            due_s = entry.tried_s + max(fresh_s, DUTY * entry.took_s)
            if entry.under_way is None and self._time_s() >= due_s:
                entry.under_way = self._pool.submit(self._read, entry, read)
            return entry

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
            entry.tried_s = self._time_s()
            entry.took_s = 0.0 if error else entry.tried_s - began_s
            entry.error, entry.under_way = error, None
            if error is None:
                entry.value, entry.read_s = value, began_s

    def _known(self, entry: _Entry) -> tuple[Known[Any] | None, CqueueError | None]:
        with self._mutex:
            error, age_s = entry.error, self._time_s() - (entry.read_s or 0.0)
            late = entry.under_way is not None
            trouble = str(error) if error else "the newest answer is still on its way" if late else None
            return (None if entry.read_s is None else Known(entry.value, age_s, trouble)), error


def _await(entries: list[_Entry], wait_s: float) -> None:
    """Wait for the reads that are under way; not longer than `wait_s` in all."""
    wait([future for entry in entries if (future := entry.under_way) is not None], timeout=wait_s)
