"""Arrow arrays out of what Cassandra answered, a column at a time.

The ids that applications see are base64 texts with the place of the message in them. Of one wide row all have
the same length, so they are made a whole batch at a time, and the time of an id is read out of its bytes in
the same way: one by one, both would take longer than everything else.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cqueue import ids
from cqueue.store.operations import WideRow
from cqueue.store.record_columns import pairs

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
_ID_SIZE: Final = 16


def message_ids(wide_row: WideRow, priority: int, cells: Sequence[bytes]) -> pa.Array:
    """The `MessageId` of each message of one priority of a wide row. cells: 16 bytes each."""
    head = struct.pack(">BqiB", 1, wide_row.time_shard, wide_row.shard, priority)
    return _base64(head, cells, wide_row.queue.encode())


def log_ids(log: str, partition: int, cells: Sequence[bytes]) -> pa.Array:
    """The `LogId` of each record of one partition."""
    return _base64(struct.pack(">BH", 1, partition), cells, log.encode())


def _base64(head: bytes, cells: Sequence[bytes], tail: bytes) -> pa.Array:
    """Of each cell, between head and tail, the text in base64 for URLs and without padding."""
    count, size = len(cells), len(head) + _ID_SIZE + len(tail)
    padded = -(-size // 3) * 3
    rows: Any = np.zeros((count, padded), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    rows[:, len(head) : len(head) + _ID_SIZE] = np.frombuffer(b"".join(cells), np.uint8).reshape(-1, _ID_SIZE)
    rows[:, len(head) + _ID_SIZE : size] = np.frombuffer(tail, np.uint8)
    text = np.frombuffer(base64.urlsafe_b64encode(rows.tobytes()), np.uint8).reshape(count, padded // 3 * 4)
    kept = -(-size * 8 // 6)
    offsets: Any = np.arange(0, (count + 1) * kept, kept, dtype=np.int32)
    data = np.ascontiguousarray(text[:, :kept])
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def times(cells: Sequence[bytes]) -> pa.Array:
    """The time of each id, to the µs. cells: 16 bytes each."""
    parts = np.frombuffer(
        b"".join(cells), np.dtype([("low", ">u4"), ("mid", ">u2"), ("high", ">u2"), ("_", "V8")])
    )
    high = (parts["high"] & 0xFFF).astype(np.int64)
    ticks = high << 48 | parts["mid"].astype(np.int64) << 32 | parts["low"].astype(np.int64)
    return pa.array((ticks - ids.TICKS_1970) // 10).cast(TIMESTAMP)


def milliseconds(values: Iterable[int | None]) -> pa.Array:
    """Times given in ms since 1970."""
    return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)


def constant(value: Any, count: int, type_: pa.DataType) -> pa.Array:
    """The same value so many times."""
    return pa.repeat(pa.scalar(value, type_), count)


def sparse(cells: Mapping[int, bytes], count: int) -> pa.Array:
    """Texts by place, from their bytes, which Cassandra has checked already."""
    if not cells:
        return pa.nulls(count, pa.string())
    return texts([cells.get(place) for place in range(count)])


def texts(cells: Sequence[bytes | None]) -> pa.Array:
    """Texts from their bytes."""
    return pa.array(cells, pa.binary()).view(pa.string())


def sparse_maps(cells: Mapping[int, bytes], count: int) -> pa.Array:
    """Headers by place, as on the wire."""
    if not cells:
        return pa.nulls(count, TEXT_MAP)
    return maps([cells.get(place) for place in range(count)])


def maps(cells: Sequence[bytes | None]) -> pa.Array:
    """Headers, as on the wire."""
    if not any(cells):
        return pa.array([None if each is None else [] for each in cells], TEXT_MAP)
    return pa.array([None if each is None else list(pairs(each)) for each in cells], TEXT_MAP)
