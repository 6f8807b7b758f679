"""The part of the storage seam that subscriptions need: definition, positions and members in one partition.

Positions change only by conditional mutations, several of one subscription in one: Cassandra decides one
such mutation at a time for a partition, so a mutation for each position would keep members waiting for
each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cqueue.store.log_operations import LogShard
from cqueue.store.operations import Operation, Repeatable
from cqueue.store.quarantine import Damage

CHANGES_AT_ONCE = 64


class SubscriptionKey(NamedTuple):
    """A subscription. log: the log's name in partition keys."""

    log: str
    name: str


class DefinitionRow(NamedTuple):
    """What all members agree on. state: active or paused; config: JSON, where it began."""

    version: int
    state: str
    config: str


class PositionRow(NamedTuple):
    """How far a partition has been read, and by whom.

    position: the id up to which everything is done; fence: grows with every change; owner: a member's
    name, empty for nobody; generation: grows when the position is moved by hand.
    """

    partition: int
    position: int
    fence: int
    owner: str
    generation: int


class MemberRow(NamedTuple):
    """A member that was alive at `seen` (µs since 1970). info: JSON of its own."""

    member: str
    info: str
    seen: int


class PositionChange(NamedTuple):
    """Overwrite a position, provided that its fence still is `expect_fence` (None: never written)."""

    expect_fence: int | None
    row: PositionRow


class Span(NamedTuple):
    """How many records there are, and the first one's id, if any."""

    records: int
    first: int | None


@dataclass(frozen=True, slots=True)
class SubscriptionRows:
    """Everything about a subscription, at one time.

    broken: a definition that cannot be read, and its version as it is stored.
    lost: partitions whose position cannot be read, and their fences as they are stored.
    """

    definition: DefinitionRow | None = None
    positions: Mapping[int, PositionRow] = field(default_factory=dict)
    members: tuple[MemberRow, ...] = ()
    broken: tuple[Damage, int | None] | None = None
    lost: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadSubscription(Repeatable[SubscriptionRows]):
    """All rows; `serial` makes unfinished mutations known first.

    now_us: the time, to tell positions and heartbeats that lie in the future; None takes them as they are.
    """

    key: SubscriptionKey
    serial: bool = False
    now_us: int | None = None


@dataclass(frozen=True, slots=True)
class ListSubscriptions(Repeatable[list[SubscriptionKey]]):
    """All subscriptions of all logs, deleted logs among them, in no order."""


@dataclass(frozen=True, slots=True)
class DefineSubscription(Operation[bool]):
    """Insert IF NOT EXISTS."""

    key: SubscriptionKey
    row: DefinitionRow


@dataclass(frozen=True, slots=True)
class ChangeDefinition(Operation[bool]):
    """Set state, config and version (= expect_version + 1) IF version is as expected."""

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
    """One conditional batch; True when all of it was applied, False when nothing was."""

    key: SubscriptionKey
    changes: tuple[PositionChange, ...]


@dataclass(frozen=True, slots=True)
class BeatMember(Operation[None]):
    """Say that a member lives; the row goes after `ttl_s` seconds."""

    key: SubscriptionKey
    row: MemberRow
    ttl_s: int


@dataclass(frozen=True, slots=True)
class RemoveMember(Operation[None]):
    """A member has stopped."""

    key: SubscriptionKey
    member: str


@dataclass(frozen=True, slots=True)
class CountRecords(Repeatable[Span]):
    """How many records of one partition of a log have after < id <= upto."""

    shard: LogShard
    after: int
    upto: int
