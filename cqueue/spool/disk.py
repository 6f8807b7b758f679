"""All calls that change the disk, so that a test can make each of them fail."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
"""A spool holds bodies, so that only the process's own user may read it."""


class Disk:
    """The file system of the operating system."""

    def write(self, handle: int, data: bytes, position: int) -> None:
        """Write all of the data at that position; a short write is an error of the disk."""
        done = os.pwrite(handle, data, position)
        while done < len(data):
            done += os.pwrite(handle, data[done:], position + done)

    def reserve(self, handle: int, size: int) -> None:
        """Take the space of the file now, so that a full disk is an error here and not of a later write."""
        os.posix_fallocate(handle, 0, size)

    def cut(self, handle: int, size: int) -> None:
        """Give back what the file has behind `size`."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Return when the bytes of the file are on the disk. After an error that is unknown."""
        os.fdatasync(handle)

    def sync_directory(self, path: Path) -> None:
        """Return when the names in the directory are on the disk."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def free(self, path: Path) -> int:
        """Return how many bytes this user may still write to the disk of the path."""
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    def create(self, path: Path, data: bytes, *, size: int = 0) -> int:
        """Create a file that exists whole or not at all; return its handle, open for reading and writing.

        An existing file of that name is replaced. The file has at least `size` bytes of space.
        """
        fresh = path.with_name(path.name + ".new")
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            if size:
                self.reserve(handle, size)
            self.write(handle, data, 0)
            self.sync(handle)
            fresh.rename(path)
            self.sync_directory(path.parent)
        except BaseException:
            os.close(handle)
            fresh.unlink(missing_ok=True)
            raise
        return handle

    def make_directory(self, path: Path) -> None:
        """Create the directory and those above it that are missing, each safe before it is used."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Delete the file. After a crash it may be there again."""
        path.unlink(missing_ok=True)
