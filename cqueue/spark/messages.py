"""Reading a queue's messages: which tasks read what, and a task's pages as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from cqueue import ids
from cqueue.protocol import shards
from cqueue.protocol.dead import (
    HEADER_ATTEMPTS,
    HEADER_ID,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_TRACEBACK,
)
from cqueue.protocol.spec import QueueSpec
from cqueue.protocol.survey import END, Walk, wide_rows
from cqueue.spark import arrays
from cqueue.spark.options import ReadOptions
from cqueue.spark.session import SparkSide
from cqueue.spark.split import Piece, Probe, ahead, grouped, split
from cqueue.spark.views import DEAD, arrow_schema
from cqueue.store.message_columns import MessageColumns, ReadMessageColumns
from cqueue.store.operations import ReadBodies, ReadIds, WideRow
from cqueue.store.record_columns import pairs

FIRST_ROWS: Final = 500
MOST_ROWS: Final = 5000
PAGE_BYTES: Final = 2 << 20
LARGE_BYTES: Final = 16 << 20
"""Of bodies above 4 KiB a batch holds so many bytes, and one body on top."""


class Place(NamedTuple):
    """Messages of one priority in one wide row."""

    wide_row: WideRow
    priority: int


@dataclass(frozen=True)
class MessagePart(InputPartition):
    """What one task reads. as_of_us: nothing sent later; limit: so many rows at most."""

    spec: QueueSpec
    pieces: tuple[Piece[Place], ...]
    as_of_us: int
    limit: int | None


def plan(side: SparkSide, spec: QueueSpec, options: ReadOptions, as_of_us: int) -> list[InputPartition]:
    """The tasks of a read: groups of exact wide rows, large ones cut."""
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

    if options.limit is not None:  # in one task, or each would read as many
        return [MessagePart(spec, tuple(whole), as_of_us, options.limit)] if whole else []
    pieces = split(whole, probe_of, options.partition_rows)
    return [MessagePart(spec, group, as_of_us, None) for group in grouped(pieces, options.partition_rows)]


def _bounds(spec: QueueSpec, wide_row: WideRow, options: ReadOptions) -> Iterator[tuple[int, int]]:
    """Above which id and up to which one to read a wide row, if any of it is asked for."""
    start_us, end_us = wide_row.time_shard * 1000, shards.end_us(spec, wide_row)
    since_us = start_us if options.since_us is None else max(start_us, options.since_us)
    until_us = end_us if options.until_us is None else min(end_us, options.until_us)
    if since_us < until_us:
        yield ids.lowest_at(since_us) - 1, min(END, ids.lowest_at(until_us) - 1)


def read(side: SparkSide, part: MessagePart, view: str, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The messages of a task, a batch for each page that was read.

    Raises:
        NotDone: Cassandra does not answer; nothing of the page under way was given out.
    """
    left = part.limit
    make = _Batches(side, part, view, columns)
    for page in ahead(_pages(side, part)):
        for batch in make.of(page):
            wanted = batch if left is None else batch.slice(0, left)
            if left is not None:
                left -= wanted.num_rows
            if wanted.num_rows:
                yield wanted
            if left == 0:
                return


@dataclass(frozen=True, slots=True)
class _Page:
    place: Place
    found: MessageColumns

    def __len__(self) -> int:
        return len(self.found)


