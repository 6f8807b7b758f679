"""Cells of Cassandra's wire format: a length of 4 bytes, then the value. Headers are a map<text, text>."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

COUNT = struct.Struct(">i")


class Unreadable(NamedTuple):
    """A cell that is not a valid value of its column's type: Cassandra accepts some texts that are no UTF-8.

    data: the bytes of the cell. The driver can bind them again through `encode`.
    """

    data: bytes

    def encode(self, _encoding: str) -> bytes:
        """As `str.encode`, for the driver."""
        return self.data


def cell(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the cell at offset `at` (None for null), and the offset of the next one."""
    (size,) = COUNT.unpack_from(data, at)
    at += 4
    return (None, at) if size < 0 else (data[at : at + size], at + size)


UNSET_SIZE = -2
UNSET = COUNT.pack(UNSET_SIZE)
"""The cell of a value that a statement leaves unset, so that no tombstone is written for it."""


def of(value: bytes | None) -> bytes:
    """Encode a value as a cell; None becomes null."""
    return COUNT.pack(-1) if value is None else COUNT.pack(len(value)) + value


def text(value: str | None) -> bytes:
    """Encode a text as a cell; None becomes unset."""
    return UNSET if value is None else of(value.encode())


def text_map(texts: Mapping[str, str]) -> bytes:
    """Encode a map<text, text>, without a length before it."""
    # Sorted, as Cassandra stores a frozen map: equal headers give equal bytes.
    items = sorted((key.encode(), value.encode()) for key, value in texts.items())
    return COUNT.pack(len(texts)) + b"".join(of(data) for item in items for data in item)


def is_text_map(data: bytes) -> bool:
    """Return whether `pairs` can decode these bytes."""
    try:
        (count,) = COUNT.unpack_from(data)
        at = 4
        for _ in range(2 * count):
            (size,) = COUNT.unpack_from(data, at)
            if size < 0:
                return False
            at += 4 + size
    except struct.error:
        return False
    return at == len(data)


def shown(data: bytes) -> str:
    """Decode UTF-8; bytes that are no UTF-8 appear as escapes."""
    return data.decode(errors="backslashreplace")


def pairs(data: bytes) -> Iterator[tuple[str, str]]:
    """Decode a map<text, text> that `text_map` or Cassandra wrote."""
    (count,) = COUNT.unpack_from(data)
    at = 4
    for _ in range(count):
        key, at = cell(data, at)
        value, at = cell(data, at)
        yield shown(key or b""), shown(value or b"")
