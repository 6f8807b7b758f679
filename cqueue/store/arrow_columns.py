"""Build Arrow arrays from the bytes of a Cassandra answer, one column at a time.

Needs the extra `arrow` or `spark`. Only the offsets of the rows are found row by row
(cqueue.store.record_page). numpy does the rest for all rows at once, and copies bodies only to sort them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cqueue import ids
from cqueue.store.cells import pairs

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TEXT_MAP: Final = pa.map_(pa.string(), pa.string())
_PARTS_OF_AN_ID: Final = np.dtype([("low", ">u4"), ("mid", ">u2"), ("high", ">u2"), ("node", ">u8")])
_SIGNS: Final = np.uint64(0x8080808080808080)


def pieces(data: bytes, bounds: Any) -> pa.Array:
    """Return a binary array of the bytes between neighbouring offsets, without a copy.

    bounds: n + 1 ascending offsets into `data`, which give n values.
    """
    offsets = pa.py_buffer(np.ascontiguousarray(bounds, dtype=np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])


def fields(data: bytes, starts: Any, size: int) -> Any:
    """Return `size` bytes from each offset in `starts`, as uint8 of shape (len(starts), size)."""
    return np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(size)]


def big_endian(cells: Any, type_: str) -> Any:
    """Read each row of `cells` (uint8, from `fields`) as one big-endian number, in the machine's byte order.

    type_: a numpy type such as ">u8", as wide as a row.
    """
    found = np.ascontiguousarray(cells).view(type_)
    return found.reshape(-1).astype(found.dtype.newbyteorder("="))


def ticks(cells: Any) -> Any:
    """Return the time of each id in 100 ns since 1582-10-15, as int64. cells: uint8 of shape (n, 16)."""
    parts = np.ascontiguousarray(cells).view(_PARTS_OF_AN_ID).reshape(-1)
    high = (parts["high"] & 0xFFF).astype(np.int64)
    return high << 48 | parts["mid"].astype(np.int64) << 32 | parts["low"].astype(np.int64)


def in_order(cells: Any, *, reverse: bool = False) -> Any:
    """Return the indexes that sort ids as Cassandra does. cells: uint8 of shape (n, 16)."""
    order = np.lexsort((big_endian(cells[:, 8:], ">u8") ^ _SIGNS, ticks(cells)))
    return order[::-1] if reverse else order


def times(of_ids: Any) -> pa.Array:
    """Turn the result of `ticks` into timestamps (UTC), rounded down to the µs."""
    return pa.array((of_ids - ids.TICKS_1970) // 10).cast(TIMESTAMP)


def texts(cells: Sequence[bytes | None]) -> pa.Array:
    """Turn cells into strings. Nothing validates the UTF-8 here: Cassandra did so at the insert."""
    return pa.array(cells, pa.binary()).view(pa.string())


def maps(cells: Sequence[bytes | None]) -> pa.Array:
    """Turn cells that hold headers (map<text, text>) into an array of maps; None stays null."""
    if not any(cells):
        return pa.nulls(len(cells), TEXT_MAP)
    return pa.array([None if each is None else list(pairs(each)) for each in cells], TEXT_MAP)
