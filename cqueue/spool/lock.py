"""One process at a time writes to a spool, and a fork of it does not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path
from typing import Final

from cqueue.errors import SpoolLocked
from cqueue.spool.disk import FILE_MODE

LOCK: Final = ".lock"
_PID_BYTES: Final = 32


class DirectoryLock:
    """A `flock` on a file of the directory. The kernel releases it when the process ends, however it ends."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / LOCK
        self._handle = -1
        self.is_held = False

    def take(self) -> None:
        """Take the lock. Whatever ends this call, a Ctrl-C say: `release` gives back what was taken.

        Raises:
            SpoolLocked: another process has it.
        """
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.read(self._handle, _PID_BYTES).decode(errors="replace").strip() or "unknown"
            raise SpoolLocked(f"process {holder} has the spool {self._root} open") from exc
        # The number only helps an operator, so that a full disk does not keep the spool from being opened.
        # Padded and not cut off before, as the space of the last number may be the only one that is left.
        with contextlib.suppress(OSError):
            os.pwrite(self._handle, str(os.getpid()).encode().ljust(_PID_BYTES), 0)
        self.is_held = True
        _HELD.add(self)

    def check(self) -> None:
        """Raise `FileNotFoundError` if the lock lies in the directory no more: another process may hold a new
        one there. Called for each write, so it costs two system calls.
        """
        try:
            is_there = os.path.samestat(self._path.stat(), os.fstat(self._handle))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise FileNotFoundError(f"{self._path} was deleted or moved; open the spool again")

    def release(self) -> None:
        """Let another process open the spool."""
        self.is_held = False
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _release_in_child() -> None:
    # The child closes its copy only: the parent goes on holding the lock, and alone.
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
