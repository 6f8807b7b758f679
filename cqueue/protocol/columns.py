"""Scanning in columns: the same walk over partitions and time shards, without an object for each record.

Sources hold whole answers and hand out stretches of them; what comes out of one round is put in the order of
ids by who asked, who alone knows which records are wanted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import neg
from typing import Any, NamedTuple

from cqueue.protocol.scan import PartitionMerge, Source
from cqueue.store.record_columns import ReadColumns, RecordColumns


class Stretch(NamedTuple):
    """Some records of an answer: those at the places `start` to `stop` - 1."""

    columns: RecordColumns
    start: int
    stop: int


class PartitionStretch(NamedTuple):
    """Some records of one partition, in the order in which they were read."""

    partition: int
    stretch: Stretch


class ColumnSource(Source):
    """One partition, read in columns; its buffer holds stretches."""

    __slots__ = ()
    read = ReadColumns

    def feed(self, rows: Any, end: int) -> None:
        """Take what was read."""
        columns: RecordColumns = rows
        if columns:
            self.buffer.append(Stretch(columns, 0, len(columns)))
        self._move(columns.ids, sum(map(len, columns.bodies)), end)

    def take(self, watermark: int) -> list[Any]:
        """Hand out what the watermark has passed."""
        passed: list[Stretch] = []
        left: list[Stretch] = []
        for columns, start, stop in self.buffer:
            middle = self._passed(columns.ids, watermark, start, stop)
            if middle > start:
                passed.append(Stretch(columns, start, middle))
            if middle < stop:
                left.append(Stretch(columns, middle, stop))
        self.buffer = left
        return passed

    def _passed(self, ids: list[int], watermark: int, start: int, stop: int) -> int:
        """The first place that the watermark has not passed."""
        if self.reverse:
            return bisect_left(ids, -watermark, start, stop, key=neg)
        return bisect_right(ids, watermark, start, stop)


class ColumnMerge(PartitionMerge[PartitionStretch]):
    """Stretches of several partitions: all records up to a watermark, in order within each partition."""

    source = ColumnSource

    def _taken(self, watermark: int) -> list[PartitionStretch]:
        return [
            PartitionStretch(source.partition, stretch)
            for source in self.sources.values()
            for stretch in source.take(watermark)
        ]
