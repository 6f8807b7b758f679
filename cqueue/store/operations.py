"""The storage seam: everything that the protocol asks of Cassandra, as values.

Protocol functions are generators that yield these operations and receive their results. So the same code runs
on Cassandra, on the in-memory twin, and in a simulator that controls time and order. `yield from operation`
gives a result of the operation's own type.

An operation fails in one of two ways (cqueue.errors). `NotDone`: a read failed, or a write certainly had no
effect. `OutcomeUnknown`: a write may take effect, now or later. With a wrong schema an operation fails with
`SchemaMismatch`, and so will each repetition.

Write timestamps are part of the seam, because correctness depends on them. Rows of messages, bodies and the
registry are inserted at the µs of their id (or time shard), and deleted one µs later.
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
"""The deployment format from which on all clients can read messages that share a row (cqueue.store.packs)."""


class Operation(Generic[T]):
    """A request to the store, the clock or the random generator; its result is a T."""

    __slots__ = ()

    def __iter__(self) -> Generator[Operation[Any], Any, T]:
        result: T = yield self
        return result


class Repeatable(Operation[T]):
    """A read or a delete, which the blocking driver may repeat after any failure.

    The protocol repeats inserts itself, because it knows until when. Nobody repeats a conditional mutation.
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
    """A message as it is stored. Times are ms since 1970; None is an unset column."""

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
    """The lock of a wide row. until_ms: ms since 1970; fence: number of the last claim, which only grows.

    tally: see `Head.is_whole`.
    """

    state: LockState
    owner: bytes
    until_ms: int
    fence: int
    tally: int = 0


class SlotState(IntEnum):
    """State of a timeout slot. QUARANTINED is never stored: decoding a damaged slot gives it."""

    QUARANTINED = -1  # damaged: nobody holds the messages that it lists, and nobody may claim them
    FREE = 0
    CLAIMED = 1  # delivered to `owner` until `due`
    WAITING = 2  # nacked, snoozed or released: anybody may take it at `due`


class SlotRow(NamedTuple):
    """A timeout slot: "these ids of one priority are claimed (or wait) until due".

    number: 0 and up; below 0 for a quarantined slot whose stored id is not that of a slot. due_ms,
    died_at_ms: ms since 1970. attempt: deliveries so far. rev: revision, which each change raises. tally: see
        `Head.is_whole`.
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
    def place(self) -> tuple[int, int]:
        """Priority and number, which name a slot of a wide row."""
        return self.priority, self.number

    @property
    def in_use(self) -> bool:
        """Whether the slot lists messages that are claimed, or that wait to be claimed."""
        return self.state > SlotState.FREE


class CursorRow(NamedTuple):
    """Progress in one priority of a wide row. cursor, boundary: message ids; tally: see `Head.is_whole`."""

    priority: int
    cursor: int
    boundary: int
    tally: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The rows of a wide row before its messages: lock, cursors by priority, timeout slots."""

    lock: LockRow | None = None
    cursors: Mapping[int, CursorRow] = field(default_factory=dict)
    slots: tuple[SlotRow, ...] = ()

    def cursor(self, priority: int) -> CursorRow:
        """Return the cursor row of a priority; the start if none is stored."""
        return self.cursors.get(priority) or CursorRow(priority, 0, 0)

    def by_place(self) -> dict[tuple[int, int], SlotRow]:
        """Return the slots by their places."""
        return {slot.place: slot for slot in self.slots}

    def listing(self, priority: int) -> dict[int, SlotRow]:
        """Return, by message id, the slot that lists the message."""
        return {
            id_: slot
            for slot in self.slots
            if slot.priority == priority and slot.state is not SlotState.FREE
            for id_ in slot.ids
        }

    @property
    def is_whole(self) -> bool:
        """Whether the read shows each mutation of several rows wholly or not at all.

        Each such mutation adds random numbers that sum to 0 to the tallies of its rows. Replicas may answer
        one read at two moments: one row from before a mutation, another from after it. Then the sum of all
        tallies is not 0.
        """
        of_lock = self.lock.tally if self.lock is not None else 0
        return wrapped(of_lock + tallies(self.cursors.values(), self.slots)) == 0


def tallies(cursors: Iterable[CursorRow], slots: Iterable[SlotRow]) -> int:
    """Return the sum of the tallies of these rows, not wrapped."""
    return sum(cursor.tally for cursor in cursors) + sum(slot.tally for slot in slots)


def wrapped(number: int) -> int:
    """Wrap a tally as it is stored: modulo 2⁶⁴, signed."""
    return (number + _HALF & _HALF * 2 - 1) - _HALF


class SlotChange(NamedTuple):
    """A new slot row, to be written IF the stored revision is `expect_rev` (None: never written)."""

    expect_rev: int | None
    row: SlotRow


class ShardRow(NamedTuple):
    """A registered wide row and the priorities that were sent to it."""

    time_shard: int
    shard: int
    priorities: frozenset[int]


