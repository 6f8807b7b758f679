"""Cells as they are on the wire: a length and so many bytes; and headers, which are a map<text, text>."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

COUNT = struct.Struct(">i")


class Unreadable(NamedTuple):
    """Stands for a cell that is no value of its column's type: Cassandra takes some texts that are no UTF-8.

    The driver can bind it, as the bytes that it was.
    """

    data: bytes

    def encode(self, _encoding: str) -> bytes:
        """As `str.encode`, for the driver."""
        return self.data


def cell(data: bytes, at: int) -> tuple[bytes | None, int]:
    """A cell that may be null, and where the next one begins."""
    (size,) = COUNT.unpack_from(data, at)
    at += 4
    return (None, at) if size < 0 else (data[at : at + size], at + size)


UNSET_SIZE = -2
UNSET = COUNT.pack(UNSET_SIZE)
"""A cell of a statement that is left as it is."""


def of(value: bytes | None) -> bytes:
    """A cell with this in it; None is null."""
    return COUNT.pack(-1) if value is None else COUNT.pack(len(value)) + value


def text(value: str | None) -> bytes:
    """A cell with this text in it; None is left as it is."""
    return UNSET if value is None else of(value.encode())


def text_map(texts: Mapping[str, str]) -> bytes:
    """A map<text, text>."""
    # Sorted, as Cassandra stores a frozen map: the same headers are the same bytes.
    items = sorted((key.encode(), value.encode()) for key, value in texts.items())
    return COUNT.pack(len(texts)) + b"".join(of(data) for item in items for data in item)


def shown(data: bytes) -> str:
    """A text as it is, and what of it is none, byte by byte."""
    return data.decode(errors="backslashreplace")


def pairs(data: bytes) -> Iterator[tuple[str, str]]:
    """What `text_map` wrote."""
    (count,) = COUNT.unpack_from(data)
    at = 4
    for _ in range(count):
        key, at = cell(data, at)
        value, at = cell(data, at)
        yield shown(key or b""), shown(value or b"")
