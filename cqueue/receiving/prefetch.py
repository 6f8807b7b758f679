"""Prefetch: while an application handles messages, a thread claims the next ones.

A prefetched message is held like any received message, and its visibility timeout runs. A message that waits
too long is given back, without using an attempt. So an application that stops receiving keeps nothing from
other consumers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from threading import TIMEOUT_MAX
from typing import Generic, TypeVar

from cqueue.message import MAX_RECEIVE
from cqueue.runtime.waiting import Condition, Thread

T = TypeVar("T")

AGAIN_S = 0.5
"""Seconds until the next try to give messages back that Cassandra did not take. Their timeout would take
longer."""


class Prefetch(Generic[T]):
    """The prefetched messages of one consumer. Thread-safe.

    Args:
        size: messages that one fetch claims, at most.
        fetch: claims up to that many messages. Returns them, and whether the queue has more: large bodies
            come a few at a time, and other wide rows may have messages. It runs on this object's thread, and
            must not raise.
        give_back: makes messages available to other consumers again. Returns those for which that failed and
            is worth another try. It must not raise.
        hold_s: returns the seconds that messages claimed now may wait here.
    """

    def __init__(
        self,
        size: int,
        fetch: Callable[[int], tuple[list[T], bool]],
        give_back: Callable[[list[T]], list[T]],
        hold_s: Callable[[], float],
    ) -> None:
        self.size = size
        self._fetch = fetch
        self._give_back = give_back
        self._hold_s = hold_s
        self._changed = Condition()
        self._waiting: deque[tuple[float, T]] = deque()  # (monotonic time at which it is given back, message)
        self._wanted = 0  # messages that blocked `take`s want
        self._last_claim = 0  # messages of the last claim; 0: the next one is unlikely to find any
        self._claiming = False  # a fetch is under way, or about to be
        self._closed = False
        self._thread: Thread | None = None

    def take(self, count: int) -> list[T]:
        """Return up to `count` prefetched messages. If there are none, wait for a fetch that is under way."""
        with self._changed:
            self._wanted += count
            try:
                while not self._waiting and self._claiming and not self._closed:
                    self._changed.wait()
            finally:
                self._wanted -= count
            if self._left_s() <= 0:
                return []  # they have waited too long: the thread gives them back
            taken = self._pop(count)
            self._fetch_if_low()
            return taken

    def put(self, messages: list[T], count: int, *, more: bool) -> None:
        """Keep `messages` for the next take: the rest of `count` that one claim has just given.

        more: the queue had more messages than the claim took.
        """
        until_s = time.monotonic() + self._hold_s()
        with self._changed:
            self._last_claim = count if more or 2 * count >= min(self.size, MAX_RECEIVE) else 0
            self._waiting.extend(zip(repeat(until_s), messages))
            if self._waiting:
                self._wake()
            self._fetch_if_low()

    def drop(self) -> None:
        """Give back all prefetched messages."""
        with self._changed:
            messages = self._pop(len(self._waiting))
        if messages:
            self._give_back(messages)

    def close(self) -> None:
        """Stop fetching, and give back all prefetched messages."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.drop()

    # ── inside, with the condition held ──

    def _fetch_if_low(self) -> None:
        """Start a fetch if at least half of the last claim's messages are taken, and there may be more.

        The last claim's size counts, not `size`, because large bodies come a few at a time. Messages that a
        blocked take wants count as taken, so that the next fetch starts before they are handled.
        """
        left = len(self._waiting) - self._wanted
        if self._last_claim and 2 * left <= self._last_claim:
            self._wake()
            self._claiming = self._thread is not None

    def _wake(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = Thread(target=self._run, name="cqueue-prefetch", daemon=True)
            try:
                self._thread.start()
            except BaseException as exc:  # a later call starts the thread
                self._thread = None
                if not isinstance(exc, RuntimeError):  # the process has too many threads just now
                    raise
        self._changed.notify_all()

    def _pop(self, most: int) -> list[T]:
        return [self._waiting.popleft()[1] for _ in range(min(most, len(self._waiting)))]

    def _left_s(self) -> float:
        """Return the seconds until the first message has waited too long."""
        return self._waiting[0][0] - time.monotonic() if self._waiting else TIMEOUT_MAX

    # ── the thread ──

    def _run(self) -> None:
        late: list[T] = []
        while True:
            with self._changed:
                if late:  # the last try failed
                    self._changed.wait_for(lambda: self._closed, AGAIN_S)
                while not late and not self._claiming and not self._closed and (left_s := self._left_s()) > 0:
                    self._changed.wait(left_s)
                if self._closed:
                    return
                while self._left_s() <= 0:
                    late += self._pop(1)
                claims = self._claiming
            if late:
                late = self._give_back(late)
            if claims:
                messages, more = self._fetch(self.size)
                with self._changed:
                    self._claiming = False
                    self.put(messages, len(messages), more=more)
                    self._changed.notify_all()
