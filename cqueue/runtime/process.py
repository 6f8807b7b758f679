"""Tune a process that this library owns, such as the dispatcher's daemon: its core, and its cycle collector.

The threads of a Python process take turns, so together they use one core. If each turn runs on another core,
that core has to wake up, with cold caches. On two cores beside Cassandra this cost a third of a dispatcher's
speed.

Reference counts free everything that a message leaves behind; a dispatcher makes no reference cycles. With
Python's defaults the collector scans the few thousand objects of messages in progress over and over. After
some hundred thousand objects it scans everything ever imported, 40 ms at a time. Together that took a fifth
of the time of a dispatcher whose handlers do little.
"""

from __future__ import annotations

import gc
import os
import random
from typing import Final

from cqueue.errors import ConfigError

YOUNG: Final = 10_000
"""Objects allocated between two scans of the youngest generation: more than the messages of two batches
have."""
_DEFAULTS: Final = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
"""Default thresholds of Python 3.11 to 3.14; other values were set by the application, and are kept."""


def any_core() -> int:
    """Return a random number for `keep_to_one_core`, so that unrelated programs spread over the cores.

    A process id would not do: in containers all of them are the same.

    Raises:
        ConfigError: this system cannot pin a process.
    """
    _check()
    return random.randrange(1 << 16)


def keep_to_one_core(number: int) -> int:
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


def usable_cores() -> int:
    """Return the number of cores that the calling thread may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settle_garbage() -> None:
    """Exclude all present objects from garbage collection, and scan new ones less often.

    The thresholds stay as they are if the application has changed them.
    """
    gc.unfreeze()  # an earlier call may have frozen objects that are garbage now
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    if thresholds in _DEFAULTS:
        gc.set_threshold(YOUNG, *thresholds[1:])
