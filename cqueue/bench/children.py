"""Processes that a benchmark starts: they begin together, and each says at its end what it saw.

A child is a new interpreter and no fork, because the driver's threads do not survive a fork. Times of the
monotonic clock can be compared between them: all processes of a machine share it.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from cqueue.bench.setup import Bench, open_bench
from cqueue.errors import NotDone
from cqueue.runtime import process
from cqueue.settings import Settings

START_S: Final = 120
"""Seconds that all children have to connect and to get ready."""

T = TypeVar("T")


class Signals(NamedTuple):
    """Signals to children. begin: a barrier of all and the parent. over: an event, set at the end."""

    begin: Any
    over: Any


Work = Callable[[Bench, Signals], T]
"""The work of a child; for a process it must be a function of a module, or a `partial` of one."""


class Children(Generic[T]):
    """Children that were started; `begin` lets them go, `results` ends them."""

    def __init__(self, futures: Sequence[Future[T]], signals: Signals) -> None:
        self._futures = futures
        self._signals = signals
        for future in futures:
            future.add_done_callback(self._let_nobody_wait)

    def _let_nobody_wait(self, future: Future[T]) -> None:
        if future.exception() is not None:
            self._signals.begin.abort()

    def begin(self) -> None:
        """Wait until all children are ready, and let them go.

        Raises:
            NotDone: they were not ready in time; or what one of them raised.
        """
        try:
            self._signals.begin.wait()
        except threading.BrokenBarrierError as exc:
            self.results()
            raise NotDone(f"the processes were not ready within {START_S} s") from exc

    def results(self) -> list[T]:
        """Tell all children to end, and return the result of each, in the order of their works.

        Raises:
            Exception: what one of them raised; a barrier that another one broke comes last.
        """
        self._signals.over.set()
        wait(self._futures)
        errors = [error for future in self._futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in self._futures]


@contextmanager
def children(bench: Bench, works: Sequence[Work[T]]) -> Iterator[Children[T]]:
    """Start a process for each work, with a connection of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        signals = Signals(manager.Barrier(len(works) + 1, timeout=START_S), manager.Event())
        pool = ProcessPoolExecutor(len(works), mp_context=context)
        with _started(pool, [partial(_child, bench.settings, work) for work in works], signals) as started:
            yield started


@contextmanager
def threads(bench: Bench, works: Sequence[Work[T]]) -> Iterator[Children[T]]:
    """Start a thread of this process for each work, on the connection of the parent."""
    signals = Signals(threading.Barrier(len(works) + 1, timeout=START_S), threading.Event())
    pool = ThreadPoolExecutor(len(works), thread_name_prefix="cqueue-bench")
    with _started(pool, [partial(work, bench) for work in works], signals) as started:
        yield started


@contextmanager
def _started(
    pool: Executor, works: Sequence[Callable[[Signals], T]], signals: Signals
) -> Iterator[Children[T]]:
    with pool:
        try:
            yield Children([pool.submit(work, signals) for work in works], signals)
        finally:
            signals.over.set()
            signals.begin.abort()  # of an error: nobody waits for the parent any more


def _child(settings: Settings, work: Work[T], signals: Signals) -> T:
    with open_bench(settings) as bench:
        process.settle_garbage()  # as the daemon does
        return work(bench, signals)
