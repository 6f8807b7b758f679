"""Wipe the cluster of a test run once the run is over, however it ended: who is killed cleans nothing up.

A process of its own waits for the end of the one whose id stands at the end of the directory's name.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from cqueue.dev import processes
from cqueue.dev.cluster import DevCluster

LOCK = "guard"


def start(directory: Path) -> int:
    """Let a process guard the cluster of a directory, unless one does; return its pid."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", __name__, str(directory)]
    return processes.spawn(command, home=Path.cwd(), log=Path(os.devnull), environ=os.environ)


def main(directory: Path) -> None:
    """Wait for the end of the run; wipe its cluster and delete the directory, unless the run has done so."""
    with suppress(FileNotFoundError), (directory / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process guards it
            return
        with suppress(ProcessLookupError):  # the run is over
            select.select([os.pidfd_open(int(directory.name.rpartition("-")[2]))], [], [])
        if directory.exists():
            DevCluster(directory).wipe()
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