class Slice(NamedTuple):
    """Live messages in id order.

    tombstones: how many the read crossed, if the store noticed (it does above 1,000), else 0.
    damaged: for each damaged row the id of its last message. The messages of such a row are left out.
    """

    rows: list[MessageRow]
    tombstones: int
    damaged: tuple[int, ...] = ()


class IdSlice(NamedTuple):
    """Ids of live messages in order, including those of damaged rows. tombstones: as in `Slice`.

    damaged: as in `Slice`, but only damage that shows without bodies or that this process met before.
    """

    ids: list[int]
    tombstones: int
    damaged: tuple[int, ...] = ()


class QueueRow(NamedTuple):
    """A queue's row. config: JSON; epoch_ms: width of a registry epoch; version: 1 and up."""

    name: str
    incarnation: str
    version: int
    state: str
    config: str
    epoch_ms: int
    oldest_epoch: int
    oldest_open_epoch: int


class DeploymentRow(NamedTuple):
    """The values that all clients of a keyspace agree on.

    home_dc: the data centre that clients work in; None if all data centres agree on each conditional
        mutation.
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
    """Read all rows with kind < 3, unpaged. serial: finish unfinished mutations first."""

    wide_row: WideRow
    serial: bool = False


@dataclass(frozen=True, slots=True)
class Range(Repeatable[T]):
    """A read of live messages of one priority with after < id <= upto, at most `limit`."""

    wide_row: WideRow
    priority: int
    after: int
    upto: int
    limit: int


class ReadSlice(Range[Slice]):
    """Read a range of messages."""

    __slots__ = ()


class ReadIds(Range[IdSlice]):
    """Read the ids of a range of messages."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class HasMessages(Repeatable[bool]):
    """Return whether a message of any priority stands in a wide row, or a row that cannot be read."""

    wide_row: WideRow


@dataclass(frozen=True, slots=True)
class ReadMessages(Repeatable[list[MessageRow]]):
    """Read those of the given messages that are live, in id order, at most `limit` (0: all)."""

    wide_row: WideRow
    priority: int
    ids: tuple[int, ...]
    limit: int = 0


@dataclass(frozen=True, slots=True)
class ReadBodies(Repeatable[dict[int, bytes]]):
    """Read separately stored bodies by id; missing ones are left out.

    sizes: bytes of each body, if known. They decide how many bodies one request reads.
    everywhere: ask all replicas in all data centres; fails unless each answers in about a second.
    """

    wide_row: WideRow
    ids: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class ReadShards(Repeatable[list[ShardRow]]):
    """Read the registry of one epoch from `from_time_shard` (ms since 1970) on, in order.

    grid: (epoch's start, epoch's length, width of a time shard) in ms; rows that do not fit count as damaged.
    """

    queue: str
    epoch: int
    from_time_shard: int
    grid: tuple[int, int, int] | None = None


# ── Plain writes, idempotent under their derived timestamps ─────────────────────────────────────


@dataclass(frozen=True, slots=True)
class InsertMessages(Operation[None]):
    """Insert rows at time(id) µs, in one single-partition unlogged batch.

    Messages with packed ids come in order and with all of their pack. They have bodies, and differ in nothing
    but id and body.
    """

    wide_row: WideRow
    rows: tuple[MessageRow, ...]


@dataclass(frozen=True, slots=True)
class ShowInsert(Operation["tuple[str, tuple[Any, ...]]"]):
    """Return the CQL that inserts one message, and its values, without running it.

    A store in memory has no CQL: it raises `BadInput`.
    """

    wide_row: WideRow
    row: MessageRow


