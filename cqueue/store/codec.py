"""Rows of `messages` to and from the values of the seam.

An insert of 500 rows is where a producer's time goes, so its values are turned into cells here, by hand: the
driver's own binding costs many times as much, most of it for looking up what never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cqueue import ids
from cqueue.store import cells
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

_int = struct.Struct(">i").pack
_bigint = struct.Struct(">q").pack
_key = struct.Struct(">ibiQQ").pack  # the cells of priority and id
_before_body = struct.Struct(">ibiQQi").pack  # and the size of the body
_id = struct.Struct(">iQQ").pack
_timestamp = struct.Struct(">iq").pack
_sent = struct.Struct(">iq").pack
_end = struct.Struct(">ibiq").pack  # the cells of format and write timestamp
_plain_end = struct.Struct(">iqibiq").pack  # with sent_at before


def partition(wide_row: WideRow) -> tuple[bytes, bytes, bytes]:
    """The values of a wide row's partition key."""
    return wide_row.queue.encode(), _bigint(wide_row.time_shard), _int(wide_row.shard)


def message_cells(rows: Iterable[MessageRow]) -> list[bytes]:
    """For each row the cells of INSERT_MESSAGE's values after the partition key, in its order."""
    encoded: list[bytes] = []
    unset, of, text = cells.UNSET, cells.of, cells.text
    for priority, id_, body, size, headers, codec, task, key, trigger, sent_at, expires, format_ in rows:
        high, low = ids.halves(id_)
        parts = (
            _key(1, priority, 16, high, low),
            unset if body is None else of(body),
            unset if size is None else of(_int(size)),
            unset if headers is None else of(cells.text_map(headers)),
            text(codec),
            text(task),
            text(key),
            text(trigger),
            _sent(8, sent_at),
            unset if expires is None else of(_bigint(expires)),
            _end(1, format_, 8, ids.time_us(id_)),
        )
        encoded.append(b"".join(parts))
    return encoded


_NOTHING = (None,) * 6


def are_plain(rows: Iterable[MessageRow]) -> bool:
    """Whether all have nothing but a small body: no size, headers, codec, task, key, trigger, expiry."""
    return all(row[3:9] == _NOTHING and row[10] is None for row in rows)


def plain_cells(rows: Iterable[MessageRow]) -> list[bytes]:
    """For each row the cells of INSERT_PLAIN_MESSAGE's values after the partition key, in its order."""
    encoded: list[bytes] = []
    halves, time_us = ids.halves, ids.time_us
    for priority, id_, body, _, _, _, _, _, _, sent_at, _, format_ in rows:
        before = _before_body(1, priority, 16, *halves(id_), -1 if body is None else len(body))
        after = _plain_end(8, sent_at, 1, format_, 8, time_us(id_))
        encoded.append(b"".join((before, body or b"", after)))
    return encoded


def body_cells(bodies: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """For each (id, body) the cells of INSERT_BODY's values after the partition key, in its order."""
    return [
        b"".join((_id(16, *ids.halves(id_)), cells.of(body), _timestamp(8, ids.time_us(id_))))
        for id_, body in bodies
    ]


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Decoded columns in the order of MessageRow and on, with headers as a dict."""
    return (row if row[4] is None else (*row[:4], dict(row[4]), *row[5:]) for row in found)


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
