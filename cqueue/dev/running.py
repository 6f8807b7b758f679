"""Find out whether the development cluster of a directory runs, without asking its nodes.

The command line looks for it where nothing says which cluster is meant, so it has to be quick.
"""

from __future__ import annotations

import os
from pathlib import Path

from cqueue.dev import record
from cqueue.dev.paths import default_directory
from cqueue.dev.status import cluster_url
from cqueue.errors import DevError


def running_url(directory: Path | None = None) -> str | None:
    """The URL of the cluster if a process of it runs that belongs to this user; else None.

    A record that cannot be read counts as no cluster: `cqueue dev status` says what is wrong with it.

    directory: by default the one that `cqueue dev` uses.
    """
    directory = (directory or default_directory()).resolve()
    try:
        known = record.load(directory)
    except DevError:
        return None
    if known is None:
        return None
    from cqueue.dev.node import node_home  # noqa: PLC0415 - only where there is a cluster

    homes = [node_home(directory, number + 1) for number in range(len(known.addresses))]
    return cluster_url(directory, known) if any(map(_is_ours, homes)) else None


def _is_ours(home: Path) -> bool:
    from cqueue.dev import processes  # noqa: PLC0415 - as above

    pid = processes.find(home)
    try:
        return pid is not None and (processes.PROC / str(pid)).stat().st_uid == os.getuid()
    except OSError:  # gone meanwhile
        return False
