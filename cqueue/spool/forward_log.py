"""A log whose records are appended to a spool first: `client.log(name, spool=…)`.

A log gets each spooled record at least once, and not exactly once. Its readers pass an id for good within
seconds, so a second try cannot append a record under the id of the first one. Both copies have the same
header `cqueue-spool`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cqueue.errors import AppendUnknown, OutcomeUnknown
from cqueue.log.log import Log
from cqueue.log.protocol.append import ROW_BYTES
from cqueue.log.protocol.spec import partition_of
from cqueue.log.records import Record, entry_of
from cqueue.message import check_headers
from cqueue.protocol.writing import BYTES_IN_FLIGHT, PART_BYTES, PART_ROWS
from cqueue.runtime.driver import BlockingDriver
from cqueue.sending.results import listed
from cqueue.sending.spans import sent
from cqueue.spool.forward_frame import Frame, new_source, unpacked
from cqueue.spool.forward_known import look_up, recall, remember
from cqueue.spool.forwarder import Forwarded, Stored

if TYPE_CHECKING:
    from cqueue.spool import Spool, SpoolRecord

HEADER: Final = "cqueue-spool"
"""Header with the random source of a record, by which a reader can tell copies."""


def topic_of(log: str) -> str:
    """Return the topic of a log in a spool."""
    return f"log.{log}"


class LogTarget:
    """A log that is fed from a spool: one thread calls `store`, any thread calls `spooled`."""

    def __init__(self, log: Log, driver: BlockingDriver, *, root: Path) -> None:
        """Look the log up.

        Raises:
            LogNotFound: there is no log of that name.
            Unavailable: Cassandra does not answer, and the log was never opened with this spool before.
        """
        self.name = log.name
        self._log = log
        self.driver = driver
        self._root = root
        self._stored: set[int] = set()  # offsets of the last batch that are in the log
        known = recall(root, topic_of(self.name), lambda found: int(found["partitions"]))
        self.partitions = look_up(f"log {self.name!r}", known, self._looked_up, driver)

    def _looked_up(self) -> int:
        partitions = self._log.config.partitions
        remember(self._root, topic_of(self.name), {"partitions": partitions})
        return partitions

    def spooled(self, record: Record) -> bytes:
        """Return the payload to append to the spool for a record, all limits checked.

        Raises:
            BadInput: as `Log.append`.
        """
        one = entry_of(record, self.partitions)
        source, at_us = new_source(), self.driver.clock.guess_us()
        headers = {**(one.headers or {}), HEADER: source.hex()}
        more = {"topic": record.topic, "headers": check_headers(headers)}
        for name in ("key", "partition"):
            if (value := getattr(record, name)) is not None:
                more[name] = value
        return Frame(at_us, at_us, 0, source, more, one.body).pack()

    def store(self, records: Sequence[SpoolRecord]) -> Stored:
        """Append records, without those that the try before has appended.

        They come again if they stand behind one that failed, or if the progress could not be written.
        """
        self.partitions = self._looked_up()
        frames, unreadable = unpacked(records)
        left = [
            (place, Record(body=frame.body, **frame.more))
            for place, frame in enumerate(frames)
            if records[place].offset not in self._stored
        ]
        self._stored &= {one.offset for one in records}
        for some in _in_turn(left, self.partitions):
            result = self._log.append_many([record for _, record in some])
            failed = {some[index][0]: error for index, error in result.failed}
            self._stored |= {records[place].offset for place, _ in some if place not in failed}
            if failed:
                done = min(failed)
                return Stored(done, failed[done])
        return Stored(len(frames), unreadable)


def _in_turn(found: list[tuple[int, Record]], partitions: int) -> Iterator[list[tuple[int, Record]]]:
    """Split records into stretches in which those of each partition are written at once: all, or none.

    So if each stretch waits for the one before it, the records of a key are appended in order.
    """
    some: list[tuple[int, Record]] = []
    size, sizes = 0, Counter[int | None]()  # bytes of bodies; shares of one write to a partition
    for place, record in found:
        body, partition = len(record.body), record.partition
        if partition is None and record.key is not None:
            partition = partition_of(record.key, partitions)
        share = body + ROW_BYTES + PART_BYTES // PART_ROWS
        is_full = partition is not None and sizes[partition] + share > PART_BYTES
        if some and (is_full or size + body > BYTES_IN_FLIGHT):
            yield some
            some, size, sizes = [], 0, Counter()
        some.append((place, record))
        size += body
        sizes[partition] += share
    if some:
        yield some


class SpooledLog(Forwarded):
    """Appends records to a log by way of a spool. Thread-safe.

    A forwarder appends each record to the log later, at least once.
    """

    def __init__(self, spool: Spool, target: LogTarget) -> None:
        self.name = target.name
        self._target = target
        super().__init__(spool, topic_of(self.name), target.store)

    def __repr__(self) -> str:
        return f"<log {self.name} with a spool>"

    def append(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Spool one record (see `Record` for ranges); return once it is on the disk.

        Raises:
            BadInput: a limit is passed, or the log is gone; nothing was spooled.
            Closed: the client or the spool has been closed; nothing was spooled.
            SpoolFull: the spool takes no more; nothing was spooled.
            AppendUnknown: the disk has failed, and the record may be in the spool.
        """
        self.append_many([Record(topic, body, key, partition, headers)])

    def append_many(self, records: Iterable[Record]) -> None:
        """Spool up to 10,000 records: all, or none.

        Raises:
            BadInput, Closed, SpoolFull, AppendUnknown: as `append`.
        """
        self._forwarder.check()
        found = listed(records, Record, "append_many")
        sent(self._target.driver.tracing, "append", self.name, found, self._store)

    def _store(self, found: list[Record]) -> None:
        payloads = [self._target.spooled(each) for each in found]
        if not payloads:
            return
        try:
            self._spool.append_many(self._forwarder.topic, payloads).result()
        except OutcomeUnknown as exc:
            raise AppendUnknown(f"it is not known whether the records are in the spool: {exc}") from exc
