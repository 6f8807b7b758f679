"""A disk that fails at a given call, and does to the data what a real one may do then."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from cqueue.spool.disk import Disk


@dataclass
class FaultyDisk(Disk):
    """Fails at call number `at`, and at those after it while `lasting`.

    A write that fails has written half. A sync that fails has dropped what was not synced, as Linux may.
    """

    at: int = 1 << 60
    lasting: bool = False
    error: int = errno.ENOSPC
    calls: list[str] = field(default_factory=list)
    unsynced: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def _fails(self, name: str) -> bool:
        self.calls.append(name)
        number = len(self.calls) - 1
        return number == self.at or (self.lasting and number > self.at)

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
