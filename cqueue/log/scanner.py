"""Scan a log: read records in order, up to what is stable when the scan begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from cqueue.errors import BadInput
from cqueue.log.catalog import LogCatalog
from cqueue.log.positions import Point, Start, id_at, starts
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import Stretch, in_order, passed_upto
from cqueue.log.reader import Reader
from cqueue.log.records import LogRecord
from cqueue.runtime import waiting
from cqueue.runtime.batcher import calls
from cqueue.runtime.driver import BlockingDriver

if TYPE_CHECKING:
    import pyarrow as pa


class ScanRound(NamedTuple):
    """What one round of reads found.

    left: records that were not handed out yet.
    source: the stretches of which they are.
    limit: how many records may still come behind them; None for any number.
    """

    left: deque[LogRecord]
    source: object
    limit: int | None


class Scanner(Reader):
    """Reads records in the order of ids, up to an end that is fixed at its creation. Not thread-safe."""

    def __init__(
        self,
        catalog: LogCatalog,
        driver: BlockingDriver,
        name: str,
        *,
        start: Start,
        end: Point | None,
        partitions: Sequence[int] | None,
        topics: Iterable[str] | None,
        limit: int | None,
        reverse: bool,
        on_expired: str,
    ) -> None:
        super().__init__(catalog, driver, name, partitions=partitions, topics=topics)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise BadInput(f"limit is {limit!r}; it takes a whole number from 1 on")
        spec, self._began_us = self._spec, driver.clock.now_us()
        horizon = spec.horizon(self._began_us)
        last = horizon if end is None else min(horizon, id_at(spec, end))
        first = self._starts(start, on_expired, self._began_us)
        self._round = ScanRound(deque(), object(), limit)
        self._reverse = reverse
        # Backwards, all partitions are read to the earliest start, so that they can be merged.
        self._first = first
        self._end = min(first.values()) if reverse else last
        self._upto = last
        positions = dict.fromkeys(first, self._upto) if reverse else first
        self._merge = Merge(spec, positions, reverse=reverse)
        self._reads = calls("cqueue-scan", at_a_time=1, room=100)
        self._next: Future[None] | None = None
        self._rounds: deque[list[Stretch] | None] = deque()  # what reads found, with the kept one

    def __repr__(self) -> str:
        return f"<scanner of log {self._name}>"

    def _starts(self, start: Start, on_expired: str, now_us: int) -> dict[int, int]:
        spec = self._spec
        return starts(spec, start, self._partitions, now_us, on_expired, earliest=spec.earliest(now_us))

    # ── reading ──

    def batches(self) -> Iterator[list[LogRecord]]:
        """Yield the records in batches as they were read; the next batch is read meanwhile.

        Raises:
            NotDone: a read failed after all retries; iterating again goes on where it stopped.
            Closed: the scanner has been closed.
        """
        while self._read_ahead():
            yield self._take_kept()

    def __iter__(self) -> Iterator[LogRecord]:
        """Yield the records.

        A loop may be left: the next loop, or `batches`, goes on behind the last record that was yielded.
        """
        while self._read_ahead():
            yield from self._take_each()

    def _read_ahead(self) -> bool:
        """Read and keep the next records, unless some are kept. Return whether any are kept.

        Raises:
            as `batches`.
        """
        with self._reading:
            if self._round.left:
                self._check_open()
                return True
            for found in self._found():
                records = self._wanted(in_order(found, reverse=self._reverse))[: self._round.limit]
                self._end_round(len(records), records)
                if records:
                    return True
            return False

    def _found(self) -> Iterator[list[Stretch]]:
        """Yield what each round of reads finds, until the limit is reached.

        A round that was not ended, because of a Ctrl-C say, is found again.
        """
        while self._round.limit is None or self._round.limit > 0:
            found = self._first_round()
            if found is None:
                return
            wanted = [self._behind(stretch) for stretch in found] if self._reverse else found
            if wanted:
                yield wanted
            else:
                self._end_round(0)

    def _behind(self, stretch: Stretch) -> Stretch:
        """Return the part of a stretch above its partition's start, which lies above the earliest start."""
        return stretch._replace(stop=passed_upto(stretch, self._first[stretch.partition], reverse=True))

    def _end_round(self, count: int, records: Iterable[LogRecord] = ()) -> None:
        """Note that the first round ends with `count` records, and keep those of them that are given."""
        limit = self._round.limit
        self._round = ScanRound(deque(records), self._rounds[0], None if limit is None else limit - count)

    def _first_round(self) -> list[Stretch] | None:
        """Return what the first round found that has not ended, and begin the next read.

        All reads run on the scanner's own thread, where no Ctrl-C arrives. So one that cuts the wait short
        leaves what the read finds to the next call.
        """
        self._check_open()
        if self._rounds and self._rounds[0] is self._round.source:
            self._rounds.popleft()
        while not self._rounds:
            ahead, self._next = self._next or self._reads.submit(self._read), None
            waiting.wait(ahead)
            self._check_open()
            ahead.result()
        if self._rounds[0] is not None and self._next is None:
            self._next = self._reads.submit(self._read)
        return self._rounds[0]

    def _read(self) -> None:
        self._rounds.append(self._driver.run(self._merge.more(self._spec, self._end, self._began_us)))

    # ── Arrow ──

    def to_arrow(self) -> Iterator[pa.RecordBatch]:
        """The records as Arrow record batches of `cqueue.log.arrow.SCHEMA`; needs the extra `arrow`.

        It goes on where reading has come to: records that a loop was left in front of are not among them.

        Raises:
            as `batches`.
        """
        from cqueue.log import arrow  # noqa: PLC0415 - pyarrow is an extra

        for found in self._found():
            batch = arrow.batch_of(found, reverse=self._reverse)
            if self._topics is not None:
                batch = arrow.of_topics(batch, self._topics)
            batch = batch.slice(0, self._round.limit)
            self._end_round(batch.num_rows)
            if batch.num_rows:
                yield batch

    # ── moving ──

    def seek(self, start: Start, *, on_expired: str = "error") -> None:
        """Continue behind another position, or with `reverse` below it; the scan's own bounds stay.

        Raises:
            BadInput, PositionExpired: `start` is refused, as by `Log.scan`.
        """
        self._check_open()
        with self._reading:
            # First, as a refused start must not lose what was read ahead.
            positions = self._starts(start, on_expired, self._driver.clock.now_us())
            # After all reads: the sources must not be moved while they are read.
            waiting.wait(self._reads.submit(lambda: None))
            self._next = None
            self._rounds.clear()
            left, _, limit = self._round
            self._round = ScanRound(deque(), object(), None if limit is None else limit + len(left))
            for partition, position in positions.items():
                self._merge.sources[partition].seek(min(position, self._upto))

    def close(self) -> None:
        """Stop reading. Never raises."""
        super().close()
        self._reads.close(drop_after_s=0.0, wait_s=0)
