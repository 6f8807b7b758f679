"""Reading a queue's messages: which tasks read what, and a task's pages as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from cqueue import ids
from cqueue.log.protocol.source import next_limit
from cqueue.protocol import registry
from cqueue.protocol.dead import (
    HEADER_ABANDONED,
    HEADER_ATTEMPTS,
    HEADER_FENCE,
    HEADER_HOLDER,
    HEADER_ID,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_REDRIVES,
    HEADER_TRACEBACK,
)
from cqueue.protocol.inspection import END, Walk, wide_rows
from cqueue.protocol.spec import QueueSpec
from cqueue.sending.redriving import count_in
from cqueue.spark import makers
from cqueue.spark.options import ReadOptions
from cqueue.spark.session import SparkSide, patient
from cqueue.spark.split import Piece, Probe, ahead, limited, tasks
from cqueue.spark.views import DEAD, arrow_schema
from cqueue.store import arrow_columns
from cqueue.store.operations import MessageRow, ReadBodies, ReadIds, WideRow

FIRST_ROWS: Final = 500
"""Rows of the first read, and of each later one at least."""
ROW_BYTES: Final = 100
"""Bytes of a message beside its body, about."""
LARGE_BYTES: Final = 16 << 20
"""Bytes of bodies that stand apart, of one batch; one more body may come on top."""


class Place(NamedTuple):
    """Messages of one priority in one wide row."""

    wide_row: WideRow
    priority: int


@dataclass(frozen=True)
class MessagePart(InputPartition):
    """The messages that one task reads. as_of_us: none sent later; limit: rows at most."""

    spec: QueueSpec
    pieces: tuple[Piece[Place], ...]
    as_of_us: int
    limit: int | None


def plan(side: SparkSide, spec: QueueSpec, options: ReadOptions, as_of_us: int) -> list[InputPartition]:
    """Plan the tasks of a read: groups of exact wide rows, large ones cut."""
    whole = [
        Piece(Place(wide_row, priority), after, upto, 0.0)
        for wide_row, priorities in side.driver.run(wide_rows(spec))
        for after, upto in _bounds(spec, wide_row, options)
        for priority in sorted(priorities if options.priorities is None else priorities & options.priorities)
    ]

    def probe_of(place: Place) -> Probe:
        def probe(after: int, upto: int, limit: int) -> list[int]:
            return side.driver.ask(ReadIds(place.wide_row, place.priority, after, upto, limit)).ids

        return probe

    groups = tasks(whole, probe_of, options.partition_rows, options.limit)
    return [MessagePart(spec, group, as_of_us, options.limit) for group in groups]


def _bounds(spec: QueueSpec, wide_row: WideRow, options: ReadOptions) -> Iterator[tuple[int, int]]:
    """Yield the ids (after, up to) between which to read a wide row, if any of it is asked for."""
    start_us, end_us = wide_row.time_shard * 1000, registry.end_us(spec, wide_row)
    since_us = start_us if options.since_us is None else max(start_us, options.since_us)
    until_us = end_us if options.until_us is None else min(end_us, options.until_us)
    if since_us < until_us:
        yield ids.lowest_at(since_us) - 1, min(END, ids.lowest_at(until_us) - 1)


def read(side: SparkSide, part: MessagePart, view: str, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read the messages of a task, a batch for each page.

    Raises:
        NotDone: Cassandra does not answer; no row of the page under way was given out.
    """
    make = _Batches(side, part, view, columns)
    batches = (batch for place, page in ahead(_pages(side, part)) for batch in make.of(place, page))
    return limited(batches, part.limit)


def _pages(side: SparkSide, part: MessagePart) -> Iterator[tuple[Place, list[MessageRow]]]:
    next_page = patient(lambda walk, limit: side.driver.run(walk.next_rows(limit)))
    limit = FIRST_ROWS
    for piece in part.pieces:
        walk = Walk(part.spec, *piece.place, piece.after, piece.upto)
        while not walk.done:
            page = next_page(walk, limit)
            if page.rows:
                yield piece.place, page.rows
                size = sum([ROW_BYTES + len(row.body or b"") for row in page.rows])
                limit = max(FIRST_ROWS, next_limit(limit, len(page.rows), size))


