"""Conditions, events, futures and threads that stay usable after a Ctrl-C.

The standard `Condition.__enter__` and `__exit__` are Python code. A signal may interrupt them between taking
and releasing the lock. The lock then stays taken, and the next thread that needs it hangs: to set a future's
result, say. Here `with` calls the lock's own methods, which are written in C, so no signal comes in between.
"""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, TypeVar

T = TypeVar("T")


class Condition(threading.Condition):
    """A condition on its own `RLock`: a wait that a signal ends cannot release another thread's lock."""

    __enter__: Any = property(lambda self: self._lock.__enter__)
    __exit__: Any = property(lambda self: self._lock.__exit__)

    def is_held(self) -> bool:
        """Return whether this thread holds the lock: in a signal handler, the code that it interrupted."""
        return bool(self._is_owned())  # type: ignore[attr-defined]


class Event(threading.Event):
    """An event that the main thread may set, clear or wait for, where Ctrl-C arrives."""

    def __init__(self) -> None:
        super().__init__()
        self._cond = Condition()


class Future(concurrent.futures.Future[T]):
    """A future that the main thread may wait for, where Ctrl-C arrives."""

    def __init__(self) -> None:
        super().__init__()
        self._condition.__class__ = Condition  # whose objects have the same attributes: no second one is made


class Thread(threading.Thread):
    """A thread that the main thread may start, where Ctrl-C arrives.

    The event by which a thread tells its starter that it runs may be left locked as well. The thread would
    wait for it for ever, and the process at its end for the thread.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started = Event()
