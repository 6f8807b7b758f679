"""Encode messages and records as cells, and decode the head of a wide row.

A producer spends most of its time on inserts of up to 500 rows, so their values are encoded here, by hand.
The driver's own binding costs many times as much, most of it for looking up types that never change.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from cqueue import ids
from cqueue.store import cells, decode
from cqueue.store.log_operations import AppendRecords, ChangeLog, LogShard
from cqueue.store.operations import (
    ChangeQueue,
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
_MOST_SLOTS = 1 << 20
"""Slot numbers lie below this. A claim reuses free slots, so a higher number is damage."""
_MOST_ATTEMPTS = (1 << 31) - 1
"""The attempt of a slot lies below this, so that the next one fits an int."""
BEYOND_ALL_IDS = 1 << 124
"""Cursor and boundary of a damaged cursor row: beyond every id. A TimeUUID cannot hold it, so it is never
stored."""
_NEVER_MS = 253_402_300_799_999
"""The end of the year 9999 in ms since 1970, in place of a timeout that `datetime` cannot hold. Consumers
take either for expired (cqueue.protocol.policy); people are shown this one."""
LAST_EXPIRY_S: Final = (1 << 31) - 86_400
"""18 January 2038 in s since 1970: a day, ample for clocks, before the last date at which Cassandra lets rows
expire by default. It refuses to write a row that would expire later."""
_LOCK_STATES = frozenset(LockState)
_SLOT_STATES = frozenset({SlotState.FREE, SlotState.CLAIMED, SlotState.WAITING})
Report = Callable[[tuple[int, int, int], str], None]
"""Called with (kind, priority, id) of a row that cannot be read, and the reason."""

_smallint = struct.Struct(">h").pack
_int = struct.Struct(">i").pack
_bigint = struct.Struct(">q").pack
_key = struct.Struct(">ibiQQ").pack  # the cells of priority and id
_id = struct.Struct(">iQQ").pack
_long = struct.Struct(">iq").pack  # the cell of a bigint
_end = struct.Struct(">ibiq").pack  # the cells of format and write timestamp


def ttl(seconds: int) -> int:
    """Return the time to live that Cassandra is given: 0, for ever, for what would expire too late for it."""
    return seconds if time.time() + seconds < LAST_EXPIRY_S else 0


def partition(wide_row: WideRow) -> tuple[bytes, bytes, bytes]:
    """Encode the partition key of a wide row."""
    return wide_row.queue.encode(), _bigint(wide_row.time_shard), _int(wide_row.shard)


def message_cells(rows: Iterable[MessageRow]) -> list[bytes]:
    """Encode each row as the cells of INSERT_MESSAGE's values after the partition key, in order."""
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
            _long(8, sent_at),
            unset if expires is None else of(_bigint(expires)),
            _end(1, format_, 8, ids.time_us(id_)),
        )
        encoded.append(b"".join(parts))
    return encoded


