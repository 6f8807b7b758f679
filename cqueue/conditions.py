"""Conditions and futures that a Ctrl-C leaves usable.

A signal may end the main thread's `Condition.__enter__` when it has taken the lock, or `Condition.__exit__`
before it lets go of it. Then whoever needs the lock next waits for ever: to set a future's result, say.
Here `with` calls the lock itself, which is not written in Python, so no signal comes in between.
"""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, TypeVar

T = TypeVar("T")


class Condition(threading.Condition):
    """A condition with an `RLock` of its own, so that a wait which a signal ends lets go of nobody else's."""

    __enter__: Any = property(lambda self: self._lock.__enter__)
    __exit__: Any = property(lambda self: self._lock.__exit__)


class Future(concurrent.futures.Future[T]):
    """A future that callers may wait for in the main thread."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()
