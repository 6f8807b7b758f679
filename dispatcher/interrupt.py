"""Ends a handler on a thread from outside, and never anything else that the thread does.

Python can raise an exception in another thread, but only "at its next bytecode", whatever that is by then.
So there is one right to interrupt a run, taken either by who interrupts or by the worker when the
handler has returned; a list's `pop` decides, because it needs no lock in which the worker could be hit.
If the worker comes too late, it waits until the exception is under way, and lets it arrive where it is
caught.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Final

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)
_SPIN_S: Final = 0.0005
_TAKEN: Final[list[bool]] = []
"""The right to interrupt what does not run: nobody has it."""


class Interrupted(BaseException):
    """Raised in a handler whose time is up; no `Exception`, so that fewer handlers swallow it."""


class Interruptible:
    """One run of a handler, which another thread may interrupt once while `call` is at it."""

    _thread = 0
    _right = _TAKEN  # until it runs
    _fired = False

    @property
    def is_called(self) -> bool:
        """Whether `call` is at it."""
        return self._right is not _TAKEN

    def interrupt(self) -> bool:
        """Raise `Interrupted` in the handler; False if it does not run, or was interrupted before."""
        try:
            self._right.pop()
        except IndexError:
            return False
        _set_async_exc(self._thread, Interrupted)
        self._fired = True
        return True

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call, once. When it returns, no exception is under way any more.

        Raises:
            Interrupted: and whatever the function raises.
        """
        self._thread = threading.get_ident()
        try:
            try:
                self._right = [True]
                return function(*args)
            finally:
                self._end()
        except Interrupted:
            self._end()  # it may have come between the handler's end and ours
            raise

    def _end(self) -> None:
        """Take the right to interrupt back; or, if it is gone, see that no exception is still to come."""
        if self._right is _TAKEN:  # it was never given: something else was raised before the function began
            return
        try:
            self._right.pop()
        except IndexError:
            while not self._fired:
                time.sleep(_SPIN_S)
            _catch_what_is_under_way()
        self._right = _TAKEN  # so that a list lives no longer than its run


def _catch_what_is_under_way() -> None:
    """Have an exception arrive on this thread, in place of one that is still under way, if any is.

    To take that one back instead (`PyThreadState_SetAsyncExc` with NULL) would leave the interpreter looking
    for it at every call for ever; where a debugger, profiler or coverage traces, Python 3.11 then hangs.
    """
    try:
        _set_async_exc(threading.get_ident(), Interrupted)
        while True:
            time.sleep(0)
    except Interrupted:
        return
