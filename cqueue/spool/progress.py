"""The progress of a queue: the first offset not consumed, kept in two slots that are written in turn.

A torn write damages one slot; the other one still holds the progress of before.

The file is created whole, before the queue's first segment, and is only overwritten from then on. So a commit
takes no space. On a full disk it could get none: segments are deleted only behind a commit. And of a queue
that never committed it is known that nothing is consumed, so that a first segment which is gone is missed.
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

    def reserve(self) -> None:
        """Take the space of the file if there is no file yet."""
        if self._handle < 0 and not self._path.exists():
            self._generation += 1
            at, slot = _slot(self._generation, self.offset)
            self._handle = self._disk.create(self._path, (bytes(at) + slot).ljust(2 * _DISTANCE, b"\0"))

    def commit(self, offset: int) -> None:
        """Write down that everything before the offset is consumed."""
        generation = self._generation + 1
        try:
            if self._handle < 0:
                self._open()
            self._write(generation, offset)
        except OSError:
            # What the slot holds is unknown from now on; the next commit opens the file anew.
            self.close()
            raise
        self._generation, self.offset = generation, offset

    def _open(self) -> None:
        """Open the file, and write its newest slot once more, before the other one is overwritten.

        The slot may be in the kernel's memory only, if its writer died before the fsync or the fsync failed.
        Another fsync alone would not write what a failed one has dropped.
        """
        self.reserve()
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            self._disk.sync_directory(self._path.parent)
            self._write(self._generation, self.offset)

    def _write(self, generation: int, offset: int) -> None:
        """Write a slot, durably."""
        at, slot = _slot(generation, offset)
        self._disk.write(self._handle, slot, at)
        self._disk.sync(self._handle)

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _slot(generation: int, offset: int) -> tuple[int, bytes]:
    """Return a slot and its position in the file, the position first."""
    body = _SLOT.pack(generation, offset, 0)[:_CHECKED]
    return generation % 2 * _DISTANCE, _SLOT.pack(generation, offset, value(body))
