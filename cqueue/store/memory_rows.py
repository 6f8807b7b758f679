"""Rows of the in-memory twin with Cassandra's rules for timestamps, expiry and conditional writes."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from cqueue import ids
from cqueue.store import cells
from cqueue.store.operations import MessageRow

Key = TypeVar("Key")
Row = TypeVar("Row")

TOMBSTONE_WARN: Final = 1000
"""Tombstones up to which a read reports none: Cassandra's default `tombstone_warn_threshold`."""
SWEPT_FROM: Final = 1000
"""Rows from which on expired ones are looked for, each time that there are twice as many as were left."""
_FOR_EVER_US: Final = 1 << 62


def merge(old: MessageRow, new: MessageRow) -> MessageRow:
    """Merge two writes of a row at one timestamp: per column, a value beats null, and the larger value
    wins.
    """

    def larger(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return max(a, b, key=cells.text_map if isinstance(a, dict) else None)

    return MessageRow._make(larger(a, b) for a, b in zip(old, new, strict=True))


@dataclass(slots=True)
class Rows:
    """Rows written by plain mutations, each at the time of its id.

    floor_us: time in µs of the latest delete of the whole partition.
    """

    live: dict[int, Any] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)  # id → time of its delete, µs
    order: list[int] = field(default_factory=list)  # all ids ever seen, sorted
    floor_us: int = 0

    def insert(self, id_: int, row: Any) -> None:
        """Write a row at the time of its id."""
        at_us = ids.time_us(id_)
        if at_us <= self.floor_us or at_us <= self.dead.get(id_, at_us - 1):
            return
        if id_ in self.live:
            old = self.live[id_]
            row = merge(old, row) if isinstance(row, MessageRow) else max(old, row)
        elif id_ not in self.dead:
            insort(self.order, id_)
        self.live[id_] = row

    def delete(self, some: tuple[int, ...]) -> None:
        """Delete rows one µs after the latest of their ids."""
        at_us = max(map(ids.time_us, some)) + 1
        for id_ in some:
            if id_ not in self.live and id_ not in self.dead:
                insort(self.order, id_)
            self.dead[id_] = max(at_us, self.dead.get(id_, 0))
            self.live.pop(id_, None)

    def drop(self, at_us: int) -> None:
        """Delete all rows with a write time up to `at_us`."""
        self.floor_us = max(self.floor_us, at_us)
        self.live = {id_: row for id_, row in self.live.items() if ids.time_us(id_) > at_us}
        self.dead = {id_: us for id_, us in self.dead.items() if us > at_us}
        self.order = sorted({*self.live, *self.dead})

    def slice(self, after: int, upto: int, limit: int) -> tuple[list[int], int]:
        """Return up to `limit` live ids with after < id <= upto, and the number of tombstones crossed.

        limit: -1 for no limit.
        """
        found: list[int] = []
        dead: list[int] = []
        for index in range(bisect_right(self.order, after), len(self.order)):
            id_ = self.order[index]
            if id_ > upto or len(found) == limit:
                break
            if id_ in self.live:
                found.append(id_)
            else:
                dead.append(id_)
        crossed = ids.rows_of(dead) if len(dead) > TOMBSTONE_WARN else 0
        return found, crossed if crossed > TOMBSTONE_WARN else 0


class Expiring(Generic[Key, Row]):
    """Rows that expire."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self._rows: dict[Key, tuple[Row, int]] = {}  # (row, time in µs at which it expires)
        self._swept_at = SWEPT_FROM  # rows

    def put(self, key: Key, row: Row, ttl_s: int) -> None:
        """Write a row. ttl_s: seconds until it expires; 0 keeps it for ever."""
        now_us = self._clock_us()
        if len(self._rows) >= self._swept_at:
            self._rows = {key: row for key, row in self._rows.items() if now_us < row[1]}
            self._swept_at = max(SWEPT_FROM, 2 * len(self._rows))
        self._rows[key] = (row, now_us + ttl_s * 1_000_000 if ttl_s else _FOR_EVER_US)

    def put_longest(self, key: Key, row: Row, ttl_s: int) -> None:
        """Write a row, unless the one that is there expires later."""
        before = self._rows.get(key)
        self.put(key, row, ttl_s)
        if before is not None and before[1] > self._rows[key][1]:
            self._rows[key] = before

    def remove(self, key: Key) -> None:
        """Delete a row, if there is one."""
        self._rows.pop(key, None)

    def get(self, key: Key) -> Row | None:
        """Return a row; None if there is none, or it has expired."""
        row, until_us = self._rows.get(key, (None, 0))
        return row if self._clock_us() < until_us else None

    def alive(self) -> dict[Key, Row]:
        """Return the unexpired rows in the order of their keys."""
        now_us = self._clock_us()
        return {key: row for key, (row, until_us) in sorted(self._rows.items()) if now_us < until_us}


def create(rows: MutableMapping[Any, Any], key: Any, row: Any) -> bool:
    """Insert a row IF NOT EXISTS. Return whether it was inserted."""
    return rows.setdefault(key, row) is row


def alter(rows: MutableMapping[Any, Any], key: Any, expect: Mapping[str, Any], /, **columns: Any) -> bool:
    """Set columns of a row IF it has the expected values. Return whether that was done.

    columns: without any, the row is deleted.
    """
    stored = rows.get(key)
    if stored is None or any(getattr(stored, name) != value for name, value in expect.items()):
        return False
    if columns:
        rows[key] = stored._replace(**columns)
    else:
        del rows[key]
    return True


def alter_configured(rows: MutableMapping[Any, Any], op: Any) -> bool:
    """Apply a `ChangeQueue` or `ChangeLog`. Return whether its condition held."""
    row = op.row
    expect = {"version": op.expect_version, "incarnation": row.incarnation}
    version = (op.expect_version or 0) + 1
    return alter(rows, row.name, expect, version=version, state=row.state, config=row.config)
