"""Interrupts a handler on another thread, and never anything else that the thread does.

Python can raise an exception in another thread, but only "at its next bytecode", wherever that is. So each
run has one right to interrupt it. The interrupting thread takes the right, or the worker takes it back when
the handler has returned; a list's `pop` decides, because it needs no lock in which the worker could be
interrupted. If the worker comes too late, it waits until the exception is on its way, and lets it arrive
where it is caught.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)
_SPIN_S: Final = 0.0005
"""Seconds between two looks for the other thread's flag, which is set within microseconds."""


class Interrupted(BaseException):
    """Raised in a handler on a thread when its time limit has passed, or its dispatcher stops.

    Not an `Exception`, so that fewer handlers swallow it. A handler that catches it has 3 s to return, or 1 s
    at a stop; what it returns counts. A coroutine gets `asyncio.CancelledError` instead.
    """


@dataclass(slots=True, eq=False, repr=False)
class Interruptible:
    """One run of a handler, which another thread may interrupt once while `call` runs it."""

    _thread: int = field(default=0, init=False)
    _right: list[bool] | None = field(default=None, init=False)  # while the handler runs
    _fired: bool = field(default=False, init=False)

    @property
    def is_interruptible(self) -> bool:
        """Whether `call` is running the handler."""
        return self._right is not None

    def interrupt(self) -> bool:
        """Raise `Interrupted` in the handler; return False if it does not run, or was interrupted before."""
        if (right := self._right) is None:
            return False
        try:
            right.pop()
        except IndexError:
            return False
        _set_async_exc(self._thread, Interrupted)
        self._fired = True
        return True

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function, once. When `call` returns, no exception is on its way any more.

        Raises:
            Interrupted: another thread has interrupted the function.
        """
        self._thread = threading.get_ident()
        try:
            try:
                self._right = [True]
                return function(*args)
            finally:
                self._end()
        except Interrupted:
            self._end()  # `Interrupted` may have cut the `_end` above short
            raise

    def _end(self) -> None:
        """Take the right to interrupt back; if it is gone, wait until no exception is still to come."""
        if self._right is None:  # never given: another exception came before the function began
            return
        try:
            self._right.pop()
        except IndexError:
            while not self._fired:
                time.sleep(_SPIN_S)
            _catch_what_is_under_way()
        self._right = None  # the list lives no longer than its run


def _catch_what_is_under_way() -> None:
    """Let an exception arrive on this thread, in place of one that may still be on its way.

    Taking that exception back instead (`PyThreadState_SetAsyncExc` with NULL) would leave the interpreter
    looking for it at every call for ever; under a debugger, profiler or coverage, Python 3.11 then hangs.
    """
    try:
        _set_async_exc(threading.get_ident(), Interrupted)
        while True:
            time.sleep(0)
    except Interrupted:
        return
