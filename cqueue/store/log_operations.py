"""Store operations on logs: records, the registry of partitions, the logs themselves, and subscriptions.

A record is inserted at the µs of its id. It is deleted, one µs later, only when the answer to its append came
too late to count. Messages are written in the same way.

Definition, positions and members of a subscription share one Cassandra partition. Positions change only by
conditional mutations. Cassandra decides one such mutation of a partition at a time, so one for each position
would make members wait for each other. Therefore a mutation changes several positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cqueue.store.operations import Operation, Repeatable
from cqueue.store.quarantine import Damage

CHANGES_AT_ONCE = 64
"""Positions in one conditional mutation, at most: a member of a log with many partitions needs several."""


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


# ── subscriptions ──


class SubscriptionKey(NamedTuple):
    """A subscription. log: the log's partition name (name and incarnation)."""

    log: str
    name: str


class DefinitionRow(NamedTuple):
    """The part that all members share. state: active or paused; config: JSON with the subscription's start,
    and with an id by which it differs from earlier ones of its name.
    """

    version: int
    state: str
    config: str


class PositionRow(NamedTuple):
    """How far a partition of the log has been read, and by which member.

    position: record id up to which all records are done; fence: grows with every change; owner: the name of
    the reading member, "" if there is none; generation: grows when somebody moves the position by hand.
    """

    partition: int
    position: int
    fence: int
    owner: str
    generation: int


class MemberRow(NamedTuple):
    """A member that was alive at `seen` (µs since 1970). info: JSON that the member writes."""

    member: str
    info: str
    seen: int


class PositionChange(NamedTuple):
    """A new position row, to be written IF the stored fence is `expect_fence` (None: never written)."""

    expect_fence: int | None
    row: PositionRow


@dataclass(frozen=True, slots=True)
class SubscriptionRows:
    """All rows of a subscription, read at one time.

    broken: a damaged definition, and its version as stored.
    lost: for each partition whose position is damaged, its fence as stored.
    """

    definition: DefinitionRow | None = None
    positions: Mapping[int, PositionRow] = field(default_factory=dict)
    members: tuple[MemberRow, ...] = ()
    broken: tuple[Damage, int | None] | None = None
    lost: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadSubscription(Repeatable[SubscriptionRows]):
    """Read all rows of a subscription. serial: finish unfinished mutations first.

    now_us: present time in µs since 1970; positions and heartbeats beyond it are damaged. None: no such
        check.
    """

    key: SubscriptionKey
    serial: bool = False
    now_us: int | None = None


@dataclass(frozen=True, slots=True)
class ListSubscriptions(Repeatable[list[SubscriptionKey]]):
    """List all subscriptions of all logs, also of deleted ones, in no order."""


@dataclass(frozen=True, slots=True)
class DefineSubscription(Operation[bool]):
    """Insert IF NOT EXISTS."""

    key: SubscriptionKey
    row: DefinitionRow


@dataclass(frozen=True, slots=True)
class ChangeDefinition(Operation[bool]):
    """Set state, config and version (= expect_version + 1) IF the version is as expected."""

    key: SubscriptionKey
    row: DefinitionRow
    expect_version: int | None


@dataclass(frozen=True, slots=True)
class RemoveSubscription(Operation[bool]):
    """Delete all rows IF the definition's version is as expected."""

    key: SubscriptionKey
    expect_version: int | None


@dataclass(frozen=True, slots=True)
class ChangePositions(Operation[bool]):
    """Apply one conditional batch. True: applied wholly; False: not at all.

    Rows that are not stored yet are written only while there is a definition with this config: after a
    deletion they would be those of the next subscription of the name.
    """

    key: SubscriptionKey
    config: str
    changes: tuple[PositionChange, ...]

    @property
    def makes_rows(self) -> bool:
        """Return whether a row is not stored yet."""
        return any(each.expect_fence is None for each in self.changes)


@dataclass(frozen=True, slots=True)
class BeatMember(Operation[None]):
    """Record that a member is alive; the row expires after `ttl_s` seconds."""

    key: SubscriptionKey
    row: MemberRow
    ttl_s: int


@dataclass(frozen=True, slots=True)
class RemoveMember(Operation[None]):
    """Delete the row of a member that has stopped."""

    key: SubscriptionKey
    member: str
