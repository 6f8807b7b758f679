"""Operations on the look-up table of keyed queues: the places of messages by their keys.

Rows are written under cluster time, not under the time of an id. So a row that a look-up has deleted, because
its message was missing, can be written again when the message is sent again under the same derived id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cqueue.store.operations import Operation, Repeatable, WideRow


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
