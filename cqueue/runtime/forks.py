"""Forks: connections, threads and locks of a client belong to the process that made it.

A lock that another thread held at the fork is held in the child for good. So a call that may wait for one
asks here first.
"""

from __future__ import annotations

import os

from cqueue.errors import Closed


def is_fork_of(pid: int) -> bool:
    """Return whether this process is another one than that with the id `pid`, and so a fork of it."""
    return os.getpid() != pid


def check(pid: int) -> None:
    """Raise `Closed` in a fork. pid: of the process that made the client."""
    if is_fork_of(pid):
        raise Closed("the client was made before this process was forked; connect again after the fork")
