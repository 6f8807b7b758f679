"""Keeping a process to one core.

A Python process uses one core, whichever thread has the interpreter. Where its threads take turns on
several, each turn wakes another core and finds that one's caches cold: with Cassandra beside it on two
cores that took a third of a dispatcher's speed.
"""

from __future__ import annotations

import os
import random

from cqueue.errors import ConfigError


def any_number() -> int:
    """A number for `keep_to_one` at random: programs that know nothing of each other get several cores.

    Not by their process ids, which in containers are all the same.

    Raises:
        ConfigError: this system cannot do that.
    """
    _check()
    return random.randrange(1 << 16)


def keep_to_one(number: int) -> int:
    """Let the calling thread, and those that it starts from now on, run on one core; which one.

    number: of those that it may run on now, counted round, so that several processes get several.

    Raises:
        ConfigError: this system cannot do that.
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
    """How many cores the calling thread may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
