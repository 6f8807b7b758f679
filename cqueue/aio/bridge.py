"""Run synchronous calls on an event loop: each in a greenlet, which gives way to the loop where it waits.

There is one code for threads and for asyncio, and no thread a call. The answer of a request arrives on the
driver's thread, which asks the loop to resume the greenlet. SQLAlchemy's asyncio support works in this way.

A call whose task is cancelled is not broken off between two writes. The task gets `CancelledError` at once,
and the rest of the call, which a deadline bounds, runs in the background. Only a wait for something to come,
such as a message, is ended. What a cancelled call would have returned is given to its `lost` function, if it
has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

from greenlet import getcurrent, greenlet

from cqueue.errors import Closed, CqueueError
from cqueue.runtime import waiting
from cqueue.runtime.waiting import Signal

T = TypeVar("T")


class _Wait(NamedTuple):
    """What a call waits for, and whether a cancellation of its task ends the wait."""

    signal: Signal
    timeout_s: float | None
    cancellable: bool


class _Call(greenlet):  # type: ignore[misc]  # an extra, without types
    """A synchronous call on the loop's thread. `switch` runs it to its next wait, or to its end."""

    cancelled = False

    def wait(self, signal: Signal, timeout_s: float | None, *, cancellable: bool) -> bool:
        """Give way to the loop until the signal is set, at most `timeout_s`. Return whether it is set."""
        if cancellable and self.cancelled:
            raise asyncio.CancelledError
        if not signal.is_set() and (timeout_s is None or timeout_s > 0):
            self.parent.switch(_Wait(signal, timeout_s, cancellable))
        return signal.is_set()


def _current() -> _Call | None:
    """Return the call that runs here, if one does.

    Only a thread whose loop runs has calls. Another thread that asked greenlet would get a state there, and
    a program that ends at the same time as the thread would print greenlet's warning about it, or crash.
    """
    here = getcurrent() if asyncio._get_running_loop() is not None else None  # noqa: SLF001 - of the events API
    return here if isinstance(here, _Call) else None


def _caller() -> int:
    call = _current()
    return get_ident() if call is None else id(call)


waiting.hooks.waits = _current
waiting.hooks.caller = _caller


class Bridge:
    """Runs the calls of one asyncio client on the event loop that is running now."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._background: set[asyncio.Task[None]] = set()

    async def call(self, act: Callable[[], T], lost: Callable[[T], object] | None = None) -> T:
        """Call a synchronous function. The loop runs on while the function waits.

        lost: called with the result if the task was cancelled meanwhile, so that nobody gets the result.

        Raises:
            Closed: the client belongs to another event loop.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise Closed("the client belongs to another event loop; connect on this one")
        call, step = _begun(act)
        try:
            if call.dead:
                await asyncio.sleep(0)  # a call that did not wait, as with memory://, lets others run, too
            while not call.dead:
                await self._until(step)
                step = call.switch()
        except asyncio.CancelledError:
            task = self._loop.create_task(self._finish(call, step, lost))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            raise
        result: T = step
        return result

    async def _until(self, wait: _Wait) -> None:
        """Wait for the signal or the timeout."""
        woken = self._loop.create_future()
        wait.signal.wake = partial(self._wake, woken)
        if wait.signal.is_set():  # before it had `wake`
            return
        timer = None if wait.timeout_s is None else self._loop.call_later(wait.timeout_s, _resolve, woken)
        try:
            await woken
        finally:
            wait.signal.wake = None
            if timer is not None:
                timer.cancel()

    def _wake(self, woken: asyncio.Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(_resolve, woken)

    async def _finish(self, call: _Call, step: Any, lost: Callable[[Any], object] | None) -> None:
        """Run the rest of a cancelled call. Its errors are nobody's: the outcome was given as unknown."""
        with suppress(CqueueError, asyncio.CancelledError):
            result = await self._rest(call, step)
            if lost is not None:
                await self._rest(*_begun(partial(lost, result)))

    async def _rest(self, call: _Call, step: Any) -> Any:
        """Run a call to its end. `asyncio.run` cancels this task and waits for it, so it goes on."""
        call.cancelled = True
        while not call.dead:
            if step.cancellable:
                step = call.throw(asyncio.CancelledError)
                continue
            try:
                await self._until(step)
            except asyncio.CancelledError:
                continue
            step = call.switch()
        return step

    async def finish(self, last: Callable[[], object] = lambda: None) -> None:
        """Wait until the rest of each cancelled call is done; then make a last call.

        Both are one call, whose rest a cancelled task does not break off either.
        """
        background = set(self._background)  # without the rest of this call

        def finish() -> None:
            for task in background:
                done = Signal()
                task.add_done_callback(partial(_set, done))
                done.wait()
            last()

        await self.call(finish)


def _set(signal: Signal, _: object) -> None:
    signal.set()


def _begun(act: Callable[[], object]) -> tuple[_Call, Any]:
    """Run a call to its first wait, or to its end. Return it with the wait, or with its result."""
    call = _Call(_run)
    call.gr_context = copy_context()
    return call, call.switch(act)


def _run(act: Callable[[], T]) -> T:
    waiting.on_loop.set(True)
    return act()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
