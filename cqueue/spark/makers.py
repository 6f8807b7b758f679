"""Arrow columns that only Spark needs: ids as applications see them, and times in ms.

Ids are base64 texts with the place of the message in them. All ids of one wide row have the same length, so a
whole batch is made at a time: one by one, ids would take longer than everything else.
"""

from __future__ import annotations

import base64
import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cqueue.store.arrow_columns import TIMESTAMP
from cqueue.store.operations import WideRow

_ID_SIZE: Final = 16


def message_ids(wide_row: WideRow, priority: int, cells: Any) -> pa.Array:
    """Make the `MessageId` of each message of one priority of a wide row. cells: 16 bytes in each row."""
    head = struct.pack(">BqiB", 1, wide_row.time_shard, wide_row.shard, priority)
    return _base64(head, cells, wide_row.queue.encode())


def log_ids(log: str, partition: int, cells: Any) -> pa.Array:
    """Make the `LogId` of each record of one partition."""
    return _base64(struct.pack(">BH", 1, partition), cells, log.encode())


def _base64(head: bytes, cells: Any, tail: bytes) -> pa.Array:
    """Encode each cell, between head and tail, in base64 for URLs without padding."""
    count, size = len(cells), len(head) + _ID_SIZE + len(tail)
    padded = -(-size // 3) * 3
    rows: Any = np.zeros((count, padded), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    rows[:, len(head) : len(head) + _ID_SIZE] = cells
    rows[:, len(head) + _ID_SIZE : size] = np.frombuffer(tail, np.uint8)
    text = np.frombuffer(base64.urlsafe_b64encode(rows.tobytes()), np.uint8).reshape(count, padded // 3 * 4)
    kept = -(-size * 8 // 6)
    offsets: Any = np.arange(0, (count + 1) * kept, kept, dtype=np.int32)
    data = np.ascontiguousarray(text[:, :kept])
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def milliseconds(values: Any) -> pa.Array:
    """Make a column of times from whole numbers in ms since 1970, or None."""
    return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(TIMESTAMP)


def constant(value: Any, count: int, type_: pa.DataType) -> pa.Array:
    """Make a column with one value `count` times."""
    return pa.repeat(pa.scalar(value, type_), count)
