"""Convert records to Arrow record batches, for data frames and files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cqueue.log.protocol.source import Stretch
from cqueue.store import arrow_columns
from cqueue.store.record_page import ID_AT, NULLS, TOPIC_AT

SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int16(), nullable=False),
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("time", arrow_columns.TIMESTAMP, nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("headers", arrow_columns.TEXT_MAP),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""id: the 16 bytes of the TimeUUID; time: when it was appended, by the cluster's clock."""

_TOPIC, _BODY, _PARTS = 1, 3, 4  # places and number of a row's pieces: id, topic, key and headers, body


class Columns:
    """The columns of some records, each built when it is asked for; several partitions are merged by id.

    ids: an array of uint8 with one row of 16 bytes for each record.
    """

    def __init__(self, stretches: Sequence[Stretch], *, reverse: bool = False) -> None:
        self._stretches = stretches
        parts = [_ids_and_pieces(stretch) for stretch in stretches]
        self._pieces = pa.concat_arrays([pieces for _, pieces in parts])
        found = np.concatenate([ids for ids, _ in parts])
        self._order: Any = np.arange(len(found))
        if len({stretch.partition for stretch in stretches}) > 1:
            self._order = arrow_columns.in_order(found, reverse=reverse)
        self.ids: Any = found[self._order]

    def __len__(self) -> int:
        return len(self.ids)

    def partitions(self) -> Any:
        """Return the partition numbers as an array of int16."""
        numbers = np.array([stretch.partition for stretch in self._stretches], np.int16)
        return np.repeat(numbers, [stretch.stop - stretch.start for stretch in self._stretches])[self._order]

    def times(self) -> pa.Array:
        """Return when each record was appended."""
        return arrow_columns.times(arrow_columns.ticks(self.ids))

    def topics(self) -> pa.Array:
        """Return the topics as texts."""
        return self._taken(_TOPIC).view(pa.string())

    def bodies(self) -> pa.Array:
        """Return the bodies as bytes."""
        return self._taken(_BODY)

    def _taken(self, piece: int) -> pa.Array:
        return self._pieces.take(pa.array(self._order * _PARTS + piece))

    def keys(self) -> pa.Array:
        """Return the keys as texts; null for a record without one."""
        if not self._texts:
            return pa.nulls(len(self), pa.string())
        return arrow_columns.texts([key for key, _ in self._texts])

    def headers(self) -> pa.Array:
        """Return the headers as maps of texts; null for a record without any."""
        if not self._texts:
            return pa.nulls(len(self), arrow_columns.TEXT_MAP)
        return arrow_columns.maps([each for _, each in self._texts])

    @cached_property
    def _texts(self) -> list[tuple[bytes | None, bytes | None]]:
        """Return the encoded key and headers of each record; an empty list if no record has any."""
        if not any(stretch.page.bodies for stretch in self._stretches):
            return []
        found = [
            stretch.page.texts_at(place)
            for stretch in self._stretches
            for place in range(stretch.start, stretch.stop)
        ]
        return [found[place] for place in self._order]


def _ids_and_pieces(stretch: Stretch) -> tuple[Any, pa.Array]:
    """Return the ids of a stretch, and the pieces of its rows one after the other."""
    _, page, start, stop = stretch
    bounds: Any = np.empty((stop - start) * _PARTS + 1, np.int64)
    starts: Any = np.array(page.starts[start : stop + 1], np.int64)
    heads = arrow_columns.fields(page.data, starts[:-1], TOPIC_AT)
    rows = bounds[:-1].reshape(-1, _PARTS)
    rows[:, 0] = starts[:-1]
    rows[:, _TOPIC] = starts[:-1] + TOPIC_AT
    rows[:, 2] = rows[:, _TOPIC] + arrow_columns.big_endian(heads[:, TOPIC_AT - 4 :], ">i4")
    rows[:, _BODY] = rows[:, 2] + NULLS
    for place, body in page.bodies.items():
        if start <= place < stop:
            rows[place - start, _BODY] = body
    bounds[-1] = starts[-1]
    return heads[:, ID_AT : ID_AT + 16], arrow_columns.pieces(page.data, bounds)


def batch_of(stretches: Sequence[Stretch], *, reverse: bool = False) -> pa.RecordBatch:
    """The records of a scan's round, in the order of ids; each partition's stretches are in order already."""
    columns = Columns(stretches, reverse=reverse)
    made = [
        pa.array(columns.partitions()),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(columns), [None, pa.py_buffer(columns.ids)]),
        columns.times(),
        columns.topics(),
        columns.keys(),
        columns.headers(),
        columns.bodies(),
    ]
    return pa.RecordBatch.from_arrays(made, schema=SCHEMA)


def of_topics(batch: pa.RecordBatch, topics: Collection[str]) -> pa.RecordBatch:
    """Those records of a batch, or of one of Spark's, that have one of these topics."""
    return batch.filter(pc.is_in(batch.column("topic"), pa.array(topics, pa.string())))
