"""The public log: append, scan, follow, and change the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from cqueue.errors import AppendUnknown
from cqueue.log.catalog import LogCatalog
from cqueue.log.config import LogConfig
from cqueue.log.follower import Follower
from cqueue.log.notifier import AppendNotifier
from cqueue.log.positions import EARLIEST, Point, Start
from cqueue.log.protocol.append import Write, append
from cqueue.log.protocol.shards import existing
from cqueue.log.records import LogId, Record, entry_of
from cqueue.log.scanner import Scanner
from cqueue.log.stats import RECENT, SAMPLE, LogStats, rate
from cqueue.message import to_datetime
from cqueue.protocol.writing import WriterState
from cqueue.runtime.driver import BlockingDriver
from cqueue.sending.results import Failed, Result, States, checked, failures, listed
from cqueue.sending.spans import sent


class AppendResult(Result[Write, LogId]):
    """The outcome of one `append_many`.

    Attributes:
        failed: (index, error) of each entry that was not stored (`NotDone`, `BadInput`) or may not have
            been (`AppendUnknown`), in order.
        remade: the number of entries that were stored again under a new id, because the first answer came
            too late to count; both copies may be read.
    """

    def __init__(self, log: str, size: int, writes: list[Write], failed: Failed) -> None:
        super().__init__(size, writes, failed, lambda write: _ids_of(log, write))
        self._log = log

    def __repr__(self) -> str:
        return f"<append to {self._log}: records={self._size} failed={len(self.failed)}>"


class Log:
    """One log, as `Client.log` returns it. Cheap to make; thread-safe."""

    def __init__(
        self, name: str, catalog: LogCatalog, driver: BlockingDriver, notifier: AppendNotifier
    ) -> None:
        self.name = name
        self._catalog = catalog
        self._driver = driver
        self._notifier = notifier
        self._states = States(WriterState)

    def __repr__(self) -> str:
        return f"<log {self.name}>"

    @property
    def config(self) -> LogConfig:
        """Return the configuration, at most five seconds old."""
        return self._catalog.entry(self.name).config

    def alter(self, /, **changes: Any) -> LogConfig:
        """Change settings of `LogConfig` by name, while the log is used; all clients follow in 5 s.

        Raises:
            ConfigError: a setting is unknown, out of range or fixed (time_shard), or partitions would become
                fewer.
        """
        return self._catalog.alter(self.name, changes).config

    def stats(self) -> LogStats:
        """Describe what the log holds, from the registry and a few short scans of some 1,000 records.

        Raises:
            NotDone: Cassandra does not answer.
        """
        now_us = self._driver.clock.now_us()
        spec = self._catalog.entry(self.name).spec
        shards = self._driver.run(existing(spec, spec.time_shards(spec.oldest_us(now_us), now_us)))
        until = to_datetime((now_us - spec.settle_us - spec.skew_us) // 1000)
        recent = self._times(until - RECENT, reverse=True, limit=SAMPLE)
        newest = recent or self._times(reverse=True, limit=1)
        oldest = self._times(limit=1)
        return LogStats(
            partitions=spec.partitions,
            time_shards=len(shards),
            cassandra_partitions=sum(map(len, shards.values())),
            oldest=oldest[0] if oldest else None,
            newest=newest[0] if newest else None,
            per_second=rate(recent, until),
        )

    def _times(self, start: Start = EARLIEST, **bounds: Any) -> list[datetime]:
        with self.scan(start, on_expired=EARLIEST, **bounds) as scanner:
            return [record.time for record in scanner]

    # ── append ──

    def append(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> LogId:
        """Store one record (see `Record` for ranges); return its id once the record is acknowledged.

        Raises:
            BadInput: a limit is exceeded; nothing was stored.
            NotDone: the record was not stored; appending again is safe.
            AppendUnknown: the record may be stored; appending again may make a second copy.
        """
        result = self.append_many([Record(topic, body, key, partition, headers)])
        for _, error in result.failed:
            raise error
        (id_,) = filter(None, result.ids)  # without an error it has one
        return id_

    def append_many(self, records: Iterable[Record]) -> AppendResult:
        """Store up to 10,000 records. Entries fail one by one, and the result says which.

        Records without key and partition that are written together go to one partition. Records of one key go
        to one partition, in the order given.

        Raises:
            BatchTooLarge: more than 10,000 entries.
            LogNotFound: there is no such log.
            NotDone: the log's configuration cannot be read, at the first call; nothing is stored.
            Closed: the client has been closed.
        """
        found = listed(records, Record, "append_many")
        with self._driver.limited():
            return sent(self._driver.tracing, "append", self.name, found, self._store)

    def _store(self, found: list[Record]) -> AppendResult:
        spec = self._catalog.entry(self.name).spec
        entries, places, failed = checked(found, lambda record: entry_of(record, spec.partitions))
        writes: list[Write] = []
        if entries:
            writes = self._states.run(lambda state: self._driver.run(append(spec, state, entries)))
        for write in writes:
            write.indexes = [places[index] for index in write.indexes]
            if write.error is not None:
                failed += failures(write, partial(_ids_of, spec.partition), AppendUnknown, "record")
        self._notifier.ring(
            spec.partition, {write.shard.partition for write in writes if write.error is None}
        )
        return AppendResult(spec.partition, len(found), writes, failed)

    # ── read ──

    def scan(
        self,
        start: Start = "earliest",
        end: Point | None = None,
        *,
        partitions: Sequence[int] | None = None,
        topics: Iterable[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
        on_expired: str = "error",
    ) -> Scanner:
        """Read records in the order of their ids, up to what is stable now; a context manager.

        start: "earliest", an aware datetime, a record's id (from the record after it), or for each
        partition one of these. end: a datetime (exclusive) or id (inclusive); None for all that is
        stable, so that records of the last 2.5 s or so may be missing. reverse: from `end` back to
        `start`. on_expired: "error" or "earliest", for a start that the log no longer remembers.

        Raises:
            PartitionOutOfRange, BadInput: an argument is out of range.
            PositionExpired: the start lies before what the log remembers.
        """
        return Scanner(
            self._catalog,
            self._driver,
            self.name,
            start=start,
            end=end,
            partitions=partitions,
            topics=topics,
            limit=limit,
            reverse=reverse,
            on_expired=on_expired,
        )

    def follow(
        self,
        start: Start = "latest",
        *,
        partitions: Sequence[int] | None = None,
        topics: Iterable[str] | None = None,
        low_latency: bool = False,
        poll_interval: timedelta = timedelta(milliseconds=100),
        on_expired: str = "error",
    ) -> Follower:
        """Read records for ever, as they become stable, also from new partitions. Arguments as of `scan`.

        low_latency: hand each record out once, as soon as it can be read, even before earlier records become
        readable. poll_interval: 1 ms to 1 min. on_expired: also for what the log forgets before it was read.
        The start "earliest" is a tenth of the ttl, at most ten minutes, above the oldest record of a log that
        forgets some in that time.
        """
        return Follower(
            self._catalog,
            self._driver,
            self.name,
            notifier=self._notifier,
            start=start,
            partitions=partitions,
            topics=topics,
            low_latency=low_latency,
            poll_interval=poll_interval,
            on_expired=on_expired,
        )


def _ids_of(log: str, write: Write) -> list[LogId]:
    return [LogId.of(log, write.shard.partition, row.id) for row in write.rows]
