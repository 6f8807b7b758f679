"""A store that connects at its first use, so that a process can start while Cassandra is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from cqueue.errors import Closed, NotDone, Refused, Unavailable
from cqueue.runtime import waiting
from cqueue.store.operations import Operation, Store
from cqueue.store.quarantine import Quarantine

PAUSE_S: Final = 1.0
"""Seconds after a failed connect in which calls fail at once; otherwise each call would wait for a
timeout."""


class LateStore:
    """Connects at the first call, and again at a later one if that fails. Thread-safe.

    Args:
        connect: opens the store; returns it with the function that closes it.
        request_timeout_s: seconds that one request may take.
        clock: seconds of a clock that never steps back.
    """

    is_shared: Final = True  # with other processes

    def __init__(
        self,
        connect: Callable[[], tuple[Store, Callable[[], None]]],
        request_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request_timeout_s = request_timeout_s
        self._connect = connect
        self._clock = clock
        self._mutex = Lock()
        self._store: Store | None = None
        self._let_go: Callable[[], None] = lambda: None
        self._failed: tuple[float, NotDone] | None = None
        self._closed = False
        self._nothing = Quarantine()

    @property
    def quarantine(self) -> Quarantine:
        """Return the store's quarantine; before the first connect an empty one."""
        return self._nothing if self._store is None else self._store.quarantine

    def execute(self, operation: Operation[Any]) -> Any:
        """Connect if needed, and run one operation. Raises as `Store.execute`, and `Closed`."""
        return self._opened().execute(operation)

    def together(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        """Connect if needed, and run operations side by side. Without a store, each result is the error."""
        try:
            store = self._opened()
        except NotDone as exc:
            return [exc] * len(operations)
        return store.together(operations)

    def sample_time_us(self) -> list[tuple[int, int]]:
        """Connect if needed, and ask for the time. Raises as `Store.sample_time_us`, and `Closed`."""
        return self._opened().sample_time_us()

    def close(self) -> None:
        """Close the store. If it was not opened yet, it never will be: calls raise `Closed`."""
        with self._mutex:
            self._closed = True
            self._let_go()

    def _opened(self) -> Store:
        return self._store if self._store is not None else waiting.in_thread(self._open)

    def _open(self) -> Store:
        with self._mutex:
            if self._closed:
                raise Closed("the client has been closed")
            if self._store is None:
                self._store, self._let_go = self._tried()
            return self._store

    def _tried(self) -> tuple[Store, Callable[[], None]]:
        if self._failed is not None and self._clock() - self._failed[0] < PAUSE_S:
            raise Unavailable(str(self._failed[1])) from self._failed[1]
        try:
            return self._connect()
        except NotDone as exc:
            if not isinstance(exc, Refused):
                self._failed = (self._clock(), exc)
            raise
