"""Reading a queue's messages: which tasks read what, and a task's pages as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from cqueue import arrays, ids
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
from cqueue.spark import makers
from cqueue.spark.options import ReadOptions
from cqueue.spark.session import SparkSide
from cqueue.spark.split import Piece, Probe, ahead, grouped, split
from cqueue.spark.views import DEAD, arrow_schema
from cqueue.store.cells import pairs
from cqueue.store.message_page import BODY_AT, ID_AT, SENT_AT_BEFORE_END, TAIL, MessagePage, ReadMessagePage
from cqueue.store.operations import ReadBodies, ReadIds, WideRow

FIRST_ROWS: Final = 500
MOST_ROWS: Final = 5000
PAGE_BYTES: Final = 2 << 20
LARGE_BYTES: Final = 16 << 20
"""Of bodies that stand apart a batch holds so many bytes, and one body on top."""


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
    for place, page in ahead(_pages(side, part)):
        for batch in make.of(place, page):
            wanted = batch if left is None else batch.slice(0, left)
            if left is not None:
                left -= wanted.num_rows
            if wanted.num_rows:
                yield wanted
            if left == 0:
                return


def _pages(side: SparkSide, part: MessagePart) -> Iterator[tuple[Place, MessagePage]]:
    limit = FIRST_ROWS
    for piece in part.pieces:
        wide_row, priority = piece.place
        walk = Walk(part.spec, wide_row, piece.after, piece.upto)
        while not walk.done:
            page = side.driver.ask(ReadMessagePage(wide_row, priority, walk.after, walk.upto, limit))
            walk.passed(page.last if len(page) == limit else None, page.tombstones)
            if page:
                yield piece.place, page
                wanted = PAGE_BYTES * len(page) // len(page.data)
                limit = max(FIRST_ROWS, min(MOST_ROWS, limit * 4, wanted))


class _Messages:
    """Some messages of a page, from `start` to `stop` - 1, a column at a time.

    bodies: by place, those that stand elsewhere and were found there.
    """

    def __init__(
        self, place: Place, page: MessagePage, start: int, stop: int, bodies: Mapping[int, bytes]
    ) -> None:
        self.place = place
        self._page = page
        self._bodies = bodies
        self._places = range(start, stop)
        self._starts: Any = np.array(page.starts[start : stop + 1], np.int64)
        self._rest = (
            {at - start: page.rest[at] for at in self._places if at in page.rest} if page.rest else {}
        )
        self.ids: Any = arrays.fields(page.data, self._starts[:-1] + ID_AT, 16)

    def __len__(self) -> int:
        return len(self._places)

    def bodies(self) -> pa.Array:
        """Bytes; null where a body was not found."""
        if any(rest.size is not None for rest in self._rest.values()):
            return pa.array(map(self._body, self._places), pa.binary())
        bounds: Any = np.empty((len(self), 3), np.int64)
        bounds[:, 0] = self._starts[:-1]
        bounds[:, 1] = self._starts[:-1] + BODY_AT
        bounds[:, 2] = self._starts[1:] - TAIL
        for at, rest in self._rest.items():
            bounds[at, 2] = rest.body_stop
        found = arrays.pieces(self._page.data, np.append(bounds, self._starts[-1]))
        return found.take(pa.array(np.arange(1, len(found), 3)))

    def _body(self, place: int) -> bytes | None:
        rest = self._page.rest.get(place)
        stands_elsewhere = rest is not None and rest.size is not None
        return self._bodies.get(place) if stands_elsewhere else self._page.body_at(place)

    @cached_property
    def sent_at(self) -> Any:
        """Ms since 1970, as an array of int64."""
        at = self._starts[1:] - SENT_AT_BEFORE_END
        found = arrays.big_endian(arrays.fields(self._page.data, at, 8), ">i8")
        for place, rest in self._rest.items():
            found[place] = rest.sent_at
        return found

    @cached_property
    def ticks(self) -> Any:
        """When each is due, as `arrays.ticks`."""
        return arrays.ticks(self.ids)

    def expires(self) -> list[int | None]:
        """Ms since 1970, or None."""
        found: list[int | None] = [None] * len(self)
        for place, rest in self._rest.items():
            found[place] = rest.expires
        return found

    def texts(self, name: str) -> dict[int, bytes]:
        """A column of `Rest`, by place from 0 on, where it is not null."""
        cells = ((place, getattr(rest, name)) for place, rest in self._rest.items())
        return {place: cell for place, cell in cells if cell is not None}


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
            "due": lambda found: arrays.times(found.ticks),
            "body": _Messages.bodies,
            "headers": lambda found: makers.sparse_maps(found.texts("headers"), len(found)),
            "codec": lambda found: makers.sparse(found.texts("codec"), len(found)),
            "task": lambda found: makers.sparse(found.texts("task"), len(found)),
            "key": lambda found: makers.sparse(found.texts("key"), len(found)),
            "trigger": lambda found: makers.sparse(found.texts("trigger"), len(found)),
            "sent_at": lambda found: makers.milliseconds(found.sent_at),
            "expires": lambda found: makers.milliseconds(found.expires()),
            "reason": lambda found: self._header(found, HEADER_REASON),
            "attempts": lambda found: pc.cast(self._header(found, HEADER_ATTEMPTS), pa.int32()),
            "original_id": lambda found: self._header(found, HEADER_ID),
            "traceback": lambda found: self._header(found, HEADER_TRACEBACK),
        }

    def of(self, place: Place, page: MessagePage) -> Iterator[pa.RecordBatch]:
        """One batch, or several where large bodies have to be fetched."""
        large = any(rest.size is not None for rest in page.rest.values())
        if not large or "body" not in self._columns:
            yield self._batch(_Messages(place, page, 0, len(page), {}))
            return
        for start, stop in _spans(page):
            batch = self._batch(_Messages(place, page, start, stop, self._fetched(place, page, start, stop)))
            # One whose body is gone was acked meanwhile, or no quorum has it: who receives it will tell.
            yield batch.filter(batch.column("body").is_valid())

    def _fetched(self, place: Place, page: MessagePage, start: int, stop: int) -> dict[int, bytes]:
        """The bodies that stand elsewhere, by place."""
        sizes = {at: size for at in range(start, stop) if (size := _size(page, at)) is not None}
        if not sizes:
            return {}
        asked = {at: page.id_at(at) for at in sizes}
        read = ReadBodies(place.wide_row, tuple(asked.values()), tuple(sizes.values()))
        found: dict[int, bytes] = self._side.driver.ask(read)
        return {at: found[id_] for at, id_ in asked.items() if id_ in found}

    def _batch(self, found: _Messages) -> pa.RecordBatch:
        made = [self._makers[name](found) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(made, schema=self._schema)
        return self._until(found, batch)

    def _until(self, found: _Messages, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without what is younger than the moment that the whole read shows."""
        keep = found.sent_at * 1000 <= self._as_of_us
        if self._is_dead:  # it was sent long before it died
            keep &= (found.ticks - ids.TICKS_1970) // 10 <= self._as_of_us
        return batch if keep.all() else batch.filter(pa.array(keep))

    def _queue(self, found: _Messages) -> pa.Array:
        if not self._is_dead:
            return makers.constant(self._name, len(found), pa.string())
        return self._header(found, HEADER_QUEUE)

    def _header(self, found: _Messages, name: str) -> pa.Array:
        stored = found.texts("headers")
        headers = [dict(pairs(stored[place])) if place in stored else {} for place in range(len(found))]
        return pa.array([each.get(name) for each in headers], pa.string())


def _size(page: MessagePage, place: int) -> int | None:
    """How long a body is that stands elsewhere."""
    rest = page.rest.get(place)
    return None if rest is None else rest.size


def _spans(page: MessagePage) -> Iterator[tuple[int, int]]:
    """Stretches of a page whose large bodies fit into one batch."""
    start = size = 0
    for place in range(len(page)):
        if size >= LARGE_BYTES:
            yield start, place
            start, size = place, 0
        size += _size(page, place) or 0
    if start < len(page):
        yield start, len(page)
