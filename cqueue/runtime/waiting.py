"""How a call waits: until when, on a thread or an event loop, and past a Ctrl-C or a fork.

A call makes several requests, and repeats some. If each request had the whole timeout, a client that is cut
off would wait for the sum of them. So each request of a thread gets the time that the thread's call has left.

A call of the asyncio API runs the synchronous code in a greenlet of the loop's thread; see
`cqueue.aio.bridge`. There a wait must not block the thread. It lets the loop run, and goes on when it is
told. Everywhere else a wait blocks its thread, and nothing here costs more than a function that returns None.
"""

from __future__ import annotations

import concurrent.futures
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, Token, copy_context
from functools import cache
from threading import Lock, RLock, get_ident
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from cqueue.errors import Closed

T = TypeVar("T")

SHORTEST_S: Final = 0.5
"""Seconds that a request gets even after the deadline. Less would fail requests that Cassandra could
answer."""


# ── after a Ctrl-C ──
#
# The standard `Condition.__enter__` and `__exit__` are Python code. A signal may interrupt them between
# taking and releasing the lock. The lock then stays taken, and the next thread that needs it hangs: to set a
# future's result, say. Here `with` calls the lock's own methods, which are written in C, so no signal comes
# in between.


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


# ── after a fork ──
#
# Connections, threads and locks of a client belong to the process that made it. A lock that another thread
# held at the fork is held in the child for good. So a call that may wait for one asks here first.


def is_fork_of(pid: int) -> bool:
    """Return whether this process is another one than that with the id `pid`, and so a fork of it."""
    return os.getpid() != pid


def check_fork(pid: int) -> None:
    """Raise `Closed` in a fork. pid: of the process that made the client."""
    if is_fork_of(pid):
        raise Closed("the client was made before this process was forked; connect again after the fork")


# ── on an event loop ──


class Waits(Protocol):
    """Waits for a signal, without blocking the event loop that the call runs on."""

    def wait(self, signal: Signal, timeout_s: float | None, *, cancellable: bool) -> bool:
        """Wait until the signal is set, at most `timeout_s`. Return whether it is."""
        ...


class _OnThreads:
    """What `cqueue.aio.bridge` replaces once it is imported."""

    waits: Callable[[], Waits | None] = staticmethod(lambda: None)
    caller: Callable[[], int] = staticmethod(get_ident)


hooks = _OnThreads()
on_loop: ContextVar[bool] = ContextVar("on_loop", default=False)
"""True where objects are made that an asyncio client will use."""


class Signal(Event):
    """An event that calls of an event loop can wait for, too. A Ctrl-C leaves it usable."""

    wake: Callable[[], None] | None = None

    def set(self) -> None:
        """Set the signal. Any thread may do so."""
        super().set()
        wake = self.wake  # read once: the loop may take it away meanwhile
        if wake is not None:
            wake()

    def wait(self, timeout: float | None = None, *, cancellable: bool = False) -> bool:
        """Wait until the signal is set, at most `timeout` seconds. Return whether it is.

        cancellable: if the task that made the call is cancelled, end the wait with `CancelledError`.
        """
        waits = hooks.waits()
        if waits is None:
            return super().wait(timeout)
        return waits.wait(self, timeout, cancellable=cancellable)


