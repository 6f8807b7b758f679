"""A disk that fails at a given call, and does to the data what a real one may do then."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cqueue.spool.disk import Disk

FOR_EVER: Final = 1 << 60


@dataclass
class FaultyDisk(Disk):
    """Fails at call number `at` and those behind it, `times` in all.

    A write that fails has written half. A sync that fails has dropped what was not synced, as Linux may.
    """

    at: int = FOR_EVER
    times: int = 1
    error: int = errno.ENOSPC
    calls: list[str] = field(default_factory=list)
    unsynced: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def _fails(self, name: str) -> bool:
        self.calls.append(name)
        return self.at <= len(self.calls) - 1 < self.at + self.times

    def _fail(self) -> None:
        raise OSError(self.error, os.strerror(self.error))

    def write(self, handle: int, data: bytes, position: int) -> None:
        half = self._fails("write")
        written = data[: len(data) // 2] if half else data
        super().write(handle, written, position)
        self.unsynced.setdefault(handle, []).append((position, len(written)))
        if half:
            self._fail()

    def reserve(self, handle: int, size: int) -> None:
        if self._fails("reserve"):
            self._fail()
        self.unsynced.pop(handle, None)
        super().reserve(handle, size)

    def cut(self, handle: int, size: int) -> None:
        if self._fails("cut"):
            self._fail()
        super().cut(handle, size)

    def sync(self, handle: int) -> None:
        if self._fails("sync"):
            for position, length in self.unsynced.pop(handle, []):
                inside = min(length, max(os.fstat(handle).st_size - position, 0))
                os.pwrite(handle, bytes(inside), position)
            self._fail()
        super().sync(handle)
        self.unsynced.pop(handle, None)

    def sync_directory(self, path: Path) -> None:
        if self._fails("sync_directory"):
            self._fail()
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        if self._fails("remove"):
            self._fail()
        super().remove(path)
