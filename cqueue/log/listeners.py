"""Call listeners with records: in turn, again after a failure, and bury a record after the last attempt.

Each record counts the listeners that are done with it. So while this member owns the partition, no listener
is called again for a record that it has handled.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, Final

from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_base, wait_random_exponential

from cqueue.errors import BadInput, LogExists, LogNotFound, NotDone, RecordRejected
from cqueue.log.backlogs import PartitionBacklog, Waiting
from cqueue.log.catalog import LogCatalog
from cqueue.log.config import LogConfig
from cqueue.log.log import Log
from cqueue.log.records import LogRecord
from cqueue.message import MAX_HEADERS, MAX_HEADERS_BYTES, check_limit, headers_size
from cqueue.runtime import logs
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.sequences import parts
from cqueue.runtime.texts import storable

DEAD_SUFFIX: Final = ".dead"
"""What follows a log's name in the name of its dead-letter log."""
DEFAULT_WAIT: Final = wait_random_exponential(multiplier=0.1, min=0.1, max=30)
"""Seconds before the next attempt by default: random, up to 0.1 s at first, doubling up to 30 s."""
MAX_BATCH: Final = 10_000
"""Records that a listener may take at once at most: as many as one `append_many`."""
MAX_WORDS: Final = 500
"""Characters of an error kept in a dead letter and in log events."""
MAX_ATTEMPTS: Final = 1_000_000
"""The highest `max_attempts`; 0 stands for ever."""
BURY_AGAIN_S: Final = 1.0
"""Seconds until a failed burial is tried again."""

HEADER_REASON: Final = "cqueue-dead-reason"
HEADER_LOG: Final = "cqueue-dead-log"
HEADER_SUBSCRIPTION: Final = "cqueue-dead-subscription"
HEADER_ID: Final = "cqueue-dead-id"
HEADER_PARTITION: Final = "cqueue-dead-partition"
HEADER_ATTEMPTS: Final = "cqueue-dead-attempts"

Listener = Callable[[Any], object]
"""Called with one `LogRecord`, or if it has an attribute `batch_size` with a list of up to that many records
of one partition."""

_RETRYING = Retrying()
_RUN_LATER: Final = (iscoroutinefunction, isgeneratorfunction, isasyncgenfunction)
LOGGER: Final = "cqueue.log"
RECORD_DEAD: Final = "record_dead"


@dataclass(frozen=True, slots=True)
class Batched:
    """A listener that takes records in lists of up to `batch_size`."""

    call: Callable[[list[LogRecord]], object]
    batch_size: int

    def __call__(self, records: list[LogRecord]) -> None:
        """Call the wrapped function."""
        self.call(records)


def batched(size: int) -> Callable[[Callable[[list[LogRecord]], object]], Batched]:
    """Decorate a listener to take records in lists of up to `size` (1 to 10,000), each of one partition.

    Raises:
        BadInput: `size` is out of range.
    """
    check_limit(size, MAX_BATCH, "the batch size")
    return lambda listener: Batched(listener, size)


def checked_listeners(listeners: Sequence[Listener]) -> tuple[Listener, ...]:
    """Check listeners.

    Raises:
        BadInput: there is no listener, or one cannot be called, is a coroutine or generator function, or has
            a bad batch size.
    """
    found = tuple(listeners) if isinstance(listeners, Iterable) and not callable(listeners) else ()
    if not found or not all(map(callable, found)):
        raise BadInput("listeners takes a list of one or more that can be called")
    for each in found:
        check_limit(getattr(each, "batch_size", 1), MAX_BATCH, "the batch size")
        _check_runs(each.call if isinstance(each, Batched) else each)
    return found


