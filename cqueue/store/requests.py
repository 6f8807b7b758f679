"""Requests to Cassandra: prepare each statement once, send at once, wait for the result later, and decode it.

Because sending and waiting are separate, several operations run side by side without threads. The calling
thread sends a request, the driver's thread receives the answer, and the thread that waits for it decodes it.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, Session
from cassandra.policies import FallthroughRetryPolicy, NoSpeculativeExecutionPolicy
from cassandra.query import (
    BatchStatement,
    BatchType,
    PreparedStatement,
    tuple_factory,
)

from cqueue.errors import CqueueError, OutcomeUnknown
from cqueue.runtime import waiting
from cqueue.store import decode, driver, outcome
from cqueue.store.driver.errors import was_sent
from cqueue.store.operations import Answers, Operation, Pending
from cqueue.store.quarantine import Quarantine
from cqueue.store.statements import Kind, Statement

T = TypeVar("T")

EVERYWHERE_S = 1.0
"""Seconds that a read from all replicas may take. Callers can go on without it, so a replica that hangs must
not hold them up."""
_DRIVER_LOG = logging.getLogger("cassandra.cluster")
_LATEST: WeakKeyDictionary[Cluster, dict[bytes, PreparedStatement]] = WeakKeyDictionary()
"""The statement that was prepared last for each query id. The driver refers to it weakly, and needs it to
prepare a batch's statements again after a node has forgotten them; it may have been another store's."""

# The coordinator's own read, or what it was told by replicas (`read_thresholds_enabled`).
_WARNING = re.compile(r"Read \d+ live rows and (\d+) tombstone cells|scanned up to (\d+) tombstones")


Decode = Callable[[list[Any]], T]
"""Decodes the rows of an answer: the tuples of all pages, or bytes for a raw statement."""
Starters = dict[type[Operation[Any]], Callable[[Any], Pending[Any]]]
"""By operation type, the function that sends it."""


class Request(Generic[T]):
    """One statement under way.

    The waiting thread enforces the timeout, not the driver. The driver would keep a timer for each request
    until the timeout, long after the answer came, and the timer would keep the request and its answer alive.
    Python's garbage collector would stop everything for 100 to 200 ms every few seconds to scan them.
    """

    __slots__ = ("_answered", "_decode", "_end_s", "_future", "_kind", "_requests", "_timeout_s")

    def __init__(
        self, requests: Requests, future: Any, kind: Kind, decode: Decode[T], *, timeout_s: float
    ) -> None:
        self._requests = requests
        self._future = future
        self._kind = kind
        self._decode = decode
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s
        self._answered = _Answered()
        of_answer = (self._answered,)  # not `self`, which holds the future: that would be a cycle
        future.add_callbacks(_note, _note, callback_args=of_answer, errback_args=of_answer)

    @property
    def warnings(self) -> list[str] | None:
        """What Cassandra warns of in the answer."""
        return self._future.warnings  # type: ignore[no-any-return]

    def age_us(self) -> int:
        """Return for how many µs the answer has been here; 0 while there is none."""
        return int(max(0.0, time.monotonic() - self._answered.at_s) * 1e6)

    def result(self) -> T:
        """Wait for the answer, fetch further pages, and decode all rows. Raises the translated error."""
        future = self._future
        try:
            rows = self._page()
            while future.has_more_pages:
                self._answered.clear()
                self._end_s = time.monotonic() + self._timeout_s
                future.start_fetching_next_page()
                rows += self._page()
        except Exception as exc:
            login = self._requests.refused_login
            raise outcome.error(exc, self._kind, sent=was_sent(future), login=login) from exc
        return self._decode(self._requests.driver.rows(rows))

    def _page(self) -> Any:
        if not self._answered.wait(self._end_s - time.monotonic()):
            raise TimeoutError(f"no answer within {self._timeout_s:.1f} s")
        return self._future.result().current_rows


class _Answered(waiting.Signal):
    """Set when an answer comes. at_s: when that was, by the monotonic clock."""

    at_s = float("inf")


def _note(_answer: Any, answered: _Answered) -> None:
    answered.at_s = time.monotonic()
    answered.set()


Job = tuple[int, Callable[[], Pending[T]]]
"""A weight, in the unit of the window's limit, and the function that sends the request."""


