"""The history of a queue: what workers told of its messages, in the log `cqueue.history.<queue>` beside it.

A worker tells after it has decided, many events in one record, from a thread of its own. So a history costs
a fraction of what the queue costs, and neither loses nor delays a message. The price: it is a record of what
workers told, and not of what is stored. A worker that dies, or cannot append, takes its last events with it.

A record of the log goes to the partition that follows from the messages' ids, so that the history of one
message is in one partition of eight.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cqueue.errors import (
    BadInput,
    ConfigError,
    InvalidQueueName,
    LogExists,
    LogNotFound,
    unknown_if_not_done,
)
from cqueue.log.config import LogConfig
from cqueue.log.log import Log
from cqueue.log.records import Record
from cqueue.message import MessageId, check_limit, check_queue_name, to_datetime
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.texts import check_text

if TYPE_CHECKING:
    from cqueue.log.catalog import LogCatalog
    from cqueue.log.notifier import AppendNotifier

PREFIX: Final = "cqueue.history."
"""Before the queue's name, in the name of the log."""
PARTITIONS: Final = 8
"""Partitions of a history: the history of one message is read in one of them."""
TOPIC: Final = "history"
RECORD_CHARS: Final = 200_000
"""Characters of events in one record, about: far below the 1 MiB that a record may have."""
MAX_LIMIT: Final = 10_000
"""Events that one call returns, at most; all of them are held in memory."""
_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one for each event
STATES: Final = (
    "running", "succeeded", "retried", "dead", "snoozed", "cancelled", "skipped", "left", "interrupted",
    "lost",
)  # fmt: skip
"""States of an event, as `HistoryEvent.state` has them."""
LATE: Final = timedelta(seconds=3)
"""How much later than another worker's a record may come whose events are as old."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """What a worker told of one message. Times are in UTC, by the cluster's clock.

    Attributes:
        at: when it happened: the decision about the message, or the start of a handler that runs.
        state: running; succeeded, retried, dead, snoozed, cancelled, skipped (a firing that its schedule
            dropped), left (to its timeout), interrupted, or lost (to another worker).
        message_id: the message.
        task, key: as the message was sent.
        worker: name of the worker, as `cqueue workers` shows it.
        attempt: number of the delivery, from 1.
        fence: fencing token of the delivery.
        sent_at: when the message was sent; it waited from then, or from its due time.
        began_at: when the handler was called; None if it was not.
        next_at: when a message that is to come again is due.
        error: name of the class of what the handler raised.
        reason: why the message died or was cancelled; else the error's text.
        traceback: of what the handler raised.
        schedule: key of the schedule whose firing the message is.
        fired_at: the time that was fired.
    """

    at: datetime
    state: str
    message_id: MessageId
    task: str | None
    key: str | None
    worker: str
    attempt: int
    fence: int
    sent_at: datetime
    began_at: datetime | None = None
    next_at: datetime | None = None
    error: str | None = None
    reason: str | None = field(default=None, repr=False)
    traceback: str | None = field(default=None, repr=False)
    schedule: str | None = None
    fired_at: datetime | None = None


class Told(NamedTuple):
    """An event as it is stored, apart from the worker; in this order. Times: ms since 1970."""

    at: int
    state: str
    id: str
    task: str | None
    key: str | None
    attempt: int
    fence: int
    sent_at: int
    began_at: int | None = None
    next_at: int | None = None
    error: str | None = None
    reason: str | None = None
    traceback: str | None = None
    schedule: str | None = None
    fired_at: int | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are asked for; None, or no states: whatever it is.

    Raises:
        BadInput: one of the texts is none.
    """

    message_id: str | None = None
    key: str | None = None
    worker: str | None = None
    schedule: str | None = None
    states: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Check the texts, which would otherwise be found nowhere."""
        for name in ("key", "worker", "schedule"):
            if (text := getattr(self, name)) is not None:
                check_text(name, text)

    def is_met(self, event: HistoryEvent) -> bool:
        """Return whether an event is one of those."""
        return (
            (self.message_id is None or event.message_id == self.message_id)
            and (self.key is None or event.key == self.key)
            and (self.schedule is None or event.schedule == self.schedule)
            and (not self.states or event.state in self.states)
        )


class QueueHistory:
    """The history of one queue. Thread-safe.

    Args:
        queue: name of the queue.
        catalog, driver, notifier: of the client's logs.
    """

    def __init__(
        self, queue: str, catalog: LogCatalog, driver: BlockingDriver, notifier: AppendNotifier
    ) -> None:
        self._catalog = catalog
        self._log = Log(f"{PREFIX}{queue}", catalog, driver, notifier)

    def check(self, ttl: timedelta | None) -> None:
        """Raise ConfigError if the queue cannot keep a history, because its name is too long for that."""
        if ttl is not None:
            try:
                check_queue_name(self._log.name)
            except InvalidQueueName as exc:
                raise ConfigError(
                    f"a queue with a history has a name of up to 185 characters: {exc}"
                ) from exc

    def keep(self, ttl: timedelta | None) -> None:
        """Create the log, or have it keep new records for another time; nothing without a time to live.

        Raises:
            OutcomeUnknown: the log may not be there, but the queue is; the call may be repeated.
        """
        if ttl is not None:
            with unknown_if_not_done(f"the queue is stored, but its history {self._log.name!r} may not be"):
                self._keep(LogConfig(partitions=PARTITIONS, ttl=ttl))

    def _keep(self, config: LogConfig) -> None:
        with suppress(LogExists):
            entry = self._catalog.create(self._log.name, config, exist_ok=True)
            if entry.config.ttl == config.ttl:
                return
        with suppress(LogNotFound):
            self._log.alter(ttl=config.ttl)
            return
        self.find()()  # a deletion of the log broke off
        self._catalog.create(self._log.name, config, exist_ok=True)

    def find(self) -> Callable[[], None]:
        """Find the log as it is now. Return a call that deletes it, and no later one of its name."""
        with suppress(InvalidQueueName):  # too long a name has never had one
            row = self._catalog.find(self._log.name)
            if row is not None:
                return partial(self._catalog.delete_only, row)
        return lambda: None

    def append(self, worker: str, events: Sequence[Told]) -> tuple[int, Exception | None]:
        """Store events.

        Returns:
            How many of them may be missing, and why.
        """
        records = list(_records(worker, events))
        failed = self._log.append_many(record for record, _ in records).failed
        return sum(records[index][1] for index, _ in failed), next((error for _, error in failed), None)

    def read(self, wanted: Wanted, since: datetime | None, limit: int) -> list[HistoryEvent]:
        """Return the last `limit` events since then, in the order of time.

        Raises:
            BadInput, InvalidMessageId: an argument is out of range.
            NotDone: Cassandra does not answer.
        """
        check_limit(limit, MAX_LIMIT)
        if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
            raise BadInput(f"since is {since!r}; it takes a datetime with a time zone")
        partitions = None
        if wanted.message_id is not None:
            # Not since it was to be due: it may have been made due sooner, with the same id
            earliest = to_datetime(MessageId(wanted.message_id).locate().wide_row.time_shard)
            since = earliest if since is None else max(earliest, since)
            partitions = [partition_of(wanted.message_id)]
        found: dict[tuple[Any, ...], HistoryEvent] = {}
        enough: datetime | None = None
        try:
            with self._log.scan(
                since or "earliest", reverse=True, partitions=partitions, on_expired="earliest"
            ) as records:
                for record in records:
                    if enough is not None and record.time < enough:
                        break
                    for event in reversed([*_events(record.body, wanted)]):
                        if since is None or event.at >= since:  # a record may be stored twice
                            found[event.message_id, event.fence, event.state, event.at] = event
                    if enough is None and len(found) >= limit:
                        enough = record.time - LATE
        except (LogNotFound, InvalidQueueName):
            return []
        as_told = list(found.values())[::-1]  # events of one millisecond stay in this order
        return sorted(as_told, key=lambda event: event.at)[-limit:]


def partition_of(message_id: str) -> int:
    """Return the partition that has the history of a message."""
    return zlib.crc32(message_id.encode()) % PARTITIONS


def _records(worker: str, events: Iterable[Told]) -> Iterator[tuple[Record, int]]:
    """Yield a record or more for each partition, each with the number of its events."""
    parts: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    head = f'{{"worker":{json.dumps(worker)},"events":['

    def made(partition: int) -> tuple[Record, int]:
        texts = parts.pop(partition)
        del sizes[partition]
        return Record(TOPIC, f"{head}{','.join(texts)}]}}".encode(), partition=partition), len(texts)

    for event in events:
        partition, text = partition_of(event.id), _ENCODE(_short(event))
        parts.setdefault(partition, []).append(text)
        sizes[partition] = sizes.get(partition, 0) + len(text)
        if sizes[partition] >= RECORD_CHARS:
            yield made(partition)
    for partition in list(parts):
        yield made(partition)


def _short(event: Told) -> Sequence[Any]:
    """Return the values without those at the end that are None."""
    last = len(event)
    while event[last - 1] is None:
        last -= 1
    return event[:last]


def _events(body: bytes, wanted: Wanted) -> Iterator[HistoryEvent]:
    """Yield the events of a record that are wanted; those of another form are left out."""
    try:
        record: Mapping[str, Any] = json.loads(body)
        worker, all_values = str(record["worker"]), list(record["events"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for values in all_values if wanted.worker in {None, worker} else ():
        with suppress(ValueError, TypeError, OverflowError):
            event = _event(worker, values)
            if wanted.is_met(event):
                yield event


def _event(worker: str, values: Sequence[Any]) -> HistoryEvent:
    """Return an event. Raises ValueError, TypeError or OverflowError if the values are those of none."""
    at, state, id_, _, _, attempt, fence, sent_at, *_ = values
    if [type(one) for one in (at, state, id_, attempt, fence, sent_at)] != [int, str, str, int, int, int]:
        raise TypeError("a value that every event has is missing, or of another type")
    fields = dict(zip_longest(Told._fields, values[: len(Told._fields)]))
    for name in ("at", "sent_at", "began_at", "next_at", "fired_at"):
        fields[name] = None if fields[name] is None else to_datetime(fields[name])
    return HistoryEvent(worker=worker, message_id=MessageId(fields.pop("id")), **fields)
