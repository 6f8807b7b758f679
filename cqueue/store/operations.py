"""The storage seam: everything the protocol asks of Cassandra, as values.

Protocol functions are generators that yield these operations and get back their results, so that
one and the same code is run by the blocking driver, by the memory twin, and by a simulator that
owns time and order. `yield from operation` gives a result of the operation's own type.

An operation fails in one of two ways (cqueue.errors): `NotDone` (a read that failed; a write that
certainly had no effect) or `OutcomeUnknown` (a write that may have had one, now or later). Where the
schema is not as it must be it is `SchemaMismatch`, which no repetition mends.

Write timestamps are part of the seam, because correctness hangs on them: message, body and registry
rows are inserted at the µs of their id (or time shard) and deleted one µs later.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from cqueue.store.quarantine import Quarantine

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_HALF = 1 << 63

FORMAT = 2
"""Version of what is stored in `messages`. Raised when older code would misread what newer code writes."""
PACKS_SINCE = 2
"""The format from which on everybody knows messages that share a row (cqueue.store.packs)."""


class Operation(Generic[T]):
    """Something asked of the outside world; its result is a T."""

    __slots__ = ()

    def __iter__(self) -> Generator[Operation[Any], Any, T]:
        result: T = yield self
        return result


class Repeatable(Operation[T]):
    """A read or a delete, which may be done again whatever came of it.

    Inserts are repeated by the protocol, which knows until when; conditional mutations never are.
    """

    __slots__ = ()


# ── Values ──────────────────────────────────────────────────────────────────────────────────────


class WideRow(NamedTuple):
    """One partition of `messages`.

    queue: the queue's partition name (name and incarnation); time_shard: ms since 1970;
    shard: 0 and up, below 0 for an open wide row.
    """

    queue: str
    time_shard: int
    shard: int


class MessageRow(NamedTuple):
    """A message as it is stored. Times are ms since 1970; None stands for a column not set."""

    priority: int
    id: int
    body: bytes | None  # None: the body stands in `bodies`
    size: int | None  # bytes of a body that stands in `bodies`
    headers: Mapping[str, str] | None
    codec: str | None
    task: str | None
    key: str | None
    trigger: str | None
    sent_at: int
    expires: int | None
    format: int


class LockState(IntEnum):
    """State of a wide row's lock."""

    FREE = 0
    LOCKED = 1
    RETIRED = 2


class LockRow(NamedTuple):
    """The lock of a wide row. until: ms since 1970; fence: grows with every change of the claim state.

    tally: see `Head.is_whole`.
    """

    state: LockState
    owner: bytes
    until_ms: int
    fence: int
    tally: int = 0


class SlotState(IntEnum):
    """State of a timeout slot, as stored; QUARANTINED is made by whoever reads it."""

    QUARANTINED = -1  # cannot be read: nobody holds what it lists, and nobody may claim it
    FREE = 0
    CLAIMED = 1  # delivered to `owner` until `due`
    WAITING = 2  # nacked, snoozed or released: anybody may take it at `due`


class SlotRow(NamedTuple):
    """A timeout slot: "these ids of one priority are claimed until due".

    number: 0 and up; below 0 for a slot in quarantine that is stored under no such number.
    """

    priority: int
    number: int
    state: SlotState
    ids: tuple[int, ...]
    due_ms: int
    attempt: int
    owner: bytes
    rev: int
    died_at_ms: int | None = None
    tally: int = 0

    @property
    def in_use(self) -> bool:
        """Whether it holds messages that somebody has claimed, or may claim when it is due."""
        return self.state > SlotState.FREE


class CursorRow(NamedTuple):
    """Progress in one priority of a wide row."""

    priority: int
    cursor: int
    boundary: int
    tally: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the messages of a wide row: lock, cursors by priority, timeout slots."""

    lock: LockRow | None = None
    cursors: Mapping[int, CursorRow] = field(default_factory=dict)
    slots: tuple[SlotRow, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether each mutation of several rows is seen with all of its rows, or with none of them.

        Each such mutation adds numbers to the tallies of its rows that make 0 together and that nobody can
        foresee. A read whose answers are of two moments may have one row from after a mutation and
        another from before it; then the tallies do not add up.
        """
        of_lock = self.lock.tally if self.lock is not None else 0
        return wrapped(of_lock + tallies(self.cursors.values(), self.slots)) == 0


def tallies(cursors: Iterable[CursorRow], slots: Iterable[SlotRow]) -> int:
    """What these rows add up to, not wrapped."""
    return sum(cursor.tally for cursor in cursors) + sum(slot.tally for slot in slots)


def wrapped(number: int) -> int:
    """A tally as it is stored: modulo 2⁶⁴, signed."""
    return (number + _HALF & _HALF * 2 - 1) - _HALF