def _check_runs(listener: Any) -> None:
    """Refuse a listener whose records would count as done, though calling it runs nothing."""
    called = (listener, getattr(listener, "__call__", None))  # noqa: B004 - the method itself is examined
    if any(runs_later(each) for runs_later in _RUN_LATER for each in called):
        raise BadInput(f"{listener!r} is a coroutine or generator function: calling it runs nothing")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a listener is called for a record (0: for ever), and how long it waits after failures."""

    max_attempts: int = 5
    wait: wait_base = DEFAULT_WAIT

    def after_s(self, attempts: int, error: Exception) -> float:
        """Return the seconds until the next attempt."""
        state = RetryCallState(_RETRYING, None, (), {})
        state.attempt_number = attempts
        state.set_exception((type(error), error, None))
        return max(0.0, float(self.wait(state)))

    def is_over(self, attempts: int, error: Exception) -> bool:
        """Return whether no further attempt is made."""
        return isinstance(error, RecordRejected) or bool(self.max_attempts and attempts >= self.max_attempts)


def policy_of(max_attempts: int, wait: wait_base | None) -> RetryPolicy:
    """Check the options that say how failures are retried.

    Raises:
        BadInput: an option is out of range.
    """
    if type(max_attempts) is not int or not 0 <= max_attempts <= MAX_ATTEMPTS:
        raise BadInput(f"max_attempts is {max_attempts!r}; it goes from 0 (for ever) to {MAX_ATTEMPTS:,}")
    if wait is not None and not callable(wait):
        raise BadInput(f"wait is {wait!r}; it takes a tenacity.wait_… object")
    return RetryPolicy(max_attempts) if wait is None else RetryPolicy(max_attempts, wait)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a listener, and the first record that the listener had not handled."""

    error: Exception
    listener: Listener
    at: Waiting


