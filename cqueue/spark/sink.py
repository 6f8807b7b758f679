"""The sinks of rows: queues and logs. Rows are stored in parts, one while the next is made."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
import tenacity
from pyspark.sql.datasource import WriterCommitMessage

from cqueue.errors import (
    LASTING,
    BadInput,
    CqueueError,
    DelayOutOfRange,
    HeadersTooLarge,
    NotDone,
    PriorityOutOfRange,
    SendUnknown,
)
from cqueue.log.protocol.append import Entry, append
from cqueue.log.protocol.spec import LogSpec
from cqueue.message import MAX_HEADERS, MAX_PRIORITY
from cqueue.protocol.send import Flush, Outgoing, ProducerState, send
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.writing import WriterState
from cqueue.spark import rows
from cqueue.spark.ledger import MARK, Attempt, digest_of
from cqueue.spark.options import WriteOptions
from cqueue.spark.pace import Pace
from cqueue.spark.session import SparkSide, again, patient

PART: Final = 2000
LANES: Final = 2
"""Parts stored side by side."""
STEP_US: Final = 5
"""µs between the due times of two rows of a task: rows are written more slowly, so none is late."""
SPREAD_US: Final = 1_000_000

Failed = tuple[Any, CqueueError]
"""An entry that is not stored, or perhaps not, and why."""


class Sink(ABC):
    """Turns batches into entries, and stores those. One a task.

    Attributes:
        state: the kind of what storing one part leaves to the next.
        repeatable: whether storing an entry again makes no copy.
    """

    state: type[WriterState] = WriterState
    repeatable = False

    def __init__(self, side: SparkSide, options: WriteOptions) -> None:
        self.side = side
        self.options = options

    @abstractmethod
    def entries(self, batch: pa.RecordBatch, first: int) -> list[Any]:
        """Turn a batch into entries, all of them checked. first: the number of its first row in the task.

        Raises:
            BadInput: one of its kinds; nothing of the batch is stored.
        """

    def lanes(self, entries: Sequence[Any]) -> list[list[Any]]:
        """Divide entries into `LANES` lists, of which each is stored in order, beside the others."""
        half = -(-len(entries) // LANES) or 1
        return [list(entries[start : start + half]) for start in range(0, half * LANES, half)]

    @abstractmethod
    def store(self, entries: Sequence[Any], state: Any) -> list[tuple[int, CqueueError]]:
        """Store entries; return (place, error) of those that are not stored, or perhaps not.

        Raises:
            OwnershipLost: another attempt of the task stores them.
        """


class QueueSink(Sink):
    """Messages. `source` of a row's number, where ids derive from that; due_us: for rows without one."""

    state = ProducerState

    def __init__(
        self,
        side: SparkSide,
        options: WriteOptions,
        *,
        work: str | None = None,
        due_us: int | None = None,
    ) -> None:
        """work: the name that row numbers belong to, for derived ids where no column is named."""
        super().__init__(side, options)
        self._work = work
        self._base_us = due_us
        self.repeatable = options.id_column is not None or work is not None
        spec = self._spec  # raises if there is no such queue: while Spark plans, not in a task
        if self.repeatable and not spec.has_open_rows:
            raise BadInput(f"queue {options.name!r} takes no derived ids; alter it first: derived_sends=True")

    @property
    def _spec(self) -> QueueSpec:
        """Return the queue as it is now: a task may last for hours."""
        return self.side.queues.entry(self.options.name).spec

    def entries(self, batch: pa.RecordBatch, first: int) -> list[Outgoing]:
        """Make messages with due times and sources, all limits checked."""
        columns = rows.Columns(batch, first)
        count, now_us = len(columns), self.side.driver.clock.now_us()
        none: list[Any] = [None] * count
        found = [
            columns.bodies(),
            [each or 0 for each in columns.whole("priority", 0, MAX_PRIORITY, PriorityOutOfRange) or none],
            self._due(columns, first, now_us),
            columns.headers() or none,
            self._expires_ms(columns, now_us),  # in place of the ttl, until the row is sent
            columns.texts("codec") or none,
            columns.texts("task") or none,
            columns.texts("key") or none,
            none,
            self._sources(columns, first),
        ]
        return list(map(Outgoing._make, zip(*found, strict=True)))

    def _due(self, columns: rows.Columns, first: int, now_us: int) -> list[int | None]:
        """Return when each row is due; None is now."""
        given, delays = columns.times_us("due"), columns.delays_us()
        base_us = self._base_us if self.options.due_us is None else self.options.due_us
        due = self._spread(columns, first, base_us)
        if delays is not None:
            # Not from the option, which is for rows without a time of their own.
            start_us = now_us if self._base_us is None else self._base_us
            due = [old if each is None else start_us + each for each, old in zip(delays, due, strict=True)]
        if given is not None:
            both = [
                a is not None and b is not None
                for a, b in zip(given, delays or [None] * len(given), strict=True)
            ]
            columns.refuse_any(both, BadInput, "has a due and a delay")
            due = [old if each is None else each for each, old in zip(given, due, strict=True)]
        far = now_us + rows.MAX_DELAY_US
        columns.refuse_any(
            [each is not None and each > far for each in due], DelayOutOfRange, "is due in more than 10 years"
        )
        if self.repeatable:
            self._check_derived(columns, due, now_us)
        return due

    def _spread(self, columns: rows.Columns, first: int, base_us: int | None) -> list[int | None]:
        """One time for all rows, and a little more for each where ids are derived from it.

        Consumers go through a wide row in steps of time: what is due at the same microsecond is never split,
        and a hundred thousand acked messages there would stop them.
        """
        if base_us is None or not self.repeatable:
            return [base_us] * len(columns)
        name = self.options.id_column
        if name is None:
            return [base_us + STEP_US * number for number in range(first, first + len(columns))]
        return [base_us + crc32(each.encode()) % SPREAD_US for each in columns.sources(name)]

    def _check_derived(self, columns: rows.Columns, due: list[int | None], now_us: int) -> None:
        what = "has no due, which idColumn needs; option due is for such rows"
        columns.refuse_any([each is None for each in due], BadInput, what)
        spec = self._spec
        oldest_us = now_us + 2 * spec.settle_us - spec.gc_grace_us
        what = "is due longer ago than the deployment's gc_grace, so it may have been done; give a later due"
        if self._base_us is not None and self._base_us < oldest_us:
            what = (
                "is of a batch that was first tried longer ago than the deployment's gc_grace, so it may be "
                "done; staleBatch=resend (--resend-stale) sends it all the same, perhaps as a copy"
            )
        columns.refuse_any([each is not None and each < oldest_us for each in due], DelayOutOfRange, what)

    def _expires_ms(self, columns: rows.Columns, now_us: int) -> list[int | None]:
        """Return when each row expires, in ms since 1970; None is never."""
        expires = columns.times_us("expires")
        if expires is None:
            return [None] * len(columns)
        columns.refuse_any(
            [each is not None and each - now_us > rows.MAX_DELAY_US for each in expires],
            BadInput,
            "expires in more than 10 years; null is never",
        )
        if not self.repeatable:  # the first try may have stored the row in time, so a repeat must not fail
            past = [each is not None and each < now_us + 1000 for each in expires]
            columns.refuse_any(past, BadInput, "has expired already")
        return [None if each is None else each // 1000 for each in expires]

    def _sources(self, columns: rows.Columns, first: int) -> list[bytes | None]:
        """Return sources as `Message.source` counts them: a text's bytes behind an s.

        Ids that a stream's job gives its rows name them within its query: two of a log are other messages.
        """
        if (name := self.options.id_column) is not None:
            query = f"{self._work.partition('/')[0]}/" if self._work and name == rows.JOB_ID else ""
            return [f"s{query}{each}".encode() for each in columns.sources(name)]
        if self._work is None:
            return [None] * len(columns)
        return [f"s{self._work}/{number}".encode() for number in range(first, first + len(columns))]

    def store(self, entries: Sequence[Any], state: Any) -> list[tuple[int, CqueueError]]:
        """Send entries; return those that failed."""
        now_ms = self.side.driver.clock.now_us() // 1000  # a row may have waited for long, as with a rate
        messages = [
            each if each.ttl_ms is None else each._replace(ttl_ms=max(1, each.ttl_ms - now_ms))
            for each in entries
        ]
        flushes: list[Flush] = self.side.driver.run(send(self._spec, state, messages))
        return [(index, flush.error) for flush in flushes if flush.error for index in flush.indexes]


@dataclass(frozen=True, slots=True)
class Marks:
    """What a task knows of records with its marks. seen: digests of those that are in the log already."""

    prefix: str
    attempt: Attempt
    seen: frozenset[bytes]


class LogSink(Sink):
    """Records. Without marks nobody can tell whether one is stored: readers may have seen the first copy."""

    def __init__(self, side: SparkSide, options: WriteOptions, *, marks: Marks | None = None) -> None:
        super().__init__(side, options)
        self._marks = marks
        _ = self._spec  # raises if there is no such log: while Spark plans, not in a task

    @property
    def _spec(self) -> LogSpec:
        """Return the log as it is now: a task may last for hours."""
        return self.side.logs.entry(self.options.name).spec

    def entries(self, batch: pa.RecordBatch, first: int) -> list[Entry]:
        """Make records, all limits checked, without those that are stored already."""
        columns = rows.Columns(batch, first)
        none: list[Any] = [None] * len(columns)
        topics = [each or self.options.topic for each in columns.texts("topic") or none]
        columns.refuse_any(
            [each is None for each in topics], BadInput, "has no topic; option topic is for such rows"
        )
        found = [
            topics,
            columns.bodies(),
            columns.texts("key") or none,
            columns.whole("partition", 0, self._spec.partitions - 1, BadInput) or none,
            columns.headers() or none,
        ]
        entries = list(map(Entry._make, zip(*found, strict=True)))
        return entries if self._marks is None else self._marked(entries, columns, first, self._marks)

    def _marked(self, entries: list[Entry], columns: rows.Columns, first: int, known: Marks) -> list[Entry]:
        name = self.options.id_column
        numbers = range(first, first + len(columns)) if name is None else columns.sources(name)
        marks = [f"{known.prefix}{number}" for number in numbers]
        full = [entry.headers is not None and len(entry.headers) >= MAX_HEADERS for entry in entries]
        columns.refuse_any(full, HeadersTooLarge, f"has {MAX_HEADERS} headers, and its mark needs one more")
        return [
            entry._replace(headers={**(entry.headers or {}), MARK: mark})
            for entry, mark in zip(entries, marks, strict=True)
            if not known.seen or digest_of(mark) not in known.seen
        ]

    def lanes(self, entries: Sequence[Entry]) -> list[list[Entry]]:
        """Keep records of one key, or without a key of one partition, in one lane: they are read in order."""
        found: list[list[Entry]] = [[] for _ in range(LANES)]
        for place, entry in enumerate(entries):
            alike = entry.partition if entry.key is None else entry.key
            found[(place if alike is None else hash(alike)) % LANES].append(entry)
        return found

    def store(self, entries: Sequence[Any], state: Any) -> list[tuple[int, CqueueError]]:
        """Append entries; return those that failed."""
        if has_marks := self._marks is not None:
            self._marks.attempt.check()
        # With marks, a repeated task must find what this one leaves if it dies.
        writes = self.side.driver.run(append(self._spec, state, entries, register_first=has_marks))
        return [(index, write.error) for write in writes if write.error for index in write.indexes]


@dataclass
class Written(WriterCommitMessage):
    """A task's rows, and the entries that it stored: fewer where some were there already."""

    rows: int
    stored: int


def write(make: Callable[[], Sink], batches: Iterable[pa.RecordBatch], job: str) -> Written:
    """Store all rows of a task, in parts on `LANES` threads.

    make: called only if there are rows: a sink may cost requests, and most of a thousand tasks may be empty.
        Called again while Cassandra does not answer.
    job: a name that all tasks have which share a rate.

    Raises:
        BadInput: a row is wrong; what came before its batch is stored.
        NotDone: Cassandra does not answer; a part of the rows is stored.
        SendUnknown: the same, and of some rows it is not known.
        OwnershipLost: another attempt of the task has begun, and stores what is missing.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return Written(0, 0)
    sink = patient(make)()
    rate = sink.options.rate
    pace = None if rate is None else Pace(sink.side, job, rate)
    count = stored = 0
    states = [sink.state(turn=random.randrange(1 << 16)) for _ in range(LANES)]
    under_way: dict[int, Future[None]] = {}
    with ThreadPoolExecutor(LANES, thread_name_prefix="cqueue-store") as pool:
        for batch in chain([first], filled):
            entries = sink.entries(batch, count)
            count += batch.num_rows
            stored += len(entries)
            for lane, part in _parts(sink.lanes(entries), pace):
                if lane in under_way:
                    under_way[lane].result()
                under_way[lane] = pool.submit(_store, sink, states[lane], part)
        for waited in under_way.values():
            waited.result()
    return Written(count, stored)


def stored_by(tasks: Iterable[Written | None]) -> int:
    """Return how many entries all tasks have stored; None stands for a task that failed."""
    return sum(task.stored for task in tasks if task is not None)


def _parts(lanes: list[list[Any]], pace: Pace | None) -> Iterator[tuple[int, list[Any]]]:
    """Yield parts with the numbers of their lanes, of the lanes in turn."""
    left = {lane: iter(entries) for lane, entries in enumerate(lanes)}
    while left:
        for lane in [*left]:
            part = list(islice(left[lane], PART if pace is None else min(PART, pace.most)))
            if not part:
                del left[lane]
                continue
            if pace is not None:
                pace.wait(len(part))
            yield lane, part


def _store(sink: Sink, state: WriterState, part: list[Any]) -> None:
    """Store a part, with a state that no other thread uses; try again what was not stored."""
    left: list[Failed] = [(entry, NotDone("not tried")) for entry in part]

    def store() -> bool:
        entries = [entry for entry, _ in left]
        left[:] = [(entries[place], error) for place, error in sink.store(entries, state)]
        if not sink.repeatable:
            _refuse_unknown([error for _, error in left])
        if any(isinstance(error, LASTING) for _, error in left):
            _give_up(left)
        return bool(left)

    again(tenacity.retry_if_result(bool), retry_error_callback=lambda _: _give_up(left))(store)


def _refuse_unknown(errors: list[CqueueError]) -> None:
    """Refuse to store entries again that may be stored already: a copy must not be made silently."""
    unknown = [error for error in errors if not isinstance(error, NotDone)]
    if unknown:
        raise SendUnknown(
            f"of {len(unknown):,} rows it is not known whether they are stored: {unknown[0]}. Another "
            "attempt makes copies of what is stored, unless this is a stream, or a write with idColumn"
        ) from unknown[0]


def _give_up(left: list[Failed]) -> None:
    errors = [error for _, error in left]
    unknown = [error for error in errors if not isinstance(error, NotDone)]
    lasting = [error for error in errors if isinstance(error, LASTING)]
    first = [*unknown, *lasting, *errors][0]
    kind = SendUnknown if unknown else type(first) if lasting else NotDone
    were = "are not known to be stored" if unknown else "were not stored"
    raise kind(f"{len(left):,} rows {were}: {first}") from first
