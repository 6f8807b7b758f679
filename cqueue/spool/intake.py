"""The entries between callers and the writer, and the limits at which a caller waits for room.

There are two limits. Between callers and writer are 16 MiB at most. And the backlog, what is appended and not
consumed, has a high and a low water mark: a full spool stays full until a good part of it is consumed, so
that callers do not stop and go with every message.

A Ctrl-C may end a caller anywhere in here, and the writer and other callers go on: the condition comes from
`cqueue.runtime.waiting`, the queue of entries is written in C, and what is under way is counted anew
whenever the writer takes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

from cqueue.errors import BadInput, Closed, CqueueError, NotDone, SpoolFull
from cqueue.runtime.waiting import Condition, Future
from cqueue.spool.level import Level
from cqueue.spool.options import SpoolOptions
from cqueue.spool.stored_queue import StoredQueue

_HIGH: Final = 0.8
"""Share of `max_bytes` or `max_records` at which a spool is full: the rest is for what is under way."""
_LOW: Final = 0.5
"""Share below which a full spool takes messages again: callers get a good part of it at once."""
_UNDER_WAY_BYTES: Final = 16 * 1024 * 1024
"""Bytes that callers have brought and the writer has not settled, at most: 0.1 s of its work."""


@dataclass(slots=True, eq=False)
class Entry:
    """The messages of one call, which are stored together. `offsets` is set once they are written."""

    queue: StoredQueue
    payloads: list[bytes]
    size: int
    future: Future[Any]
    is_single: bool
    offsets: range = range(0)

    def done(self) -> None:
        """Tell the caller where the messages are."""
        self.future.set_result(self.offsets.start if self.is_single else self.offsets)

    def fail(self, error: CqueueError) -> None:
        """Tell the caller why the messages are not stored, or that this is unknown."""
        self.future.set_exception(error)


class Intake:
    """The entries that wait for the writer, and the level of the backlog. Thread-safe."""

    def __init__(self, options: SpoolOptions) -> None:
        self._limit = Level(options.max_bytes, options.max_records)
        self._raises = options.on_full == "raise"
        self._block_s = options.block_timeout.total_seconds()
        self._lock = threading.RLock()
        self._room = Condition(self._lock)
        self._entries: SimpleQueue[Entry | None] = SimpleQueue()  # None: closed
        self._under_way = Level()  # admitted, and not settled
        self._backlogs: dict[StoredQueue, Level] = {}
        self._backlog = Level()
        self._closed = False
        self.is_full = False

    def admit(self, entry: Entry) -> None:
        """Hand the entry to the writer; wait for room, or raise `SpoolFull`."""
        self.check_free()
        level = Level(entry.size, len(entry.payloads))
        if level.share(self._limit) > 1:
            raise BadInput("one call has more than max_bytes or max_records of the spool")
        # Held for a few additions; the wait for room gives it back.
        with self._lock:
            deadline = None
            while not self._has_room(level):
                deadline = deadline or time.monotonic() + self._block_s
                self._wait_for_room(deadline)
            self._entries.put(entry)
            self._under_way += level

    def check_free(self, *, is_inside: bool = False) -> None:
        """Refuse a signal handler that has interrupted its own thread while that holds the lock.

        The writer cannot take anything before the handler returns, so that it would wait for ever.
        is_inside: the thread holds another lock that the writer or the handler needs.
        """
        if is_inside or self._room.is_held():
            raise NotDone(
                "a signal handler has interrupted its own thread inside the spool, and cannot wait for it; "
                "set a flag in the handler, and append or close where the program looks at it"
            )

    def _has_room(self, level: Level) -> bool:
        if self._closed:
            raise Closed("the spool is closed")
        used = self._look_at_marks()
        if (used + level).share(self._limit) > 1:
            self.is_full = True
        under_way = self._under_way.size
        crowded = under_way and under_way + level.size > _UNDER_WAY_BYTES
        return not self.is_full and not crowded

    def _look_at_marks(self) -> Level:
        used = self.used()
        share = used.share(self._limit)
        if share >= _HIGH:
            self.is_full = True
        elif share < _LOW:
            self.is_full = False
        return used

    def _wait_for_room(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if (self.is_full and self._raises) or not self._room.wait(max(remaining, 0)):
            used = self.used()
            raise SpoolFull(
                f"the spool has {used.records:,} messages in {used.size:,} bytes that are not consumed, "
                f"of {self._limit.records:,} and {self._limit.size:,}"
                if self.is_full
                else "the disk of the spool is slower than the messages come"
            )

    def used(self) -> Level:
        """Return the backlog, with what is under way."""
        return self._backlog + self._under_way

    def take(self, timeout_s: float) -> list[Entry]:
        """Return all entries that wait, at once or when the first one comes; none after `timeout_s`.

        What was taken before is settled by now.
        """
        try:
            found = [self._entries.get(timeout=timeout_s)]
        except Empty:
            return []
        with self._lock:
            found += [self._entries.get() for _ in range(self._entries.qsize())]
            taken = [entry for entry in found if entry is not None]
            self._under_way = _level(taken)
            return taken

    def settle(self, queue: StoredQueue, done: Sequence[Entry] = ()) -> None:
        """Measure the backlog of a queue anew; the entries that are done are no longer under way."""
        level = _level(done)
        with self._lock:
            # Measured under the lock, so that no older measure overwrites a newer one.
            self._backlogs[queue] = queue.backlog()
            self._backlog = sum(self._backlogs.values(), Level())
            self._under_way -= level
            self._look_at_marks()  # also for those who only ask
            self._room.notify_all()

    def is_drained(self) -> bool:
        """Whether it is closed and nothing is left to take."""
        return self._closed and self._entries.empty()

    def close(self) -> None:
        """Refuse entries from now on; what was admitted can still be taken."""
        with self._lock:
            self._closed = True
            self._entries.put(None)
            self._room.notify_all()


def _level(entries: Sequence[Entry]) -> Level:
    return Level(sum(one.size for one in entries), sum(len(one.payloads) for one in entries))
