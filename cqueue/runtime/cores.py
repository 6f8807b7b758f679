"""Pin a process to one core.

The threads of a Python process take turns, so together they use one core. If each turn runs on another core,
that core has to wake up, with cold caches. On two cores beside Cassandra this cost a third of a dispatcher's
speed.
"""

from __future__ import annotations

import os
import random

from cqueue.errors import ConfigError


def any_number() -> int:
    """Return a random number for `keep_to_one`, so that unrelated programs spread over the cores.

    A process id would not do: in containers all of them are the same.

    Raises:
        ConfigError: this system cannot pin a process.
    """
    _check()
    return random.randrange(1 << 16)


def keep_to_one(number: int) -> int:
    """Pin the calling thread, and threads that it starts from now on, to one core. Return the core.

    number: index into the cores that the thread may use, modulo their number, so that several processes can
        be given different cores.

    Raises:
        ConfigError: this system cannot pin a process, or does not allow it.
    """
    _check()
    cores = sorted(os.sched_getaffinity(0))
    core = cores[number % len(cores)]
    try:
        os.sched_setaffinity(0, {core})
    except OSError as exc:
        raise ConfigError(f"this process may not choose its core: {exc}; leave --one-core out") from exc
    return core


def _check() -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("a process can be kept to one core on Linux only; leave --one-core out")


def usable() -> int:
    """Return the number of cores that the calling thread may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
