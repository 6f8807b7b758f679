"""Scanning in pages: the same walk over partitions and time shards, without an object for each record.

Sources hold whole answers and hand out stretches of them; what comes out of one round is put in the order of
ids by who asked, who alone knows which records are wanted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

from cqueue.protocol.scan import PartitionMerge, Source
from cqueue.store.record_page import ReadRecordPage, RecordPage


class Stretch(NamedTuple):
    """Some records of one partition: those at the places `start` to `stop` - 1 of an answer."""

    partition: int
    page: RecordPage
    start: int
    stop: int


class PageSource(Source):
    """One partition, read in pages; its buffer holds stretches."""

    __slots__ = ()
    read = ReadRecordPage

    def feed(self, rows: Any, end: int) -> None:
        """Take what was read."""
        page: RecordPage = rows
        if page:
            self.buffer.append(Stretch(self.partition, page, 0, len(page)))
        self._move(len(page), page.id_at(len(page) - 1) if page else 0, len(page.data), end)

    def buffered(self) -> int:
        """Records that were read and not handed out."""
        return sum(stretch.stop - stretch.start for stretch in self.buffer)

    def take(self, watermark: int) -> list[Any]:
        """Hand out what the watermark has passed."""
        passed: list[Stretch] = []
        left: list[Stretch] = []
        for stretch in self.buffer:
            partition, page, start, stop = stretch
            middle = passed_upto(stretch, watermark, reverse=self.reverse)
            if middle > start:
                passed.append(Stretch(partition, page, start, middle))
            if middle < stop:
                left.append(Stretch(partition, page, middle, stop))
        self.buffer = left
        return passed


def passed_upto(stretch: Stretch, watermark: int, *, reverse: bool) -> int:
    """The first place not passed: forwards ids up to the watermark are passed, backwards those above it."""
    places = range(stretch.start, stretch.stop)
    if reverse:
        found = bisect_left(places, -watermark, key=lambda place: -stretch.page.id_at(place))
    else:
        found = bisect_right(places, watermark, key=stretch.page.id_at)
    return stretch.start + found


class PageMerge(PartitionMerge[Stretch]):
    """Stretches of several partitions: all records up to a watermark, in order within each partition."""

    source = PageSource

    def _taken(self, watermark: int) -> list[Stretch]:
        return [stretch for source in self.sources.values() for stretch in source.take(watermark)]