def body_cells(bodies: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Encode each (id, body) as the cells of INSERT_BODY's values after the partition key, in order."""
    return [
        b"".join((_id(16, *ids.halves(id_)), cells.of(body), _long(8, ids.time_us(id_))))
        for id_, body in bodies
    ]


def log_partition(shard: LogShard) -> tuple[bytes, bytes, bytes]:
    """Encode the partition key of a log."""
    return shard.log.encode(), _smallint(shard.partition), _bigint(shard.time_shard)


def record_cells(op: AppendRecords) -> list[bytes]:
    """Encode each record as the cells of APPEND_RECORD's values after the partition key, in order."""
    encoded: list[bytes] = []
    of, text, ttl_s = cells.of, cells.text, cells.of(_int(ttl(op.ttl_s)))
    for id_, topic, key, headers, body in op.rows:
        parts = (
            _id(16, *ids.halves(id_)),
            of(topic.encode()),
            text(key),
            cells.UNSET if headers is None else of(cells.text_map(headers)),
            of(body),
            _long(8, ids.time_us(id_)),
            ttl_s,
        )
        encoded.append(b"".join(parts))
    return encoded


def rows(found: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Turn the headers of decoded rows into dicts. found: columns as MessageRow has them, then others."""
    return (
        row if row[4] is None or type(row[4]) is cells.Unreadable else (*row[:4], dict(row[4]), *row[5:])
        for row in found
    )


def head(rows: Iterable[tuple[Any, ...]], report: Report) -> Head:
    """Decode the head of a wide row from its rows with kind < 3.

    A damaged lock becomes one that nobody holds. A damaged cursor becomes one past every message, which
    cqueue.protocol.policy replaces. The next claim overwrites both. A damaged slot is quarantined. A
    row under a key that no claim writes is ignored: taken for the lock, it would make all claims fail.
    """
    lock: LockRow | None = None
    cursors: dict[int, CursorRow] = {}
    slots: list[SlotRow] = []
    for kind, priority, id_, cursor, boundary, state, owner, until, fence, *slot in rows:
        reason: str | None = None
        if kind == _SLOT:
            row, reason = _slot((priority, id_, state, owner), slot, -1 - len(slots))
            slots.append(row)
        elif (kind, priority, id_) == (_LOCK, 0, ids.START):
            lock, reason = _lock(state, owner, until, (fence, slot[-1]))
        elif (kind, id_) == (_CURSOR, ids.START):
            cursors[priority], reason = _cursor(priority, cursor, boundary, slot[-1])
        else:
            reason = "no lock, cursor or slot has such a key; perhaps a newer version of cqueue wrote it"
        if reason is not None:
            report((kind, priority, id_), reason)
    return Head(lock, cursors, tuple(slots))


def _lock(state: Any, owner: Any, until: Any, last: tuple[Any, Any]) -> tuple[LockRow | None, str | None]:
    fence, tally = last
    if fence is None:
        return None, "the lock has no fence"
    if state not in _LOCK_STATES or until is None:
        return LockRow(LockState.FREE, owner or b"", 0, fence, tally or 0), (
            f"the lock has the state {state}, until {until}"
        )
    return LockRow(LockState(state), owner or b"", until, fence, tally or 0), None


def _cursor(priority: int, cursor: Any, boundary: Any, tally: Any) -> tuple[CursorRow, str | None]:
    if cursor is None or boundary is None:
        return CursorRow(priority, BEYOND_ALL_IDS, BEYOND_ALL_IDS, tally or 0), "the cursor is not whole"
    return CursorRow(priority, cursor, boundary, tally or 0), None


def _slot(place: tuple[int, int, Any, Any], slot: Sequence[Any], spare: int) -> tuple[SlotRow, str | None]:
    """Decode a slot. Return it with the reason for its quarantine, or None.

    place: (priority, id, state, owner). spare: a number below 0, for a slot whose id is not that of a slot.
    """
    priority, id_, state, owner = place
    listed, due, attempt, rev, died_at, tally = slot
    number = ids.slot_number(id_)
    reason: str | None = None
    if id_ != ids.slot_id(number) or number >= _MOST_SLOTS:
        number, reason = spare, "the slot has no number"
    elif state not in _SLOT_STATES:
        reason = f"the slot has the state {state}; perhaps a newer version of cqueue wrote it"
    elif due is None or rev is None or attempt is None or not 0 <= attempt < _MOST_ATTEMPTS:
        reason = f"the slot has due {due}, revision {rev}, attempt {attempt}"
    elif listed is None and state != SlotState.FREE:
        reason = "the slot does not say which messages it holds"
    row = SlotRow(
        priority=priority,
        number=number,
        state=SlotState(state) if reason is None else SlotState.QUARANTINED,
        ids=listed or (),
        due_ms=due or 0 if 0 <= (due or 0) <= _NEVER_MS else _NEVER_MS,
        attempt=attempt or 0,
        owner=owner or b"",
        rev=rev or 0,
        died_at_ms=died_at or None,
        tally=tally or 0,
    )
    return row, reason


def slot_values(wide_row: WideRow, row: SlotRow, expect_rev: int | None) -> tuple[Any, ...]:
    """Return SET_SLOT's values. "Never died" is stored as 0: a null would write a tombstone each time."""
    set_ = (row.state, row.ids, row.due_ms, row.attempt, row.owner, row.rev, row.died_at_ms or 0, row.tally)
    return (*set_, *wide_row, row.priority, ids.slot_id(row.number), expect_rev)


def lock_values(wide_row: WideRow, lock: LockRow, expect_fence: int | None) -> tuple[Any, ...]:
    """Return SET_LOCK's values."""
    return (*lock, *wide_row, ids.START, expect_fence)


def overtaking_values(wide_row: WideRow, lock: LockRow) -> tuple[Any, ...]:
    """Return OVERTAKE_LOCK's values."""
    *values, _ = lock  # not the tally
    return (*values, *wide_row, ids.START, lock.fence)


def cursor_values(wide_row: WideRow, row: CursorRow) -> tuple[Any, ...]:
    """Return SET_CURSOR's values."""
    return (row.cursor, row.boundary, row.tally, *wide_row, row.priority, ids.START)


def change_values(op: ChangeQueue | ChangeLog) -> tuple[Any, ...]:
    """Return CHANGE_QUEUE's or CHANGE_LOG's values."""
    row, seen = op.row, op.expect_version
    return row.state, row.config, decode.next_version(seen), row.name, seen, row.incarnation