@dataclass(frozen=True, slots=True)
class DeleteMessages(Repeatable[None]):
    """Delete messages of one priority at the largest time(id) + 1 µs.

    at_us: for damaged rows, whose write times need not follow from their ids, the present time in µs: their
        whole rows are deleted, then or later.
    """

    wide_row: WideRow
    priority: int
    ids: tuple[int, ...]
    at_us: int | None = None


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

    at_us: for a damaged row, the present time in µs instead: nobody knows when the row was written.
    """

    queue: str
    epoch: int
    time_shard: int
    shard: int
    at_us: int | None = None


# ── Conditional mutations ───────────────────────────────────────────────────────────────────────

RETIRED_TTL_S = 3600
"""Seconds that the marker of a retired wide row stays. Longer than a mutation may be applied late."""


@dataclass(frozen=True, slots=True)
class Mutate(Operation[bool]):
    """Apply one conditional batch in one wide row. True: applied wholly; False: not at all.

    lock: written IF the stored fence equals `expect_fence` (None: no lock row yet).
    overtakes: nothing but the lock is written, IF the stored fence is lower than its own and the wide row is
        not retired; the stored tally stays.
    cursors: written without a condition of their own, so only together with `lock`.
    slots: each written IF its revision is as expected.
    retire: delete everything older than `lock`, which expires after RETIRED_TTL_S.
    """

    wide_row: WideRow
    lock: LockRow | None = None
    expect_fence: int | None = None
    cursors: tuple[CursorRow, ...] = ()
    slots: tuple[SlotChange, ...] = ()
    retire: bool = False
    overtakes: bool = False

    def __post_init__(self) -> None:
        if self.lock is None and (self.cursors or self.retire or not self.slots):
            raise ValueError("A mutation without a condition: cursors and retirement need the lock.")

    def may_lock(self, stored: LockRow | None) -> bool:
        """Return whether the condition on the lock holds, if there is one."""
        if self.lock is None:
            return True
        if self.overtakes:
            return stored is not None and stored.fence < self.lock.fence and stored.state != LockState.RETIRED
        return (stored.fence if stored else None) == self.expect_fence

    def lock_beside(self, stored: LockRow | None) -> LockRow | None:
        """Return the lock as this mutation leaves it beside what was stored."""
        if self.lock is None or not self.overtakes or stored is None:
            return self.lock
        return self.lock._replace(tally=stored.tally)


# ── Queues and deployment ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ReadQueue(Repeatable["QueueRow | None"]):
    """Read a queue's row at serial consistency.

    as_stored: return a damaged row, too, with whatever its columns hold, so that the queue can be deleted.
    """

    name: str
    as_stored: bool = False


@dataclass(frozen=True, slots=True)
class ListQueues(Repeatable[list[QueueRow]]):
    """List all queues, in no order."""


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
    """Move oldest_epoch (with `open`, oldest_open_epoch) to `to` IF it is `expect` and so is the
    incarnation.
    """

    name: str
    incarnation: str
    expect: int
    to: int
    open: bool = False


@dataclass(frozen=True, slots=True)
class ReadDeployment(Repeatable["DeploymentRow | None"]):
    """Read the deployment row; None if the schema was not applied."""


@dataclass(frozen=True, slots=True)
class BumpDeployment(Operation[bool]):
    """Raise `changes` by one IF it equals `expect`."""

    expect: int


# ── Rows in quarantine ──


@dataclass(frozen=True, slots=True)
class DumpRow(Repeatable["str | None"]):
    """Read all columns of a row as JSON, blobs in hexadecimal; None if there is no such row.

    key: as `Damage.key`.
    """

    table: str
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DropSlot(Operation[bool]):
    """Delete a damaged timeout slot whose stored id is not that of a slot. id: the stored id."""

    wide_row: WideRow
    priority: int
    id: int


# ── Operations that the driver runs without the store
# ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Now(Operation[int]):
    """Ask for cluster time in µs since 1970. checked: synchronise first if the last time was 30 s ago."""

    checked: bool = False


@dataclass(frozen=True, slots=True)
class RandomBits(Operation[int]):
    """Draw a whole number of `bits` random bits."""

    bits: int


@dataclass(frozen=True, slots=True)
class Pause(Operation[bool]):
    """Do nothing for `seconds`. Return whether the call's time is over then, perhaps after a moment."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together(Operation[list[Any]]):
    """Run store operations side by side. The result holds, in order, the result or the error of each.

    retried: whether the blocking driver repeats failed reads and deletes at once.
    """

    operations: tuple[Operation[Any], ...]
    retried: bool = True


def together(*operations: Operation[Any]) -> Generator[Operation[Any], Any, list[Any]]:
    """Run operations side by side; return their results, or raise the first error."""
    if len(operations) == 1:
        return [(yield from operations[0])]
    results = (yield from Together(operations)) if operations else []
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


class Answers(list[Any]):
    """The results of a `Together`, from a store that notes when each came; a plain list came as a whole.

    ages_us: for each result the µs for which it has waited for the others.
    """

    __slots__ = ("ages_us",)

    def __init__(self, results: Iterable[Any], ages_us: Iterable[int]) -> None:
        super().__init__(results)
        self.ages_us = tuple(ages_us)


class Pending(Protocol[T_co]):
    """A request under way. A read shows each row at some moment between the request's start and its end."""

    def result(self) -> T_co:
        """Wait for the result. Raises NotDone, OutcomeUnknown or SchemaMismatch."""


class Store(Protocol):
    """The interface of a storage back end. Thread-safe."""

    @property
    def quarantine(self) -> Quarantine:
        """The damaged rows met so far."""

    def execute(self, operation: Operation[Any]) -> Any:
        """Run one store operation. Return its result, or raise NotDone, OutcomeUnknown or SchemaMismatch."""

    def together(self, operations: tuple[Operation[Any], ...]) -> list[Any]:
        """Run operations side by side. Return, in order, the result of each or the error of `execute`."""

    def sample_time_us(self) -> list[tuple[int, int]]:
        """Ask several coordinators for the time. Return (server time, round trip) of each answer, in µs.

        A coordinator's answer is taken to be true in the middle of its round trip, and is carried on to the
        moment of return.
        """

    def close(self) -> None:
        """Close all connections."""