class _Messages:
    """Messages of one place, a column at a time. bodies: by id, those that stand apart and were found."""

    def __init__(self, place: Place, rows: Sequence[MessageRow], bodies: Mapping[int, bytes]) -> None:
        self.place = place
        self._bodies = bodies
        self._columns = dict(zip(MessageRow._fields, zip(*rows, strict=True), strict=True))
        written = b"".join(map(ids.to_bytes, self._columns["id"]))
        self.ids: Any = np.frombuffer(written, np.uint8).reshape(-1, 16)

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> tuple[Any, ...]:
        """Return a column of `MessageRow`."""
        return self._columns[name]

    def bodies(self) -> pa.Array:
        """Return the bodies; null where a body was not found."""
        stored = self._columns["body"]
        if None in stored:
            both = zip(self._columns["id"], stored, strict=True)
            stored = tuple(self._bodies.get(id_) if body is None else body for id_, body in both)
        return pa.array(stored, pa.binary())

    @cached_property
    def sent_at(self) -> Any:
        """Return when each was sent, in ms since 1970, as an array of int64."""
        return np.array(self._columns["sent_at"], np.int64)

    @cached_property
    def ticks(self) -> Any:
        """Return when each is due, as `arrow_columns.ticks`."""
        return arrow_columns.ticks(self.ids)

    def texts(self, name: str) -> pa.Array:
        """Return a column of texts, most of them null."""
        return pa.array(self._columns[name], pa.string())

    def headers(self) -> pa.Array:
        """Return the headers, as maps."""
        stored = self._columns["headers"]
        return pa.array(
            [None if each is None else list(each.items()) for each in stored], arrow_columns.TEXT_MAP
        )


class _Batches:
    """Pages as Arrow batches of the columns asked for."""

    def __init__(self, side: SparkSide, part: MessagePart, view: str, columns: tuple[str, ...]) -> None:
        self._side = side
        self._name = part.spec.name
        self._as_of_us = part.as_of_us
        self._is_dead = view == DEAD
        self._schema = arrow_schema(view, columns)
        self._columns = columns
        self._makers: Final[Mapping[str, Callable[[_Messages], pa.Array]]] = {
            "id": lambda found: makers.message_ids(*found.place, found.ids),
            "queue": self._queue,
            "priority": lambda found: makers.constant(found.place.priority, len(found), pa.int32()),
            "due": lambda found: arrow_columns.times(found.ticks),
            "body": _Messages.bodies,
            "headers": _Messages.headers,
            **{name: partial(_Messages.texts, name=name) for name in ("codec", "task", "key", "trigger")},
            "sent_at": lambda found: makers.milliseconds(found.sent_at),
            "expires": lambda found: makers.milliseconds(found.column("expires")),
            "reason": lambda found: self._header(found, HEADER_REASON),
            "attempts": lambda found: pa.array(_counts(found, HEADER_ATTEMPTS), pa.int32()),
            "original_id": lambda found: self._header(found, HEADER_ID),
            "traceback": lambda found: self._header(found, HEADER_TRACEBACK),
            "redrives": lambda found: pc.fill_null(pa.array(_counts(found, HEADER_REDRIVES), pa.int32()), 0),
            "holder": lambda found: self._header(found, HEADER_HOLDER),
            "fence": lambda found: pa.array(_counts(found, HEADER_FENCE, digits=18), pa.int64()),
            "holder_lost": lambda found: pc.is_valid(self._header(found, HEADER_ABANDONED)),
        }

    def of(self, place: Place, rows: list[MessageRow]) -> Iterator[pa.RecordBatch]:
        """Yield one batch, or several where large bodies have to be fetched."""
        if "body" not in self._columns or all(row.size is None for row in rows):
            yield self._batch(_Messages(place, rows, {}))
            return
        for some in _spans(rows):
            batch = self._batch(_Messages(place, some, self._fetched(place, some)))
            # One whose body is gone was acked meanwhile, or no quorum has it: a consumer will tell.
            yield batch.filter(batch.column("body").is_valid())

    def _fetched(self, place: Place, rows: Sequence[MessageRow]) -> dict[int, bytes]:
        """Fetch the bodies that stand apart, by id."""
        sizes = {row.id: row.size for row in rows if row.size is not None}
        if not sizes:
            return {}
        read = ReadBodies(place.wide_row, tuple(sizes), tuple(sizes.values()))
        return patient(self._side.driver.ask)(read)

    def _batch(self, found: _Messages) -> pa.RecordBatch:
        """Make a batch without messages that are younger than the moment that the whole read shows."""
        made = [self._makers[name](found) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(made, schema=self._schema)
        keep = found.sent_at * 1000 <= self._as_of_us
        if self._is_dead:  # it was sent long before it died
            keep &= (found.ticks - ids.TICKS_1970) // 10 <= self._as_of_us
        return batch if keep.all() else batch.filter(pa.array(keep))

    def _queue(self, found: _Messages) -> pa.Array:
        if not self._is_dead:
            return makers.constant(self._name, len(found), pa.string())
        return self._header(found, HEADER_QUEUE)

    def _header(self, found: _Messages, name: str) -> pa.Array:
        return pa.array([(each or {}).get(name) for each in found.column("headers")], pa.string())


def _counts(found: _Messages, name: str, digits: int = 9) -> list[int | None]:
    return [count_in(each, name, digits) for each in found.column("headers")]


def _spans(rows: Sequence[MessageRow]) -> Iterator[Sequence[MessageRow]]:
    """Yield stretches of rows whose large bodies fit into one batch."""
    start = size = 0
    for place, row in enumerate(rows):
        if size >= LARGE_BYTES:
            yield rows[start:place]
            start, size = place, 0
        size += row.size or 0
    yield rows[start:]