class LoopLock:
    """A lock for greenlets of one thread and for other threads alike, as `threading.Lock`.

    A greenlet that holds a lock may wait. Another greenlet that wants a lock of the thread would then block
    the loop, so that the holder could never go on.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[Signal] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as a Lock
        """Take the lock. Return False if another caller holds it for `timeout` seconds; -1: for ever.

        A wait with a timeout ends with `CancelledError` if the caller's task is cancelled.
        """
        end_s = None if timeout < 0 else time.monotonic() + timeout
        while not self._lock.acquire(blocking=False):
            if not blocking:
                return False
            released = Signal()
            self._waiting.append(released)
            try:
                if self._lock.acquire(blocking=False):  # released before the signal was there
                    return True
                left_s = None if end_s is None else end_s - time.monotonic()
                if not released.wait(left_s, cancellable=end_s is not None) and left_s is not None:
                    return self._lock.acquire(blocking=False)
            finally:
                with suppress(ValueError):  # a release has taken it out
                    self._waiting.remove(released)
        return True

    def release(self) -> None:
        """Release the lock; all who wait try to take it.

        Raises:
            RuntimeError: nobody holds the lock.
        """
        self._lock.release()
        with suppress(IndexError):  # others may have released the lock meanwhile, too
            while True:
                self._waiting.popleft().set()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: object, exc: object, trace: object, /) -> None:
        self.release()


class LoopRLock(LoopLock):
    """As `LoopLock`, but its holder may take it again, as with `threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self._owner = 0
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as a Lock
        """Take the lock, or take it once more."""
        me = hooks.caller()
        if self._owner != me and not super().acquire(blocking, timeout):
            return False
        self._owner, self._count = me, self._count + 1
        return True

    def release(self) -> None:
        """Undo one `acquire` of this caller.

        Raises:
            RuntimeError: the caller does not hold the lock.
        """
        if self._owner != hooks.caller():
            raise RuntimeError("cannot release a lock of another caller")
        self._count -= 1
        if not self._count:
            self._owner = 0
            super().release()


def lock() -> Lock | LoopLock:
    """Make a lock that may be held during a wait."""
    return LoopLock() if on_loop.get() else Lock()


def rlock() -> RLock | LoopRLock:
    """Make a reentrant lock that may be held during a wait."""
    return LoopRLock() if on_loop.get() else RLock()


def caller() -> int:
    """Return a number that tells callers apart: of the thread, or of the call of an event loop."""
    return hooks.caller()


def sleep(seconds: float, *, cancellable: bool = False) -> None:
    """Wait for that many seconds, or none. cancellable: as in `Signal.wait`."""
    if hooks.waits() is None:
        time.sleep(seconds)
    else:
        Signal().wait(seconds, cancellable=cancellable)


def wait(future: concurrent.futures.Future[Any]) -> None:
    """Wait until a future of another thread is done."""
    done = lock()  # no `Signal`: a Ctrl-C could leave it locked, and the other thread would hang
    done.acquire()
    future.add_done_callback(lambda _: done.release())
    done.acquire()


def result(future: concurrent.futures.Future[T]) -> T:
    """Wait for a future of another thread. Return its result, or raise its error."""
    wait(future)
    return future.result()


def in_thread(call: Callable[[], T]) -> T:
    """Call what blocks; from an event loop, on another thread. For what happens once: connect, prepare.

    It takes the context along, so that what is made there has locks for an event loop.
    """
    return call() if hooks.waits() is None else result(_threads().submit(copy_context().run, call))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, thread_name_prefix="cqueue-aio")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of these threads


# ── deadlines ──


class _Limit(NamedTuple):
    """A deadline in monotonic seconds, and the function whose `with within(…)` block it bounds."""

    end_s: float
    owner: FrameType


_limit: ContextVar[_Limit | None] = ContextVar("limit", default=None)


class within:  # noqa: N801 - reads as a function, like `contextlib.suppress`
    """Bound all requests inside the block by `limit_s` seconds from now, or by an earlier outer deadline.

    A deadline counts as an outer one only while its function runs. A Ctrl-C between the start of `__enter__`
    and that of the block, or as the block ends, leaves the deadline behind; it would end all later calls of
    the thread.
    """

    __slots__ = ("_limit_s", "_token")

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._token: Token[_Limit | None]

    def __enter__(self) -> None:
        outer, caller, end_s = _limit.get(), sys._getframe(1), time.monotonic() + self._limit_s  # noqa: SLF001
        if outer is not None and _runs(outer.owner, caller):
            end_s = min(outer.end_s, end_s)
        elif outer is not None:
            _limit.set(None)
        self._token = _limit.set(_Limit(end_s, caller))

    def __exit__(self, *_: object) -> None:
        _limit.reset(self._token)


def _runs(owner: FrameType, caller: FrameType) -> bool:
    """Return whether `owner` still runs: it is `caller`, or one of the functions that led to that call."""
    frame: FrameType | None = caller
    while frame is not None and frame is not owner:
        frame = frame.f_back
    return frame is not None


def renew(limit_s: float) -> None:
    """Move the deadline of the innermost `within` to `limit_s` seconds from now, because a request
    succeeded.
    """
    limit = _limit.get()
    if limit is not None:
        _limit.set(_Limit(time.monotonic() + limit_s, limit.owner))


def left_s(most_s: float) -> float:
    """Return the seconds that the next request may take: at most `most_s`, at least `SHORTEST_S`."""
    limit = _limit.get()
    return most_s if limit is None else min(most_s, max(SHORTEST_S, limit.end_s - time.monotonic()))


def is_over(grace_s: float = 0.0) -> bool:
    """Return whether the deadline passed at least `grace_s` seconds ago, so that nothing is repeated."""
    limit = _limit.get()
    return limit is not None and time.monotonic() >= limit.end_s + grace_s