class SlotChange(NamedTuple):
    """Overwrite a slot, provided that its revision still is `expect_rev` (None: never written)."""

    expect_rev: int | None
    row: SlotRow


class ShardRow(NamedTuple):
    """A registered wide row and the priorities that were sent to it."""

    time_shard: int
    shard: int
    priorities: frozenset[int]


class Slice(NamedTuple):
    """Live messages in id order.

    tombstones: how many were crossed, as far as the store noticed (else 0).
    damaged: of each stored row that cannot be read the id of its last message; such rows hold no messages.
    """

    rows: list[MessageRow]
    tombstones: int
    damaged: tuple[int, ...] = ()


class IdSlice(NamedTuple):
    """Ids of live messages in order, those of damaged rows among them. tombstones: as in `Slice`.

    damaged: as in `Slice`, as far as it shows without bodies, or this process has met them before.
    """

    ids: list[int]
    tombstones: int
    damaged: tuple[int, ...] = ()


class QueueRow(NamedTuple):
    """A queue's row. config: JSON; epoch_ms: width of a registry epoch; versions start at 1."""

    name: str
    incarnation: str
    version: int
    state: str
    config: str
    epoch_ms: int
    oldest_epoch: int
    oldest_open_epoch: int


class DeploymentRow(NamedTuple):
    """What all clients of a keyspace agree on.

    home_dc: the data centre that clients work in; None where conditional mutations are agreed on by all.
    centre_epoch: grows with every switch of the home. retiring: whether wide rows may be dropped.
    """

    format: int
    serial_consistency: str
    settle_ms: int
    skew_ms: int
    gc_grace_s: int
    changes: int
    home_dc: str | None = None
    centre_epoch: int = 0
    retiring: bool = True


# ── Reads (quorum unless said otherwise) ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ReadHead(Repeatable[Head]):
    """All rows with kind < 3, in one unpaged read; `serial` makes unfinished mutations known first."""

    wide_row: WideRow
    serial: bool = False


@dataclass(frozen=True, slots=True)
class Range(Repeatable[T]):
    """Live messages of one priority with after < id <= upto, at most `limit`."""

    wide_row: WideRow
    priority: int
    after: int
    upto: int
    limit: int


class ReadSlice(Range[Slice]):
    """The messages themselves."""

    __slots__ = ()


