"""A store that connects when it is first needed, so that a process can start while Cassandra is away."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from cqueue.errors import Closed, NotDone, Refused, Unavailable
from cqueue.store.operations import Operation, Store
from cqueue.store.quarantine import Quarantine

PAUSE_S: Final = 1.0
"""After a connect that failed nobody tries again for so long: each call would wait for it."""


class LateStore:
    """Connects at the first call, and at a later one if that fails. Thread-safe.

    Args:
        connect: opens the store; also gives what lets go of it.
        request_timeout_s: what one request may take.
    """

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
        """Of the store; before there is one nothing is damaged."""
        return self._nothing if self._store is None else self._store.quarantine

    @quarantine.setter
    def quarantine(self, _: Quarantine) -> None:
        raise AttributeError("the store has its own")

    def execute(self, operation: Operation[Any]) -> Any:
        """As the store does."""
        return self._opened().execute(operation)

    def together(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        """As the store does; each fails if there is none."""
        try:
            store = self._opened()
        except NotDone as exc:
            return [exc] * len(operations)
        return store.together(operations)

    def sample_time_us(self) -> list[tuple[int, int]]:
        """As the store does."""
        return self._opened().sample_time_us()

    def close(self) -> None:
        """Close the store, if there is one."""
        with self._mutex:
            self._closed = True
            self._let_go()

    def _opened(self) -> Store:
        if self._store is not None:
            return self._store
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
