"""One connection to Cassandra in each process, however many tasks run in it.

Spark keeps its Python workers and gives them one task after the other; opening a session costs more than most
tasks. Workers are forked from a daemon, and connections do not survive a fork: so a session also belongs to
the process that opened it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar

import tenacity
from tenacity.retry import retry_base

from cqueue.client import open_cassandra
from cqueue.errors import LASTING, ConfigError, NotDone, OutcomeUnknown, TooManyTombstones
from cqueue.log.catalog import LogCatalog
from cqueue.producer import Producer
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.clock import ClusterClock
from cqueue.runtime.driver import BlockingDriver
from cqueue.runtime.wakeups import Wakeups
from cqueue.settings import Settings
from cqueue.store.connection import Connection

PATIENCE_S: Final = 60.0
"""Seconds for which Cassandra may be away before a task or a stream gives up: a node starts in less."""

Given = ParamSpec("Given")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class SparkSide:
    """The connection of one process, shared by its readers and writers. Thread-safe."""

    connection: Connection
    driver: BlockingDriver
    queues: Catalog
    logs: LogCatalog

    def producer(self, queue: str) -> Producer:
        """Make a producer of a queue; no consumer in this process waits for its messages."""
        return Producer(queue, self.queues, self.driver, Wakeups())


_mutex = Lock()
_opened: dict[tuple[int, Settings], SparkSide] = {}


def session(settings: Settings) -> SparkSide:
    """Return this process's connection to a keyspace, opened by the first call.

    Raises:
        ConfigError: the URL is not that of a Cassandra cluster, which other processes can reach too.
        Unavailable, SchemaMismatch: as `cqueue.connect`.
    """
    if settings.scheme != "cassandra":
        raise ConfigError(f"{settings.address} exists in one process only; Spark needs a cassandra:// URL")
    with _mutex:
        key = (os.getpid(), settings)
        if key not in _opened:
            _opened[key] = _open(settings)
        return _opened[key]


def again(when: retry_base, **options: Any) -> tenacity.Retrying:
    """Return what repeats a call for `PATIENCE_S`. when: after which results or errors."""
    wait, stop = tenacity.wait_exponential(0.1, max=5.0), tenacity.stop_after_delay(PATIENCE_S)
    return tenacity.Retrying(retry=when, wait=wait, stop=stop, **options)


def patient(call: Callable[Given, Done]) -> Callable[Given, Done]:
    """Repeat a call while Cassandra does not answer, for `PATIENCE_S`. Twice must do no more than once."""

    @wraps(call)
    def repeated(*args: Given.args, **kwargs: Given.kwargs) -> Done:
        return again(tenacity.retry_if_exception(_may_pass), reraise=True)(call, *args, **kwargs)

    return repeated


def _may_pass(error: BaseException) -> bool:
    is_lasting = isinstance(error, (*LASTING, TooManyTombstones))  # of those, 100,000 at each try
    return isinstance(error, NotDone | OutcomeUnknown) and not is_lasting


def _open(settings: Settings) -> SparkSide:
    store, connection = open_cassandra(settings)
    driver = BlockingDriver(store, ClusterClock(store.sample_time_us))
    queues = Catalog(driver, settings.local_dc)
    return SparkSide(connection, driver, queues, LogCatalog(driver, queues.deployment))