def _pages(side: SparkSide, part: MessagePart) -> Iterator[_Page]:
    limit = FIRST_ROWS
    for piece in part.pieces:
        wide_row, priority = piece.place
        walk = Walk(part.spec, wide_row, piece.after, piece.upto)
        while not walk.done:
            read_ = ReadMessageColumns(wide_row, priority, walk.after, walk.upto, limit)
            found = side.driver.ask(read_)
            walk.passed(found.last if len(found) == limit else None, found.tombstones)
            if found:
                yield _Page(piece.place, found)
                mean = sum(map(len, filter(None, found.bodies))) // len(found) + 100
                limit = max(FIRST_ROWS, min(MOST_ROWS, limit * 4, PAGE_BYTES // mean))


class _Batches:
    """Pages as Arrow batches of the columns asked for."""

    def __init__(self, side: SparkSide, part: MessagePart, view: str, columns: tuple[str, ...]) -> None:
        self._side = side
        self._name = part.spec.name
        self._as_of_us = part.as_of_us
        self._is_dead = view == DEAD
        self._schema = arrow_schema(view, columns)
        self._columns = columns
        self._makers: Final[Mapping[str, Callable[[_Page], pa.Array]]] = {
            "id": lambda page: arrays.message_ids(*page.place, page.found.ids),
            "queue": self._queue,
            "priority": lambda page: arrays.constant(page.place.priority, len(page), pa.int32()),
            "due": lambda page: arrays.times(page.found.ids),
            "body": lambda page: pa.array(page.found.bodies, pa.binary()),
            "headers": lambda page: arrays.sparse_maps(page.found.texts["headers"], len(page)),
            "codec": lambda page: arrays.sparse(page.found.texts["codec"], len(page)),
            "task": lambda page: arrays.sparse(page.found.texts["task"], len(page)),
            "key": lambda page: arrays.sparse(page.found.texts["key"], len(page)),
            "trigger": lambda page: arrays.sparse(page.found.texts["trigger"], len(page)),
            "sent_at": lambda page: arrays.milliseconds(page.found.sent_at),
            "expires": lambda page: arrays.milliseconds(map(page.found.expires.get, range(len(page)))),
            "reason": lambda page: self._header(page, HEADER_REASON),
            "attempts": lambda page: pc.cast(self._header(page, HEADER_ATTEMPTS), pa.int32()),
            "original_id": lambda page: self._header(page, HEADER_ID),
            "traceback": lambda page: self._header(page, HEADER_TRACEBACK),
        }

    def of(self, page: _Page) -> Iterator[pa.RecordBatch]:
        """One batch, or several where large bodies have to be fetched."""
        if not page.found.sizes or "body" not in self._columns:
            yield self._batch(page)
            return
        for start, stop in _spans(page.found):
            yield self._with_bodies(page, start, stop)

    def _batch(self, page: _Page) -> pa.RecordBatch:
        made = [self._makers[name](page) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(made, schema=self._schema)
        return self._until(page, batch)

    def _until(self, page: _Page, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without what is younger than the moment that the whole read shows."""
        keep = pc.less_equal(arrays.milliseconds(page.found.sent_at), _timestamp(self._as_of_us))
        if self._is_dead:  # it was sent long before it died
            keep = pc.and_(keep, pc.less_equal(arrays.times(page.found.ids), _timestamp(self._as_of_us)))
        return batch if pc.all(keep).as_py() else batch.filter(keep)

    def _with_bodies(self, page: _Page, start: int, stop: int) -> pa.RecordBatch:
        """Some messages of a page with their bodies; one whose body is gone was acked meanwhile."""
        found = page.found
        large = [place for place in range(start, stop) if place in found.sizes]
        asked = {place: ids.from_bytes(found.ids[place]) for place in large}
        bodies: dict[int, bytes] = {}
        if asked:
            bodies = self._side.driver.ask(ReadBodies(page.place.wide_row, tuple(asked.values())))
        for place, id_ in asked.items():
            found.bodies[place] = bodies.get(id_)
        kept = [place for place in range(start, stop) if found.bodies[place] is not None]
        chosen = _chosen(found, kept)
        for place in asked:  # the next batch must not hold these bodies as well
            found.bodies[place] = None
        return self._batch(_Page(page.place, chosen))

    def _queue(self, page: _Page) -> pa.Array:
        if not self._is_dead:
            return arrays.constant(self._name, len(page), pa.string())
        return self._header(page, HEADER_QUEUE)

    def _header(self, page: _Page, name: str) -> pa.Array:
        stored = page.found.texts["headers"]
        found = [dict(pairs(stored[place])) if place in stored else {} for place in range(len(page))]
        return pa.array([headers.get(name) for headers in found], pa.string())


def _spans(found: MessageColumns) -> Iterator[tuple[int, int]]:
    """Stretches of a page whose large bodies fit into one batch."""
    start = size = 0
    for place in range(len(found)):
        if size >= LARGE_BYTES:
            yield start, place
            start, size = place, 0
        size += found.sizes.get(place, 0)
    if start < len(found):
        yield start, len(found)


def _chosen(found: MessageColumns, places: list[int]) -> MessageColumns:
    """The messages at these places, in their order."""

    def of(cells: Mapping[int, Any]) -> dict[int, Any]:
        return {new: cells[old] for new, old in enumerate(places) if old in cells}

    return MessageColumns(
        [found.ids[place] for place in places],
        [found.bodies[place] for place in places],
        [found.sent_at[place] for place in places],
        of(found.sizes),
        of(found.expires),
        {name: of(cells) for name, cells in found.texts.items()},
    )


def _timestamp(us: int) -> pa.Scalar:
    return pa.scalar(us, pa.int64()).cast(arrays.TIMESTAMP)
