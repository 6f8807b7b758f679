"""Outlive an outage of Cassandra, and not the reader of a pipe, in commands that go on until Ctrl-C."""

from __future__ import annotations

import errno
import io
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Event, Lock, Thread
from typing import TypeVar

from cqueue.cli.context import CliContext, output
from cqueue.errors import LASTING, Closed, NotDone, OutcomeUnknown

T = TypeVar("T")

PAUSE_S = 1.0
"""Seconds between two tries: an outage costs no processor time, and its end is seen within a second."""


class Outage:
    """Tries a read again while Cassandra does not answer, and says so once."""

    def __init__(self, cli: CliContext) -> None:
        self._cli = cli
        self._lasts = False

    def outlive(self, read: Callable[[timedelta], list[T]], wait: timedelta) -> list[T]:
        """Return what `read` returns within `wait`; nothing, after a pause, if Cassandra does not answer.

        Raises:
            Closed, Refused, DamagedRow, WrongDataCentre: at once, because waiting does not help.
            BrokenPipeError: nobody reads standard output any more, so that nothing is to be read for it.
        """
        _check_reader()
        try:
            found = read(timedelta() if self._lasts else wait)
        except (NotDone, OutcomeUnknown) as exc:
            if isinstance(exc, (Closed, *LASTING)):
                raise
            if not self._lasts:
                self._cli.remark(f"{exc}. Trying again until Cassandra answers, or Ctrl-C.")
            self._lasts = True
            time.sleep(PAUSE_S)
            return []
        if self._lasts:
            self._cli.remark("Cassandra answers again.")
        self._lasts = False
        return found


@contextmanager
def closed_when_unread(close: Callable[[], object], step: Lock) -> Iterator[None]:
    """Close what waits at the end of the block, or as soon as nobody reads standard output any more.

    step: held by what must not be cut in two.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """
    ended = Event()

    def watch() -> None:
        while not ended.wait(PAUSE_S):
            try:
                _check_reader()
            except OSError:
                with step:
                    close()
                return

    try:
        _check_reader()
        Thread(target=watch, name="cqueue-unread", daemon=True).start()
        yield
    except Closed:
        _check_reader()  # by `watch`
        raise
    finally:
        ended.set()
        close()


def _check_reader() -> None:
    """Raise BrokenPipeError if nobody reads standard output any more: who prints nothing would not notice."""
    with suppress(io.UnsupportedOperation):  # it is no file
        reader = select.poll()
        reader.register(output(), 0)  # errors alone
        if reader.poll(0):
            raise BrokenPipeError(errno.EPIPE, "nobody reads standard output any more")
