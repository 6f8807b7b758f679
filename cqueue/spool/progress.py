"""The progress of a queue: the first offset not consumed, kept in two slots that are written in turn.

A torn write damages one slot; the other one still holds the progress of before.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google_crc32c import value

from cqueue.spool.disk import Disk

_SLOT: Final = struct.Struct("<QQI12x")
_CHECKED: Final = 16
_DISTANCE: Final = 4096
"""Bytes between the slots: a page, so that no sector of a disk holds both."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The contents of the file: the newest valid slot, and the numbers of damaged ones."""

    generation: int
    offset: int
    damaged: tuple[int, ...]


def read(path: Path) -> Slots:
    """Read both slots; generation 0 if no slot is valid."""
    data = path.read_bytes() if path.exists() else b""
    generation, offset, damaged = 0, 0, []
    for number in (0, 1):
        slot = data[number * _DISTANCE :][: _SLOT.size].ljust(_SLOT.size, b"\0")
        written, consumed, checksum = _SLOT.unpack(slot)
        # A slot of zeros was never written; the checksum of zeros is not zero.
        if value(slot[:_CHECKED]) != checksum:
            damaged += [number] if any(slot) else []
        elif written > generation:
            generation, offset = written, consumed
    return Slots(generation, offset, tuple(damaged))


class Progress:
    """The first offset of a queue that is not consumed; durable when `commit` returns."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._handle = -1
        slots = read(path)
        self._generation = slots.generation
        self.offset = slots.offset
        self.is_known = slots.generation > 0

    def commit(self, offset: int) -> None:
        """Write down that everything before the offset is consumed."""
        generation = self._generation + 1
        body = _SLOT.pack(generation, offset, 0)[:_CHECKED]
        slot = _SLOT.pack(generation, offset, value(body))
        start = generation % 2 * _DISTANCE
        if self._handle < 0:
            # The file is missing, of another process, or its last write failed: write it anew.
            data = bytearray(2 * _DISTANCE)
            data[start : start + _SLOT.size] = slot
            self._handle = self._disk.create(self._path, bytes(data))
        else:
            try:
                self._disk.write(self._handle, slot, start)
                self._disk.sync(self._handle)
            except OSError:
                # What this file holds is unknown from now on; the next commit writes another one.
                self.close()
                raise
        self._generation, self.offset = generation, offset

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1
