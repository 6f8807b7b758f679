"""The part of the storage seam that logs need: records, which partitions exist, and the logs themselves.

Records are inserted at the µs of their id and deleted (only when an append was answered too late to
count) one µs later, as messages are.
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
    """Insert records as one mutation. ttl_s: 0 keeps them for ever."""

    shard: LogShard
    rows: tuple[RecordRow, ...]
    ttl_s: int


@dataclass(frozen=True, slots=True)
class DeleteRecords(Repeatable[None]):
    """Delete records, one µs after the latest of their ids.

    at_us: the time instead, which is now, of records that are damaged: nobody knows when they were written.
    """

    shard: LogShard
    ids: tuple[int, ...]
    at_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRecordIds(Repeatable[list[int]]):
    """Of records with after < id <= upto the first `limit` ids."""

    shard: LogShard
    after: int
    upto: int
    limit: int


@dataclass(frozen=True, slots=True)
class PeekRecords(Repeatable[dict[int, int]]):
    """For those partitions of one time shard that have one, the first id with after < id <= upto."""

    log: str
    partitions: tuple[int, ...]
    time_shard: int
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class RegisterLogShard(Repeatable[None]):
    """Say that a partition exists. ttl_s: 0 says so for ever."""

    shard: LogShard
    ttl_s: int


@dataclass(frozen=True, slots=True)
class ReadLogShards(Repeatable[dict[int, frozenset[int]]]):
    """For each of these time shards in which any exist, the partitions that do."""

    log: str
    time_shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListLogShards(Repeatable[list[int]]):
    """All time shards of a log in which partitions exist. It reads through those of all logs."""

    log: str


@dataclass(frozen=True, slots=True)
class DropRecords(Repeatable[None]):
    """Delete a whole Cassandra partition of a deleted log, up to `at_us` (never beyond now)."""

    shard: LogShard
    at_us: int


@dataclass(frozen=True, slots=True)
class UnregisterLogShard(Repeatable[None]):
    """Say that a partition of a deleted log is gone."""

    shard: LogShard


@dataclass(frozen=True, slots=True)
class ReadLog(Repeatable["LogRow | None"]):
    """A log's row, read at serial consistency.

    as_stored: also one that is damaged, whose columns may then hold anything; for who deletes it.
    """

    name: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class ListLogs(Repeatable[list[LogRow]]):
    """All logs, in no order."""


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
