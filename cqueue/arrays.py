"""Arrow arrays out of the bytes of an answer, a column at a time. Needs the extra `arrow` or `spark`.

Where the rows of an answer begin is all that has to be found out one by one. The rest is done here for all of
them at once, and a body is copied no more often than it is put in order.
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
    """The bytes between each of these places (ascending whole numbers) and the next. Nothing is copied."""
    offsets = pa.py_buffer(np.ascontiguousarray(bounds, dtype=np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])


def fields(data: bytes, starts: Any, size: int) -> Any:
    """So many bytes from each of these places: an array of uint8 with a row for each."""
    return np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(size)]


def big_endian(cells: Any, type_: str) -> Any:
    """Numbers from the rows of such an array. type_: numpy's name of a big-endian type of that size."""
    found = np.ascontiguousarray(cells).view(type_)
    return found.reshape(-1).astype(found.dtype.newbyteorder("="))


def ticks(cells: Any) -> Any:
    """The time of each id, in 100 ns since 1582-10-15, as int64. cells: 16 bytes in each row."""
    parts = np.ascontiguousarray(cells).view(_PARTS_OF_AN_ID).reshape(-1)
    high = (parts["high"] & 0xFFF).astype(np.int64)
    return high << 48 | parts["mid"].astype(np.int64) << 32 | parts["low"].astype(np.int64)


def in_order(cells: Any, *, reverse: bool = False) -> Any:
    """The places of ids in Cassandra's order. cells: 16 bytes in each row."""
    order = np.lexsort((big_endian(cells[:, 8:], ">u8") ^ _SIGNS, ticks(cells)))
    return order[::-1] if reverse else order


def times(of_ids: Any) -> pa.Array:
    """Times from `ticks`, to the µs."""
    return pa.array((of_ids - ids.TICKS_1970) // 10).cast(TIMESTAMP)


def texts(cells: Sequence[bytes | None]) -> pa.Array:
    """Texts from their bytes, which Cassandra has checked already."""
    return pa.array(cells, pa.binary()).view(pa.string())


def maps(cells: Sequence[bytes | None]) -> pa.Array:
    """Headers, as on the wire."""
    if not any(cells):
        return pa.nulls(len(cells), TEXT_MAP)
    return pa.array([None if each is None else list(pairs(each)) for each in cells], TEXT_MAP)
