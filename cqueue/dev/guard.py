"""Wipe the cluster of a test run once the run is over, however it ended: who is killed cleans nothing up.

A process of its own waits for the end of the run.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from cqueue.dev import processes
from cqueue.dev.cluster import DevCluster

LOCK: Final = "guard"
_OF_A_RUN: Final = re.compile(r"cqueue-(?:py)?test-\w+-(\d+)")
"""A directory that a run has made for its cluster, with the pid of the run. Any other one is not deleted."""


def start(directory: Path) -> int | None:
    """Let a process guard the cluster of a directory, unless one does.

    Return the pid of the process; None where no run has made the directory.
    """
    named = _OF_A_RUN.fullmatch(directory.name)
    if named is None:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", __name__, str(directory), named[1]]
    return processes.spawn(command, home=Path.cwd(), log=directory / "guard.log", environ=os.environ)


def main(directory: Path, run: int) -> None:
    """Wait for the end of the run with that pid; remove its cluster, unless the run has done so."""
    with suppress(FileNotFoundError), (directory / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process guards it
            return
        with suppress(ProcessLookupError):  # the run is over
            select.select([os.pidfd_open(run)], [], [])
        remove(directory)


def remove(directory: Path) -> None:
    """Stop the cluster in a directory, if there is one, and delete the directory."""
    if directory.exists():
        DevCluster(directory).wipe()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