class ReadIds(Range[IdSlice]):
    """Only the ids."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ReadMessages(Repeatable[list[MessageRow]]):
    """Those of the given messages that are live, in id order, at most `limit` (0: all)."""

    wide_row: WideRow
    priority: int
    ids: tuple[int, ...]
    limit: int = 0


@dataclass(frozen=True, slots=True)
class ReadBodies(Repeatable[dict[int, bytes]]):
    """Bodies that stand apart, by id; missing ones are left out.

    sizes: of each, in bytes, where they are known: how many are read at once hangs on them.
    everywhere: ask all replicas, of every data centre; fails unless each of them answers in a second or so.
    """

    wide_row: WideRow
    ids: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ReadShards(Repeatable[list[ShardRow]]):
    """The registry of one epoch from `from_time_shard` on, in order.

    grid: the epoch's start and length and the width of a time shard, in ms; rows beside it are left out.
    """

    queue: str
    epoch: int
    from_time_shard: int
    grid: tuple[int, int, int] | None = None


# ── Plain writes, idempotent under their derived timestamps ─────────────────────────────────────


@dataclass(frozen=True, slots=True)
class InsertMessages(Operation[None]):
    """Insert rows at time(id) µs, in one single-partition unlogged batch.

    Messages with packed ids stand in order, all of a pack, and differ in nothing but id and body; all of
    these have a body.
    """

    wide_row: WideRow
    rows: tuple[MessageRow, ...]


@dataclass(frozen=True, slots=True)
class DeleteMessages(Repeatable[None]):
    """Delete messages of one priority at the largest time(id) + 1 µs."""

    wide_row: WideRow
    priority: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropMessages(Repeatable[None]):
    """Delete the whole rows in which these messages stand, whoever wrote them, at `at_us` or later.

    For rows in quarantine: their write times need not follow from their ids.
    """

    wide_row: WideRow
    priority: int
    ids: tuple[int, ...]
    at_us: int


@dataclass(frozen=True, slots=True)
class InsertBodies(Operation[None]):
    """Insert bodies at time(id) µs."""

    wide_row: WideRow
    bodies: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class DeleteBodies(Repeatable[None]):
    """Delete bodies at the largest time(id) + 1 µs."""

    wide_row: WideRow
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropBodies(Repeatable[None]):
    """Delete the whole partition of bodies at `at_us`, which must not lie beyond now."""

    wide_row: WideRow
    at_us: int


@dataclass(frozen=True, slots=True)
class RegisterShard(Operation[None]):
    """Insert a registry row at time(time_shard) µs; priorities of several inserts add up."""

    queue: str
    epoch: int
    time_shard: int
    shard: int
    priorities: frozenset[int]


@dataclass(frozen=True, slots=True)
class UnregisterShard(Repeatable[None]):
    """Delete a registry row at time(time_shard) + 1 µs: no later insert revives it.

    at_us: the time instead, which is now, of a row that is damaged: nobody knows when it was written.
    """

    queue: str
    epoch: int
    time_shard: int
    shard: int
    at_us: int | None = None


# ── Conditional mutations ───────────────────────────────────────────────────────────────────────

RETIRED_TTL_S = 3600
"""How long the marker of a retired wide row stays: above any late application of a mutation."""


@dataclass(frozen=True, slots=True)
class Mutate(Operation[bool]):
    """One conditional batch in one wide row; True when applied, all of it, False when nothing was.

    lock: set when given, IF the stored fence equals `expect_fence` (None: no lock row yet).
    cursors: set without a condition of their own, so only together with `lock`.
    slots: each set IF its revision is as expected.
    retire: delete the partition just below `lock`, which gets a TTL of RETIRED_TTL_S.
    """

    wide_row: WideRow
    lock: LockRow | None = None
    expect_fence: int | None = None
    cursors: tuple[CursorRow, ...] = ()
    slots: tuple[SlotChange, ...] = ()
    retire: bool = False


# ── Queues and deployment ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ReadQueue(Repeatable["QueueRow | None"]):
    """A queue's row, read at serial consistency.

    as_stored: also one that is damaged, whose columns may then hold anything; for who deletes it.
    """

    name: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class ListQueues(Repeatable[list[QueueRow]]):
    """All queues, in no order."""


@dataclass(frozen=True, slots=True)
class CreateQueue(Operation[bool]):
    """Insert IF NOT EXISTS."""

    row: QueueRow


@dataclass(frozen=True, slots=True)
class ChangeQueue(Operation[bool]):
    """Set state, config and version (= expect_version + 1) IF version and incarnation are as expected."""

    row: QueueRow
    expect_version: int | None


@dataclass(frozen=True, slots=True)
class RemoveQueue(Operation[bool]):
    """Delete the row IF its incarnation is as expected."""

    name: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class AdvanceEpoch(Operation[bool]):
    """Move oldest_epoch (or oldest_open_epoch) from `expect` to `to`, of that incarnation only."""

    name: str
    incarnation: str
    expect: int
    to: int
    open: bool = False


@dataclass(frozen=True, slots=True)
class ReadDeployment(Repeatable["DeploymentRow | None"]):
    """The deployment row; None when the schema was not applied."""


@dataclass(frozen=True, slots=True)
class BumpDeployment(Operation[bool]):
    """Raise `changes` from `expect` by one, conditionally."""

    expect: int


# ── Rows in quarantine ──


@dataclass(frozen=True, slots=True)
class DumpRow(Repeatable["str | None"]):
    """Whatever stands in a row, as JSON, blobs in hexadecimal; None: there is no such row.

    key: as `Damage.key`.
    """

    table: str
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DropSlot(Operation[bool]):
    """Delete a timeout slot that is stored under no number. id: that it is stored under."""

    wide_row: WideRow
    priority: int
    id: int


# ── Questions that are not for the store ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Now(Operation[int]):
    """Cluster time in µs since 1970. checked: synchronise first if the last time is too long ago."""

    checked: bool = False


@dataclass(frozen=True, slots=True)
class RandomBits(Operation[int]):
    """A whole number of so many random bits."""

    bits: int


@dataclass(frozen=True, slots=True)
class Pause(Operation[None]):
    """Do nothing for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together(Operation[list[Any]]):
    """Run store operations side by side. The result has, in order, each one's result or its error.

    retried: whether reads and deletes that failed are worth repeating at once.
    """

    operations: tuple[Operation[Any], ...]
    retried: bool = True


class Pending(Protocol[T_co]):
    """Something under way. Of each row a read shows some moment between its beginning and its end."""

    def result(self) -> T_co:
        """Wait for it. Raises NotDone, OutcomeUnknown or SchemaMismatch."""


class Store(Protocol):
    """What a storage back end offers. Thread-safe. quarantine: the damaged rows that it has met."""

    quarantine: Quarantine

    def execute(self, operation: Operation[Any]) -> Any:
        """Run one store operation; its result, or NotDone, OutcomeUnknown or SchemaMismatch."""

    def together(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        """Run several side by side; in order, each one's result or its error, as `execute` raises it."""

    def sample_time_us(self) -> list[tuple[int, int]]:
        """Ask several coordinators for the time: (server time in µs, round trip in µs) of each answer.

        The server time belongs to the middle of the round trip that ended when the sample was taken,
        corrected to the moment of return.
        """

    def close(self) -> None:
        """Let go of all connections."""