class Window(Generic[T]):
    """Sends requests in order, as many at a time as their summed weights stay within a limit."""

    def __init__(self, jobs: Iterable[Job[T]], limit: int) -> None:
        self._jobs = iter(jobs)
        self._limit = limit
        self._weight = 0
        self._under_way: deque[tuple[int, Pending[T] | CqueueError]] = deque()
        self._next: Job[T] | None = next(self._jobs, None)
        self._fill()

    def _fill(self) -> None:
        # A request heavier than the limit goes alone, or it would never go.
        while self._next and (not self._under_way or self._weight + self._next[0] <= self._limit):
            weight, send = self._next
            self._under_way.append((weight, sent_or_error(send)))
            self._weight += weight
            self._next = next(self._jobs, None)

    def results(self) -> Iterator[T | CqueueError]:
        """Yield the result or the error of each request, in order."""
        while self._under_way:
            weight, pending = self._under_way.popleft()
            yield result_or_error(pending)
            self._weight -= weight
            self._fill()


Steps = Generator[None, None, T]
"""A generator that makes one result of several requests. It sends the first ones, yields once, and waits and
sends the others when it is resumed."""


class ManyRequests(Generic[T]):
    """A `Pending` on top of `Steps`. The first requests are sent when it is made."""

    def __init__(self, steps: Steps[T]) -> None:
        next(steps)
        self._steps = steps

    def result(self) -> T:
        """Run the steps to their end, and return their result."""
        try:
            next(self._steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("Steps yield once.")


def collected(window: Window[Any], kind: Kind, combine: Callable[[list[Any]], T]) -> Steps[T]:
    """Combine the results of a window into one. Writes fail as "not done" only if all of them failed so."""
    yield
    results = list(window.results())
    errors = [result for result in results if isinstance(result, CqueueError)]
    if not errors:
        return combine(results)
    worst = next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
    if isinstance(worst, OutcomeUnknown) or kind is Kind.READ or len(errors) == len(results):
        raise worst
    raise OutcomeUnknown(f"{len(errors)} of {len(results)} parts were not written: {worst}") from worst


def sent_or_error(send: Callable[[], Pending[T]]) -> Pending[T] | CqueueError:
    """Send a request. Return it, or the error that kept it from being sent."""
    try:
        return send()
    except CqueueError as exc:
        return exc


def result_or_error(pending: Pending[T] | CqueueError) -> T | CqueueError:
    """Wait for a request. Return its result, or its error as a value."""
    if isinstance(pending, CqueueError):
        return pending
    try:
        return pending.result()
    except CqueueError as exc:
        return exc


def results_of(pending: Sequence[Pending[Any] | CqueueError]) -> Answers:
    """Wait for several requests. Return the result or the error of each, in order."""
    results = [result_or_error(one) for one in pending]
    return Answers(results, [one.age_us() if isinstance(one, Request) else 0 for one in pending])


class Requests:
    """Prepares and sends statements through one session, with the consistency that each kind requires.

    quarantine: gets the damaged rows of answers.
    """

    def __init__(self, session: Session, consistency: int, serial_consistency: int) -> None:
        self.driver = driver.used()
        self.quarantine = Quarantine()
        self._session = session
        self._prepared: dict[Statement, PreparedStatement] = {}
        self._preparing = Lock()
        self.profile = session.execution_profile_clone_update(
            EXEC_PROFILE_DEFAULT,
            row_factory=tuple_factory,
            retry_policy=FallthroughRetryPolicy(),
            speculative_execution_policy=NoSpeculativeExecutionPolicy(),
            consistency_level=consistency,
            serial_consistency_level=serial_consistency,
        )

    @property
    def refused_login(self) -> Exception | None:
        """The refusal of the client's last login, or None if the login succeeded."""
        return getattr(self._session.cluster.auth_provider, "refused", None)

    def send(
        self, statement: Statement, values: Iterable[Any], decode: Decode[T], *, everywhere: bool = False
    ) -> Request[T]:
        """Send one statement; the value None is null. everywhere: at consistency ALL, within
        `EVERYWHERE_S`.
        """
        bound = self.driver.bind(self.prepared(statement), values)
        if not everywhere:
            return self._submit(bound, statement.kind, decode)
        bound.consistency_level = ConsistencyLevel.ALL
        with waiting.within(EVERYWHERE_S):
            return self._submit(bound, statement.kind, decode)

    def write(self, statement: Statement, *values: Any) -> Request[None]:
        """Send a plain write."""
        return self.send(statement, values, nothing)

    def change(self, statement: Statement, *values: Any) -> Request[bool]:
        """Send a conditional mutation; its result says whether it was applied."""
        return self.send(statement, values, applied)

    def rows(
        self, statement: Statement, values: Iterable[Any], found: Callable[..., decode.Decoded], **how: bool
    ) -> Request[Any]:
        """Send a read whose result is all readable rows. found: decodes an answer, with the options `how`."""
        return self.send(
            statement, values, lambda rows: decode.readable_rows(found(rows, **how), self.quarantine)
        )

    def row(
        self, statement: Statement, values: Iterable[Any], found: Callable[..., decode.Decoded], **how: bool
    ) -> Request[Any]:
        """Send a read whose result is its only row or None; it raises DamagedRow for a damaged one."""
        return self.send(statement, values, lambda rows: decode.only_row(found(rows, **how), self.quarantine))

    def send_batch(
        self, kind: Kind, parts: Iterable[tuple[Statement, Iterable[Any]]], decode: Decode[T]
    ) -> Request[T]:
        """Send several statements of one partition and one kind as a single mutation."""
        batch = self._batch(kind)
        for statement, values in parts:
            batch.add(self.driver.bind(self.prepared(statement), values))
        return self._submit(batch, kind, decode)

    def send_encoded(
        self, statement: Statement, partition: Sequence[bytes], rows: Sequence[bytes]
    ) -> Request[None]:
        """Send a plain statement for many rows as one mutation; a single row goes without a batch.

        partition: the encoded values of the partition key, which come first in the statement.
        rows: for each row its other values, encoded as cells.
        """
        batch = partial(self._batch, statement.kind)
        whole = self.driver.many(batch, self.prepared(statement), partition, rows)
        return self._submit(whole, statement.kind, nothing)

    def _batch(self, kind: Kind) -> BatchStatement:
        batch = BatchStatement(BatchType.UNLOGGED)
        batch.is_idempotent = kind is not Kind.CONDITIONAL
        return batch

    def _submit(self, statement: Any, kind: Kind, decode: Decode[T]) -> Request[T]:
        timeout_s = waiting.left_s(self.profile.request_timeout)
        try:
            future = self._session.execute_async(statement, timeout=None, execution_profile=self.profile)
        except Exception as exc:
            raise outcome.error(exc, kind) from exc
        return Request(self, future, kind, decode, timeout_s=timeout_s)

    def prepared(self, statement: Statement) -> PreparedStatement:
        """Return the prepared statement; prepare it on first use."""
        found = self._prepared.get(statement)
        if found is not None:
            return found
        end_s = time.monotonic() + waiting.left_s(self.profile.request_timeout)
        return waiting.in_thread(partial(self._prepare, statement, end_s))

    def _prepare(self, statement: Statement, end_s: float) -> PreparedStatement:
        """Prepare a statement. The driver's log line is muted: it would add a traceback to each raised
        error.
        """
        with self._preparing:
            if statement in self._prepared:
                return self._prepared[statement]
            _DRIVER_LOG.addFilter(_is_news)
            try:
                text = statement.cql.format(keyspace=self._session.keyspace)
                left_s = max(waiting.SHORTEST_S, end_s - time.monotonic())  # others may have come before
                prepared = self.driver.prepare(self._session, text, left_s)
            except Exception as exc:
                raise outcome.error(exc, Kind.READ) from exc
            finally:
                _DRIVER_LOG.removeFilter(_is_news)
            self._configure(prepared, statement)
            _LATEST.setdefault(self._session.cluster, {})[prepared.query_id] = prepared
            self._prepared[statement] = prepared
            return prepared

    def _configure(self, prepared: PreparedStatement, statement: Statement) -> None:
        self.driver.configure(prepared, raw=statement.raw)
        if statement.serial:
            prepared.consistency_level = self.profile.serial_consistency_level
        prepared.is_idempotent = statement.kind is not Kind.CONDITIONAL
        prepared.fetch_size = statement.page_rows or None


def nothing(_rows: list[Any]) -> None:
    """Decode the answer to a plain write: there is nothing in it."""


def applied(rows: list[Any]) -> bool:
    """Decode the answer to a conditional mutation: True if it was applied."""
    return bool(rows[0][0])


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != "Error preparing query:"


# ── tombstones ──
#
# Cassandra tells how many tombstones a read crossed only in a warning to the client, above
# `tombstone_warn_threshold` (1,000). The driver logs every warning. cqueue uses these as part of the answer,
# and keeps them out of the log, where each read of a busy wide row would add one.


def tombstones(warnings: Iterable[str] | None) -> int:
    """Return the largest number of tombstones in an answer's warnings, or 0."""
    found = (_WARNING.search(warning) for warning in warnings or ())
    return max((int(match[1] or match[2]) for match in found if match), default=0)


def silence_warnings() -> None:
    """Keep the warnings of tombstones, and no others, out of the driver's log."""
    logging.getLogger("cassandra.protocol").addFilter(_is_other)  # adding it again does nothing


def _is_other(record: logging.LogRecord) -> bool:
    return _WARNING.search(record.getMessage()) is None
