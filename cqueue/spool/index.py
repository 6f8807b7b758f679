"""The index of a queue: from an offset to the position of its record in its segment.

The index is a shortcut. Its reader checks the record at the position, and a wrong or missing entry costs a
scan of one segment. So the index is not synced, and an error while it is read or written is no error of the
spool.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from array import array
from pathlib import Path
from typing import BinaryIO, Final

from cqueue.spool.disk import FILE_MODE

_HEADER: Final = struct.Struct("<8sQ")
_WIDTH: Final = 4
"""Bytes of an entry: a position in a segment, which has 1 GiB at most."""
_TRIM_BYTES: Final = 1024 * 1024
"""The file is written anew when more than this of it, and more than half, belongs to deleted segments."""


class Index:
    """The positions of all records of sealed segments, in a file of fixed-width entries."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self._readonly = readonly

    def get(self, offset: int) -> int:
        """Return the position that is written down for the offset, 0 if there is none. It may be wrong."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            base = _base(file)
            if base is not None and offset >= base:
                file.seek(_HEADER.size + (offset - base) * _WIDTH)
                return int.from_bytes(file.read(_WIDTH), sys.byteorder)
        return 0

    def put(self, first: int, positions: array[int]) -> None:
        """Write down the positions of the offsets from `first` on."""
        if self._readonly:
            return
        with contextlib.suppress(OSError):
            if not self._reaches(first):
                self._rewrite(first, b"")
            with self._path.open("r+b") as file:
                base = _base(file)
                if base is not None and base <= first:  # else trimmed meanwhile: the next reader scans
                    file.seek(_HEADER.size + (first - base) * _WIDTH)
                    file.write(positions.tobytes())

    def _reaches(self, first: int) -> bool:
        """Return whether the file is an index that begins at the offset or before it."""
        try:
            with self._path.open("rb") as file:
                base = _base(file)
        except FileNotFoundError:
            return False
        return base is not None and base <= first

    def trim(self, first: int) -> None:
        """Forget the offsets before `first`, whose segments are deleted."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            base = _base(file)
            dead = 0 if base is None else (first - base) * _WIDTH
            if dead >= max(_TRIM_BYTES, self._path.stat().st_size // 2):
                file.seek(_HEADER.size + dead)
                self._rewrite(first, file.read())

    def _rewrite(self, base: int, entries: bytes) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.touch(mode=FILE_MODE)
        fresh.write_bytes(_HEADER.pack(b"CQINDEX1", base) + entries)
        fresh.rename(self._path)


def _base(file: BinaryIO) -> int | None:
    """Return the first offset of an index, of which nothing was read yet; None if the file is no index."""
    magic, base = _HEADER.unpack(file.read(_HEADER.size).ljust(_HEADER.size))
    return int(base) if magic == b"CQINDEX1" else None
