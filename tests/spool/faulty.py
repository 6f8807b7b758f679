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

    A write that fails has written half. A sync that fails has dropped what was not synced, as Linux may: the
    bytes of before are there again.
    """

    at: int = FOR_EVER
    times: int = 1
    error: int = errno.ENOSPC
    calls: list[str] = field(default_factory=list)
    # Of each file, by its inode, the writes that no sync has followed: position, and the bytes of before.
    unsynced: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)

    def _fails(self, name: str) -> bool:
        self.calls.append(name)
        return self.at <= len(self.calls) - 1 < self.at + self.times

    def _fail(self) -> None:
        raise OSError(self.error, os.strerror(self.error))

    def write(self, handle: int, data: bytes, position: int) -> None:
        half = self._fails("write")
        written = data[: len(data) // 2] if half else data
        before = os.pread(handle, len(written), position).ljust(len(written), b"\0")
        super().write(handle, written, position)
        self.unsynced.setdefault(os.fstat(handle).st_ino, []).append((position, before))
        if half:
            self._fail()

    def reserve(self, handle: int, size: int) -> None:
        if self._fails("reserve"):
            self._fail()
        self.unsynced.pop(os.fstat(handle).st_ino, None)
        super().reserve(handle, size)

    def cut(self, handle: int, size: int) -> None:
        if self._fails("cut"):
            self._fail()
        super().cut(handle, size)

    def sync(self, handle: int) -> None:
        if self._fails("sync"):
            for position, before in reversed(self.unsynced.pop(os.fstat(handle).st_ino, [])):
                inside = max(os.fstat(handle).st_size - position, 0)
                os.pwrite(handle, before[:inside], position)
            self._fail()
        super().sync(handle)
        self.unsynced.pop(os.fstat(handle).st_ino, None)

    def sync_directory(self, path: Path) -> None:
        if self._fails("sync_directory"):
            self._fail()
        super().sync_directory(path)

    def remove(self, path: Path) -> None:
        if self._fails("remove"):
            self._fail()
        super().remove(path)


@dataclass
class FullDisk(Disk):
    """A disk that has room for nothing new while it is full: files are overwritten, and do not grow."""

    is_full: bool = False

    def _refuse(self) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, handle: int, data: bytes, position: int) -> None:
        if self.is_full and position + len(data) > os.fstat(handle).st_size:
            self._refuse()
        super().write(handle, data, position)

    def reserve(self, handle: int, size: int) -> None:
        if self.is_full:
            self._refuse()
        super().reserve(handle, size)