class ListenerCalls:
    """Calls the listeners of one subscription with its records."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        policy: RetryPolicy,
        bury: Callable[[LogRecord, int, str], None],
        *,
        about: Mapping[str, str],
        driver: BlockingDriver,
    ) -> None:
        self._driver = driver
        self._listeners = checked_listeners(listeners)
        self._policy = policy
        self._bury = bury
        self._about = about  # fields of log events that name the subscription
        self.chunk_size = max(getattr(each, "batch_size", 1) for each in self._listeners)

    def deliver(
        self, backlog: PartitionBacklog, chunk: list[Waiting], now_s: float, may_call: Callable[[], bool]
    ) -> None:
        """Call the listeners that have not handled the chunk. Afterwards each record is done, or waits again.

        may_call: asked before each call.

        Raises:
            CqueueError: a dead letter could not be stored; the record waits.
        """
        if not chunk[0].reason:
            failure = self._call_all(chunk, may_call)
            if failure is not None:
                self._failed(backlog, chunk, failure, now_s)
        self._bury_dead(backlog, chunk[0], now_s)
        backlog.finish(one for one in chunk if one.reason or one.stage == len(self._listeners))

    def _call_all(self, chunk: list[Waiting], may_call: Callable[[], bool]) -> Failure | None:
        """Call the listeners with the records that they have not handled, in portions, while that may be."""
        for stage, listener in enumerate(self._listeners):
            size = getattr(listener, "batch_size", 0)
            for some in parts([one for one in chunk if one.stage == stage], size or 1):
                if not may_call():
                    return None
                try:
                    self._call(listener, [one.record for one in some] if size else some[0].record)
                except Exception as exc:  # noqa: BLE001 - whatever a listener raises is a failure of this record
                    return Failure(exc, listener, some[0])
                for one in some:
                    one.stage += 1
        return None

    def _call(self, listener: Listener, told: Any) -> None:
        """Call a listener with a record, or a list of them; in a span if somebody traces."""
        tracing = self._driver.tracing
        if tracing is None:
            listener(told)
            return
        records = told if isinstance(told, list) else [told]
        more = {
            "messaging.destination.subscription.name": self._about["subscription"],
            "messaging.destination.partition.id": str(records[0].partition),
        }
        tracing.around("process", self._about["log"], records, lambda: listener(told), more)

    def _failed(
        self, backlog: PartitionBacklog, chunk: list[Waiting], failure: Failure, now_s: float
    ) -> None:
        """Schedule the next attempt, one record at a time; after the last one, say why the record is dead.

        Records that failed together are handed out one by one, to find the one that fails.
        """
        # With low latency the last one may be older; after a failure of one, others still have to be alone.
        backlog.alone_upto = max(backlog.alone_upto, *(one.id for one in chunk))
        if len(chunk) > 1:
            self._tell("listener_batch_failed", failure, records=len(chunk))
            return
        one, error = chunk[0], failure.error
        one.attempts += 1
        is_last = self._policy.is_over(one.attempts, error)
        self._tell(RECORD_DEAD if is_last else "listener_failed", failure, attempt=one.attempts)
        if is_last:
            one.reason = _words(error)
        else:
            backlog.until_s = now_s + self._policy.after_s(one.attempts, error)

    def _tell(self, event: str, failure: Failure, **fields: int) -> None:
        """Log one failure. Of the record the event holds only its id and partition, never content."""
        record, listener, error = failure.at.record, failure.listener, failure.error
        if record is not None:
            fields |= {"partition": record.partition}
        said = logs.describe(error, texts=logs.is_ours(error))
        log = logs.logger(LOGGER)
        say = log.error if event == RECORD_DEAD else log.warning
        say(
            event,
            **self._about,
            record=None if record is None else str(record.id),
            listener=getattr(listener, "__qualname__", type(listener).__qualname__),
            **fields,
            error=said,
            **logs.trace(error, is_final=event == RECORD_DEAD, said=said),
        )

    def _bury_dead(self, backlog: PartitionBacklog, one: Waiting, now_s: float) -> None:
        if not one.reason or one.record is None:
            return
        backlog.until_s = now_s + BURY_AGAIN_S  # for the case that the burial fails
        self._bury(one.record, one.attempts, one.reason)
        backlog.until_s = 0.0


def _words(error: Exception) -> str:
    return storable("".join(traceback.format_exception_only(error)).strip()[:MAX_WORDS])


class DeadLetters:
    """The dead-letter log `<log>.dead`, created when it is first needed."""

    def __init__(self, catalog: LogCatalog, dead: Log, log: str, subscription: str) -> None:
        self._catalog = catalog
        self._source = log
        self._subscription = subscription
        self._dead = dead

    def bury(self, record: LogRecord, attempts: int, reason: str) -> None:
        """Append a record, with headers that say why it died and where it stood.

        Raises:
            NotDone, AppendUnknown: the letter may be missing; burying it again may make a second copy.
        """
        self._create()
        why = {
            HEADER_REASON: reason,
            HEADER_LOG: self._source,
            HEADER_SUBSCRIPTION: self._subscription,
            HEADER_ID: str(record.id),
            HEADER_PARTITION: str(record.partition),
            HEADER_ATTEMPTS: str(attempts),
        }
        headers = _fitting(record.headers, why)
        try:
            self._dead.append(record.topic, record.body, key=record.key, headers=headers)
        except LogNotFound as exc:
            raise NotDone(f"log {self._dead.name!r} is being deleted, so a dead letter waits") from exc

    def _create(self) -> None:
        try:
            self._catalog.entry(self._dead.name)
        except LogNotFound:
            ttl = self._catalog.entry(self._source).config.ttl
            with suppress(LogExists):  # another member was quicker
                self._catalog.create(self._dead.name, LogConfig(partitions=1, ttl=ttl), exist_ok=True)


def _fitting(headers: Mapping[str, str], why: dict[str, str]) -> dict[str, str]:
    """Return the headers `why`, and as many of the record's own headers as the limits allow."""
    both = dict(why)
    room = MAX_HEADERS_BYTES - headers_size(why)
    for name, value in headers.items():
        room -= len(name.encode()) + len(value.encode())
        if room < 0 or len(both) == MAX_HEADERS:
            break
        both.setdefault(name, value)
    return both
