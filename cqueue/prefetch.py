"""Messages claimed ahead: while an application handles some, a thread already receives the next.

What waits here is held like any received message, and its visibility timeout runs. What has waited for
too long is given back, with no attempt used, so an application that stops receiving keeps nothing from
others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from threading import TIMEOUT_MAX, Thread
from typing import Generic, TypeVar

from cqueue.conditions import Condition
from cqueue.message import MAX_RECEIVE

T = TypeVar("T")


class Prefetch(Generic[T]):
    """One consumer's messages claimed ahead. Thread-safe.

    Args:
        size: how many are claimed at once.
        fetch: claims up to so many, and says whether it left some, as bodies are large or others are
            elsewhere; called on the thread of this object. It must not raise.
        give_back: makes messages available to others again. It must not raise.
        hold_s: for how many seconds messages may wait here from now on.
    """

    def __init__(
        self,
        size: int,
        fetch: Callable[[int], tuple[list[T], bool]],
        give_back: Callable[[list[T]], None],
        hold_s: Callable[[], float],
    ) -> None:
        self.size = size
        self._fetch = fetch
        self._give_back = give_back
        self._hold_s = hold_s
        self._changed = Condition()
        self._waiting: deque[tuple[float, T]] = deque()  # with the time until which it may wait
        self._awaited = 0  # messages that takes wait for
        self._last = 0  # messages of the last claim; 0: the next may find none
        self._claiming = False  # a fetch is under way, or about to be
        self._closed = False
        self._thread: Thread | None = None

    def take(self, count: int) -> list[T]:
        """Up to `count` messages; where none wait, but a fetch is under way, what that gives."""
        with self._changed:
            self._awaited += count
            try:
                while not self._waiting and self._claiming and not self._closed:
                    self._changed.wait()
            finally:
                self._awaited -= count
            if self._left_s() <= 0:
                return []  # the thread gives them back
            taken = self._pop(count)
            self._ask()
            return taken

    def put(self, messages: list[T], count: int, *, more: bool) -> None:
        """Keep the rest of `count` messages that were claimed just now, for the next take.

        more: the claim left some.
        """
        until_s = time.monotonic() + self._hold_s()
        with self._changed:
            self._last = count if more or 2 * count >= min(self.size, MAX_RECEIVE) else 0
            self._waiting.extend(zip(repeat(until_s), messages))
            if self._waiting:
                self._wake()
            self._ask()

    def drop(self) -> None:
        """Give back all that waits here."""
        with self._changed:
            messages = self._pop(len(self._waiting))
        if messages:
            self._give_back(messages)

    def close(self) -> None:
        """Fetch no more, and give back what waits here."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.drop()

    # ── inside, with the condition held ──

    def _ask(self) -> None:
        """Have the next messages fetched if half of the last ones are gone, and there may be more.

        Half of the last, not of as many as are wished for: large bodies come a few at a time.

        What a take waits for counts as gone: the next fetch is under way before it is handled.
        """
        left = len(self._waiting) - self._awaited
        if self._last and not self._claiming and not self._closed and 2 * left <= self._last:
            self._claiming = True
            self._wake()

    def _wake(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = Thread(target=self._run, name="cqueue-prefetch", daemon=True)
            try:
                self._thread.start()
            except BaseException:  # Ctrl-C: the next one starts it
                self._thread = None
                raise
        self._changed.notify_all()

    def _pop(self, most: int) -> list[T]:
        return [self._waiting.popleft()[1] for _ in range(min(most, len(self._waiting)))]

    def _left_s(self) -> float:
        """For how long nothing that waits is late."""
        return self._waiting[0][0] - time.monotonic() if self._waiting else TIMEOUT_MAX

    # ── the thread ──

    def _run(self) -> None:
        while True:
            late: list[T] = []
            with self._changed:
                while not self._claiming and not self._closed and (left_s := self._left_s()) > 0:
                    self._changed.wait(left_s)
                if self._closed:
                    return
                while self._left_s() <= 0:
                    late += self._pop(1)
                claims = self._claiming
            if late:
                self._give_back(late)
            if claims:
                messages, more = self._fetch(self.size)
                with self._changed:
                    self._claiming = False
                    self.put(messages, len(messages), more=more)
                    self._changed.notify_all()
