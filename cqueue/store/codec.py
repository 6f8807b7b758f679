"""Rows of `messages` to and from the values of the seam.

An insert of 500 rows is where a producer's time goes, so its columns are turned into bytes here, by hand:
the driver's own binding costs four times as much, most of it for looking up what never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from cassandra.query import UNSET_VALUE

from cqueue import ids
from cqueue.store.cells import text_map
from cqueue.store.operations import (
    CursorRow,
    Head,
    LockRow,
    LockState,
    MessageRow,
    SlotRow,
    SlotState,
    WideRow,
)

_CURSOR, _LOCK, _SLOT = 0, 1, 2

_tinyint = struct.Struct(">b").pack
_int = struct.Struct(">i").pack
_bigint = struct.Struct(">q").pack


def message_values(wide_row: WideRow, rows: Iterable[MessageRow]) -> Iterable[list[Any]]:
    """For each row the bytes of INSERT_MESSAGE's values, in its order."""
    key = [wide_row.queue.encode(), _bigint(wide_row.time_shard), _int(wide_row.shard)]
    unset = UNSET_VALUE
    for row in rows:
        priority, id_, body, size, headers, codec, task, dedup_key, trigger, sent_at, expires, format_ = row
        yield [
            *key,
            _tinyint(priority),
            ids.to_bytes(id_),
            unset if body is None else body,
            unset if size is None else _int(size),
            unset if headers is None else text_map(headers),
            unset if codec is None else codec.encode(),
            unset if task is None else task.encode(),
            unset if dedup_key is None else dedup_key.encode(),
            unset if trigger is None else trigger.encode(),
            _bigint(sent_at),
            unset if expires is None else _bigint(expires),
            _tinyint(format_),
            _bigint(ids.time_us(id_)),
        ]


_NOTHING = (None,) * 6


def are_plain(rows: Iterable[MessageRow]) -> bool:
    """Whether all have nothing but a small body: no size, headers, codec, task, key, trigger, expiry."""
    return all(row[3:9] == _NOTHING and row[10] is None for row in rows)


def plain_values(wide_row: WideRow, rows: Iterable[MessageRow]) -> Iterable[list[Any]]:
    """For each row the bytes of INSERT_PLAIN_MESSAGE's values, in its order."""
    queue, time_shard, shard = wide_row.queue.encode(), _bigint(wide_row.time_shard), _int(wide_row.shard)
    for priority, id_, body, _, _, _, _, _, _, sent_at, _, format_ in rows:
        yield [
            queue,
            time_shard,
            shard,
            _tinyint(priority),
            ids.to_bytes(id_),
            body,
            _bigint(sent_at),
            _tinyint(format_),
            _bigint(ids.time_us(id_)),
        ]


def messages(rows: Sequence[tuple[Any, ...]]) -> list[MessageRow]:
    """Decoded columns in the order of MessageRow, as MessageRows."""
    return [
        MessageRow._make(row) if row[4] is None else MessageRow._make((*row[:4], dict(row[4]), *row[5:]))
        for row in rows
    ]


def head(rows: Iterable[tuple[Any, ...]]) -> Head:
    """The head of a wide row out of its rows with kind < 3."""
    lock: LockRow | None = None
    cursors: dict[int, CursorRow] = {}
    slots: list[SlotRow] = []
    for kind, priority, id_, cursor, boundary, state, owner, until, fence, *slot in rows:
        if kind == _SLOT:
            slots.append(_slot(priority, id_, state, owner, slot))
        elif kind == _LOCK:
            lock = LockRow(LockState(state), owner, until, fence, slot[-1] or 0)
        elif kind == _CURSOR:
            cursors[priority] = CursorRow(priority, cursor, boundary, slot[-1] or 0)
    return Head(lock, cursors, tuple(slots))


def _slot(priority: int, id_: int, state: int, owner: bytes, slot: Sequence[Any]) -> SlotRow:
    listed, due, attempt, rev, died_at, tally = slot
    return SlotRow(
        priority=priority,
        number=ids.slot_number(id_),
        state=SlotState(state),
        ids=listed or (),
        due_ms=due,
        attempt=attempt,
        owner=owner,
        rev=rev,
        died_at_ms=died_at or None,
        tally=tally or 0,
    )


def slot_values(wide_row: WideRow, row: SlotRow, expect_rev: int | None) -> tuple[Any, ...]:
    """SET_SLOT's values. "Never died" is stored as 0: a null would leave a tombstone at every overwrite."""
    set_ = (row.state, row.ids, row.due_ms, row.attempt, row.owner, row.rev, row.died_at_ms or 0, row.tally)
    return (*set_, *wide_row, row.priority, ids.slot_id(row.number), expect_rev)


def lock_values(wide_row: WideRow, lock: LockRow, expect_fence: int | None) -> tuple[Any, ...]:
    """SET_LOCK's values."""
    return (*lock, *wide_row, ids.START, expect_fence)


def cursor_values(wide_row: WideRow, row: CursorRow) -> tuple[Any, ...]:
    """SET_CURSOR's values."""
    return (row.cursor, row.boundary, row.tally, *wide_row, row.priority, ids.START)
