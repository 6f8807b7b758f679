"""The index of a queue: from an offset to the position of its record in its segment.

It is a shortcut. Whoever follows it checks the record that stands there, and a wrong or missing entry costs
a scan of one segment. So it is not synced, and an error while it is written is no error of the spool.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
from array import array
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<8sQ")
_WIDTH: Final = 4
_TRIM_BYTES: Final = 1024 * 1024
"""The file is written anew when more than this of it, and more than half, belongs to deleted segments."""


class Index:
    """The positions of all records of sealed segments, fixed width, memory-mapped for reading."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self._readonly = readonly
        self._mapped: tuple[int, mmap.mmap] | None = None
        with contextlib.suppress(OSError):
            self._map()

    def get(self, offset: int) -> int:
        """Return the position that is written down for the offset, 0 if there is none. It may be wrong."""
        # One look at the pair: another thread may map the file anew.
        mapped = self._mapped
        if mapped is None or offset < mapped[0]:
            return 0
        base, view = mapped
        at = _HEADER.size + (offset - base) * _WIDTH
        return int.from_bytes(view[at : at + _WIDTH], sys.byteorder)

    def put(self, first: int, positions: array[int]) -> None:
        """Write down the positions of the offsets from `first` on."""
        if self._readonly:
            return
        with contextlib.suppress(OSError):
            if self._mapped is None or first < self._mapped[0]:
                self._rewrite(first, b"")
            base = self._mapped[0] if self._mapped else first
            handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.pwrite(handle, positions.tobytes(), _HEADER.size + (first - base) * _WIDTH)
            finally:
                os.close(handle)
            self._map()

    def trim(self, first: int) -> None:
        """Forget the offsets before `first`, whose segments are deleted."""
        if self._mapped is None:
            return
        base, view = self._mapped
        dead = (first - base) * _WIDTH
        if dead >= max(_TRIM_BYTES, len(view) // 2):
            with contextlib.suppress(OSError):
                self._rewrite(first, view[_HEADER.size + dead :])

    def _rewrite(self, base: int, entries: bytes) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_bytes(_HEADER.pack(b"CQINDEX1", base) + entries)
        fresh.rename(self._path)
        self._map()

    def _map(self) -> None:
        with self._path.open("rb") as file:
            magic, base = _HEADER.unpack(file.read(_HEADER.size).ljust(_HEADER.size))
            whole = magic == b"CQINDEX1"
            self._mapped = (base, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if whole else None
