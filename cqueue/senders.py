"""Threads of a client that send in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Final, TypeVar

from cqueue.errors import Closed

T = TypeVar("T")

AT_A_TIME: Final = 2
"""Batches under way."""
MOST: Final = 8
"""Batches under way or waiting, beyond which their callers wait: memory is bounded, and so is closing."""


class Senders:
    """Runs calls, two at a time. Thread-safe."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="cqueue-send")
        self._room = BoundedSemaphore(MOST)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call soon; wait while too many do.

        Raises:
            Closed: `close` was called.
        """
        self._room.acquire()
        try:
            future = self._pool.submit(call)
        except RuntimeError as exc:
            self._room.release()
            raise Closed("the client has been closed") from exc
        future.add_done_callback(lambda _: self._room.release())
        return future

    def close(self) -> None:
        """Wait for all calls, and take no more."""
        self._pool.shutdown(wait=True)
