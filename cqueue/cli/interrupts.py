"""Ctrl-C and SIGTERM that wait: a step which has begun is finished, so that a command can say what is done.

Between printing a message and storing its ack, an interrupt at the wrong moment would leave nobody able to
tell whether the message comes again.
"""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Final

from cqueue.cli.context import CliContext, output
from cqueue.errors import CqueueError

ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a command to end: Ctrl-C, `kill` or `timeout`, and a terminal that is closed."""


class Interrupts:
    """Holds Ctrl-C back during a step. A second one in the same step goes through.

    So does the first where a full pipe holds up what the step prints: its reader may never read on. A step
    that goes on after printing, as with an ack, sets `is_printed`: a pipe that has taken all may be full.
    """

    def __init__(self) -> None:
        self._in_step = False
        self._pending = False
        self.is_printed = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run a step that an interrupt must not cut in two.

        Raises:
            KeyboardInterrupt: at the end, if Ctrl-C came meanwhile.
        """
        self._in_step, self.is_printed = True, False
        try:
            yield
        finally:
            self._in_step = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal: remember it during a step, else interrupt at once."""
        if self._in_step and not self._pending and (self.is_printed or not _is_held_up()):
            self._pending = True
            return
        raise KeyboardInterrupt


def _is_held_up() -> bool:
    """Say whether standard output takes nothing, as a pipe that is full."""
    try:
        writer = select.poll()
        writer.register(output(), select.POLLOUT)
        return not writer.poll(0)
    except (OSError, ValueError):  # it is closed, or no file
        return False


@contextmanager
def held_back() -> Iterator[Interrupts]:
    """Handle the signals of `ENDS` by an `Interrupts` while this lasts.

    Signals belong to the main thread; on any other this changes nothing.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    # A shell's background job ignores SIGINT.
    heard = [one for one in ENDS if signal.getsignal(one) is not signal.SIG_IGN]
    with handled_by(interrupts.on_signal, *heard):
        yield interrupts


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], Any], *numbers: signal.Signals) -> Iterator[None]:
    """Let a function handle these signals while this lasts."""
    before: dict[signal.Signals, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def accounted(cli: CliContext, account: Callable[[], str]) -> Iterator[Interrupts]:
    """Hold Ctrl-C back; where that, an error, a closed pipe or a full disk ends it, say what is done."""
    try:
        with held_back() as interrupts:
            yield interrupts
    except (KeyboardInterrupt, OSError, CqueueError) as exc:
        if isinstance(exc, KeyboardInterrupt):
            cli.after_ctrl_c()
        cli.remark(account())
        raise


def going_on(cli: CliContext, left_out: str = "") -> AbstractContextManager[None]:
    """Say where an interrupt ends the block that it can be repeated to finish what it has begun.

    left_out: what the command is to be repeated without.
    """
    return told_of_interrupt(cli, f"What is done stays done; the same command goes on{left_out}.")


@contextmanager
def told_of_interrupt(cli: CliContext, text: str) -> Iterator[None]:
    """Say a text where an interrupt ends the block."""
    try:
        with held_back():
            yield
    except KeyboardInterrupt:
        cli.after_ctrl_c()
        cli.remark(text)
        raise
