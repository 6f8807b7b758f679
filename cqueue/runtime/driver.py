"""Run protocol generators on the calling thread."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from cqueue.errors import LASTING, Closed, NotDone, OutcomeUnknown, TooManyTombstones, Unavailable
from cqueue.protocol.spec import Proto
from cqueue.runtime import waiting
from cqueue.runtime.clock import ClusterClock
from cqueue.store.operations import Now, Operation, Pause, RandomBits, Repeatable, Store, Together
from cqueue.store.quarantine import Damage

if TYPE_CHECKING:
    from cqueue.runtime.call_metrics import CallMetrics
    from cqueue.runtime.tracing import Tracing

T = TypeVar("T")

WAITS_S = ((0.02, 0.02), (0.02, 0.04), (0.04, 0.06), (0.08, 0.1), (0.16, 0.18))
"""Seconds before each repeat of a failed operation, from and to: by chance, so that clients do not repeat in
step. The repeats span about 0.3 s, beside the time that the requests take."""
GRACE_S = 1.0
"""Seconds after its deadline in which a call may still perform operations, e.g. read a mutation's outcome.
"""
LATE_PAUSE_S = 0.02
"""Seconds of a pause that would end later, at most. Without one, those that go on would keep a core busy."""


class BlockingDriver:
    """Performs the operations that a protocol function yields, and sends back their results."""

    tracing: Tracing | None = None  # makes spans, once somebody asks: here of all drivers, or of one

    def __init__(
        self,
        store: Store,
        clock: ClusterClock,
        *,
        random_bits: Callable[[int], int] = secrets.randbits,
        pause: Callable[[float], None] = waiting.sleep,
        deadline_s: float = 10.0,
    ) -> None:
        """Make a driver. deadline_s: seconds that a run may take after its last success, repeats included."""
        self.store = store
        self.clock = clock
        self._random_bits = random_bits
        self._pause = pause
        # A run must not end before a single request's own timeout.
        self.deadline_s = max(deadline_s, getattr(store, "request_timeout_s", 0.0))
        self.is_shared: bool = getattr(store, "is_shared", False)  # other processes may write as well
        self._watch: Callable[[], None] = lambda: None
        self.meter: CallMetrics | None = None  # counts the calls of this client, once somebody asks
        self.answered_s = time.monotonic()  # when Cassandra last answered, on the monotonic clock
        self._closed = False
        self._pid = os.getpid()  # connections and their threads do not survive a fork

    def report(self, damage: Damage) -> None:
        """Report an unreadable row to the quarantine."""
        self.store.quarantine.report(damage)

    def close(self) -> None:
        """Refuse all further runs."""
        self._closed = True

    def watch(self, check: Callable[[], None]) -> None:
        """Call `check` before each run; an error that it raises is raised instead of the run."""
        self._watch = check

    def run(self, proto: Proto[T]) -> T:
        """Run a protocol function to its end; return its result, or raise its error.

        Raises:
            Closed: the client has been closed, or was made before this process was forked.
            WrongDataCentre: the keyspace's home was moved to another data centre.
        """
        self.check_open()
        self._watch()
        with self.limited():
            return self._run(proto)

    def check_open(self) -> None:
        """Raise `Closed` if the driver was closed, or made before a fork."""
        if self._closed:
            raise Closed("the client has been closed")
        waiting.check_fork(self._pid)

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that made the driver."""
        return waiting.is_fork_of(self._pid)

    def limited(self, limit_s: float | None = None) -> AbstractContextManager[None]:
        """Return a context whose runs share one deadline, of `limit_s` or the driver's own."""
        return waiting.within(self.deadline_s if limit_s is None else limit_s)

    def _run(self, proto: Proto[T]) -> T:
        value: Any = None
        error: Exception | None = None
        while True:
            try:
                operation = proto.send(value) if error is None else proto.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            value = error = None
            try:
                match operation:
                    case Now(checked):
                        value = self.clock.now_us(checked=checked)
                    case RandomBits(bits):
                        value = self._random_bits(bits)
                    case Pause(seconds):
                        value = waiting.is_over(-seconds)
                        is_late = waiting.is_over(GRACE_S - seconds)
                        self._pause(min(seconds, LATE_PAUSE_S) if is_late else seconds)
                    case _:
                        value = self._ask(operation)
                        self._renew(value)
                        if self.meter is not None:
                            self.meter.answered(operation, value)
            except (NotDone, OutcomeUnknown) as exc:
                error = exc

    def _renew(self, value: Any) -> None:
        """Renew the deadline after an answer: a large send may take long, as long as Cassandra answers.

        That a read crosses too many tombstones is an answer; the walk asks again for less.
        """
        failures = [
            isinstance(result, Exception) and not isinstance(result, TooManyTombstones)
            for result in (value if isinstance(value, list) else ())
        ]
        if not failures or not all(failures):
            self.answered_s = time.monotonic()
        if not any(failures):
            waiting.renew(self.deadline_s)

    def ask(self, operation: Operation[T]) -> T:
        """Run a single operation."""
        return self.run(iter(operation))

    def _ask(self, operation: Operation[Any]) -> Any:
        """Execute an operation on the store; repeat it after a failure if that is harmless."""
        if waiting.is_over(GRACE_S):  # otherwise a search would try one wide row after the other in vain
            late = Unavailable("the call's time is over, and this was not asked any more")
            if isinstance(operation, Together):
                return [late] * len(operation.operations)
            raise late
        if isinstance(operation, Together):
            results = self.store.together(operation.operations)
            return self._retry_failed(operation.operations, results) if operation.retried else results
        (result,) = self._retry_failed((operation,), [self._result(operation)])
        if isinstance(result, Exception):
            raise result
        return result

    def _result(self, operation: Operation[Any]) -> Any:
        try:
            return self.store.execute(operation)
        except (NotDone, OutcomeUnknown) as exc:
            return exc

    def _retry_failed(self, operations: tuple[Operation[Any], ...], results: list[Any]) -> list[Any]:
        """Repeat failed operations that are repeatable, side by side, while there is time left."""
        for wait_s in WAITS_S:
            places = [
                place
                for place, result in enumerate(results)
                if isinstance(result, (NotDone, OutcomeUnknown))
                and not isinstance(result, (*LASTING, TooManyTombstones))  # a scan of 100,000 each
                and isinstance(operations[place], Repeatable)
            ]
            if not places or waiting.is_over():
                break
            self._pause(random.uniform(*wait_s))
            repeated = self.store.together(tuple(operations[place] for place in places))
            results = list(results)  # without the ages of what came before the pause
            for place, result in zip(places, repeated, strict=True):
                results[place] = _after(results[place], result)
        return results


def _after(earlier: Any, result: Any) -> Any:
    """Combine two tries: a later refusal does not make an unknown outcome known."""
    if isinstance(result, NotDone) and isinstance(earlier, OutcomeUnknown):
        return earlier
    return result
