"""Operations on keys of messages: the look-up table of keyed queues, and the reservations of unique messages.

Rows of the look-up table are written under cluster time, not under the time of an id. So a row that a look-up
has deleted, because its message was missing, can be written again when the message is sent again under the
same derived id. A reservation says which message a key stands for, and changes by conditional writes only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from cqueue import ids
from cqueue.store.operations import Operation, Repeatable, WideRow

_PACKED: Final = struct.Struct(">qiB16s")
PLACE_BYTES: Final = _PACKED.size
"""Bytes of a packed place."""
ALL_TOKENS: Final = (-(1 << 63), (1 << 63) - 1)
"""The tokens of all partitions: above the first one, up to the second one."""


# ── the look-up table ──


class KeyRow(NamedTuple):
    """The place of one message. at_us: write timestamp in µs since 1970."""

    id: int
    priority: int
    time_shard: int
    shard: int
    at_us: int

    def wide_row(self, queue: str) -> WideRow:
        """Return the wide row of the message. queue: the queue's partition name."""
        return WideRow(queue, self.time_shard, self.shard)


class KeyPlace(NamedTuple):
    """A partition of the look-up table. queue: the queue's partition name (name and incarnation)."""

    queue: str
    key: str


class KeyWrite(NamedTuple):
    """A row with its place. ttl_s: seconds until an inserted row expires; 0: never."""

    place: KeyPlace
    row: KeyRow
    ttl_s: int = 0


@dataclass(frozen=True, slots=True)
class ReadKey(Repeatable[list[KeyRow]]):
    """Read the rows of a key above `after`, an (id, priority), in order, at most `limit`."""

    place: KeyPlace
    after: tuple[int, int]
    limit: int


@dataclass(frozen=True, slots=True)
class InsertKeys(Operation[None]):
    """Insert rows at their write timestamps, together: of one key, or a few of several keys."""

    writes: tuple[KeyWrite, ...]


@dataclass(frozen=True, slots=True)
class DeleteKeys(Repeatable[None]):
    """Delete what is stored of rows up to their write timestamps, together, as `InsertKeys`."""

    writes: tuple[KeyWrite, ...]


@dataclass(frozen=True, slots=True)
class ScanKeys(Repeatable[list[tuple[KeyPlace, int]]]):
    """Read partitions of all queues whose token is above `after`, in order of token, at most `limit`."""

    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class DropKey(Repeatable[None]):
    """Delete all rows of a key that were written up to `at_us`."""

    place: KeyPlace
    at_us: int


# ── reservations ──


class Place(NamedTuple):
    """The place of a message in its queue.

    time_shard: ms since 1970; below 0 in a reservation that is void, see `voided`.
    """

    time_shard: int
    shard: int
    priority: int
    id: int

    @property
    def is_void(self) -> bool:
        """Whether a reservation of this place is void: its message is not, and will not be, sent."""
        return self.time_shard < 0

    def voided(self) -> Place:
        """Return this place as a void reservation names it; of a void one, the place of its message.

        It is another value, so a conditional write that expects the one fails on the other.
        """
        return self._replace(time_shard=~self.time_shard)

    def row_in(self, queue: str) -> WideRow:
        """Return the wide row. queue: the queue's partition name."""
        return WideRow(queue, self.time_shard, self.shard)

    def packed(self) -> bytes:
        """Return the place as it is stored."""
        return _PACKED.pack(*self[:3], ids.to_bytes(self.id))

    @classmethod
    def unpacked(cls, data: bytes) -> Place:
        """Undo `packed`. data: PLACE_BYTES bytes."""
        time_shard, shard, priority, id_ = _PACKED.unpack(data)
        return cls(time_shard, shard, priority, ids.from_bytes(id_))


class ReservationRow(NamedTuple):
    """A key, and the message that was, or is about to be, sent under it.

    queue: the queue's partition name. replaces: a message that has to go once `message` is stored.
    made_us: when the sender gave the message its id, in µs since 1970. sent: the message is known to have
    been stored.
    """

    queue: str
    key: str
    message: Place
    replaces: Place | None
    made_us: int
    sent: bool


@dataclass(frozen=True, slots=True)
class ReadReservation(Repeatable["ReservationRow | None"]):
    """Read a reservation at serial consistency, which finishes half-done mutations."""

    queue: str
    key: str


@dataclass(frozen=True, slots=True)
class WriteReservation(Operation[bool]):
    """Write all columns, for `ttl_s` seconds (0: for ever), IF the stored message is `expect`.

    expect: None for IF NOT EXISTS.
    """

    row: ReservationRow
    ttl_s: int
    expect: Place | None = None


@dataclass(frozen=True, slots=True)
class ListReservations(Repeatable[list[tuple[str, str]]]):
    """List the keys that are reserved in these queues, as (queue, key), in no order.

    Reads the keys of all queues that have these tokens. The in-memory twin has no tokens.
    """

    queues: frozenset[str]
    tokens: tuple[int, int] = ALL_TOKENS


@dataclass(frozen=True, slots=True)
class RemoveReservation(Operation[bool]):
    """Delete a reservation IF EXISTS, also a damaged one."""

    queue: str
    key: str
