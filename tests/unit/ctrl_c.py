"""Ctrl-C at each moment when Python looks for signals: as a function begins, and as one in C ends."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ctrl_c_at(number: int) -> Iterator[None]:
    """A block that a signal interrupts at its moment `number`, if it has that many moments."""
    left = number

    def look(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal left
        left -= event in ("call", "c_return")
        if not left:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    def ignored(unraisable: Any) -> None:
        """In a callback, such as that of a dead weak reference, Python ignores a Ctrl-C: repeat it after."""
        nonlocal left
        if unraisable.exc_type is not KeyboardInterrupt:
            usual(unraisable)
            return
        left = 2  # the end of this `setprofile` is a moment as well
        sys.setprofile(look)

    usual, sys.unraisablehook = sys.unraisablehook, ignored
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        sys.unraisablehook = usual


def at_each_moment(call: Callable[[], object], check: Callable[[], None]) -> int:
    """Call with a Ctrl-C at each of its moments in turn, and check after each; how many there were.

    A wait that is cut off as it begins ends in the RuntimeError of a condition that is not locked. One call
    goes before: what only the first one does, such as an import, would shift the moments of the next ones.
    """
    call()
    check()
    for number in itertools.count(1):
        try:
            with ctrl_c_at(number):
                call()
        except (KeyboardInterrupt, RuntimeError):
            check()
        else:
            return number
    raise AssertionError


def on_a_thread(call: Callable[[], Any]) -> Any:
    """What a call on another thread returns, which must come to its end."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(call()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return outcome[0]
