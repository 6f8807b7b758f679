"""Store operations on logs: records, the registry of partitions, and the logs themselves.

A record is inserted at the µs of its id. It is deleted, one µs later, only when the answer to its append came
too late to count. Messages are written in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cqueue.store.operations import Operation, Repeatable


class LogShard(NamedTuple):
    """One Cassandra partition of a log. time_shard: ms since 1970."""

    log: str
    partition: int
    time_shard: int


class RecordRow(NamedTuple):
    """A record as it is stored."""

    id: int
    topic: str
    key: str | None
    headers: Mapping[str, str] | None
    body: bytes


class Span(NamedTuple):
    """A count of records, and the id of the first one, if any."""

    records: int
    first: int | None


class LogRow(NamedTuple):
    """A log. created: ms since 1970."""

    name: str
    incarnation: str
    version: int
    state: str
    config: str
    created: int


@dataclass(frozen=True, slots=True)
class AppendRecords(Operation[None]):
    """Insert records as one mutation. ttl_s: seconds until they expire; 0 keeps them for ever."""

    shard: LogShard
    rows: tuple[RecordRow, ...]
    ttl_s: int


@dataclass(frozen=True, slots=True)
class DeleteRecords(Repeatable[None]):
    """Delete records, one µs after the latest of their ids.

    at_us: for damaged records, the present time in µs instead: nobody knows when they were written.
    """

    shard: LogShard
    ids: tuple[int, ...]
    at_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRecordIds(Repeatable[list[int]]):
    """Read the first `limit` ids of records with after < id <= upto."""

    shard: LogShard
    after: int
    upto: int
    limit: int


@dataclass(frozen=True, slots=True)
class PeekRecords(Repeatable[dict[int, int]]):
    """Read the first id with after < id <= upto of each of these partitions that has one, in one time
    shard.
    """

    log: str
    partitions: tuple[int, ...]
    time_shard: int
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class CountRecords(Repeatable[Span]):
    """Count the records of one partition of a log with after < id <= upto."""

    shard: LogShard
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class RegisterLogShard(Repeatable[None]):
    """Register a partition. Of several entries the one that expires last stays.

    ttl_s: seconds until the entry expires; 0 keeps it for ever.
    """

    shard: LogShard
    ttl_s: int


@dataclass(frozen=True, slots=True)
class ReadLogShards(Repeatable[dict[int, frozenset[int]]]):
    """Read which partitions exist in these time shards; a time shard without any is left out."""

    log: str
    time_shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListLogShards(Repeatable[list[int]]):
    """List the time shards of a log in which partitions exist. Reads through the registry of all logs."""

    log: str


@dataclass(frozen=True, slots=True)
class DropRecords(Repeatable[None]):
    """Delete a whole Cassandra partition of a deleted log. at_us: write time in µs, never beyond now."""

    shard: LogShard
    at_us: int


@dataclass(frozen=True, slots=True)
class UnregisterLogShard(Repeatable[None]):
    """Delete a partition of a deleted log from the registry."""

    shard: LogShard


@dataclass(frozen=True, slots=True)
class ReadLog(Repeatable["LogRow | None"]):
    """Read a log's row at serial consistency.

    as_stored: return a damaged row, too, with whatever its columns hold, so that the log can be deleted.
    """

    name: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class ListLogs(Repeatable[list[LogRow]]):
    """List all logs, in no order."""


@dataclass(frozen=True, slots=True)
class CreateLog(Operation[bool]):
    """Insert IF NOT EXISTS."""

    row: LogRow


@dataclass(frozen=True, slots=True)
class ChangeLog(Operation[bool]):
    """Set state, config and version (= expect_version + 1) IF version and incarnation are as expected."""

    row: LogRow
    expect_version: int | None


@dataclass(frozen=True, slots=True)
class RemoveLog(Operation[bool]):
    """Delete the row IF its incarnation is as expected."""

    name: str
    incarnation: str
