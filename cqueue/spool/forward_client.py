"""The spooled queues and logs of a client: one forwarder a topic, however often its queue is opened."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from cqueue.errors import BadInput
from cqueue.log.catalog import LogCatalog
from cqueue.log.log import Log
from cqueue.log.notifier import AppendNotifier
from cqueue.message import check_queue_name
from cqueue.producer import Producer
from cqueue.runtime.catalog import Catalog
from cqueue.runtime.driver import BlockingDriver
from cqueue.spool.forward_log import LogTarget, SpooledLog
from cqueue.spool.forward_message import QueueTarget
from cqueue.spool.forward_queue import SpooledQueue
from cqueue.spool.forwarder import CLOSE_S, Forwarded, Forwarder
from cqueue.spool.spool import Spool, check_spool

Key = tuple[int, str]
F = TypeVar("F", bound=Forwarded)


class Spools:
    """Queues and logs that are fed from spools. Thread-safe.

    Args:
        catalog, logs, driver, notifier: of the client.
        producer: makes one for the queue of a name.
    """

    def __init__(
        self,
        catalog: Catalog,
        logs: LogCatalog,
        driver: BlockingDriver,
        notifier: AppendNotifier,
        producer: Callable[[str], Producer],
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._driver = driver
        self._notifier = notifier
        self._producer = producer
        self._mutex = Lock()
        self._open_queues: dict[Key, SpooledQueue] = {}
        self._open_logs: dict[Key, SpooledLog] = {}

    def queue(self, spool: Spool, name: str, make: Callable[..., Any]) -> SpooledQueue:
        """Return the queue of this name; `make` makes one of a class."""
        check_spool(spool)
        with self._mutex:
            key = id(spool), check_queue_name(name)
            if key not in self._open_queues:
                target = self._queue_target(spool, name)
                made = partial(SpooledQueue, spool=spool, target=target)
                _keep(self._open_queues, key, make(name, make=made))
            return self._open_queues[key]

    def log(self, spool: Spool, name: str) -> SpooledLog:
        """Return the log of this name."""
        check_spool(spool)
        with self._mutex:
            key = id(spool), check_queue_name(name, "log")
            if key not in self._open_logs:
                _keep(self._open_logs, key, SpooledLog(spool, self._log_target(spool, name)))
            return self._open_logs[key]

    def forwarder(self, spool: Spool, topic: str, *, again: bool = False) -> Forwarder:
        """Return a forwarder that is not started, for a spool without a producer.

        Raises:
            BadInput: the topic is not that of a queue or a log.
        """
        kind, _, name = topic.partition(".")
        if kind == "queue":
            store = self._queue_target(spool, name, again=again).store
        elif kind == "log":
            store = self._log_target(spool, name).store
        else:
            raise BadInput(f"topic {topic!r} of the spool is not that of a queue or a log")
        return Forwarder(spool, topic, store)

    def _queue_target(self, spool: Spool, name: str, *, again: bool = False) -> QueueTarget:
        producer = self._producer(name)
        return QueueTarget(name, self._catalog, self._driver, producer, root=spool.path, again=again)

    def _log_target(self, spool: Spool, name: str) -> LogTarget:
        log = Log(name, self._logs, self._driver, self._notifier)
        return LogTarget(log, self._driver, root=spool.path)

    def close(self) -> None:
        """Forward all topics for up to 5 s, and end the forwarders. The rest stays in the spools."""
        until_s = time.monotonic() + CLOSE_S
        with self._mutex:
            for each in (*self._open_queues.values(), *self._open_logs.values()):
                each.close(max(0.0, until_s - time.monotonic()))


def _keep(kept: dict[Key, F], key: Key, made: F) -> None:
    """Begin to forward and keep it, or neither: nobody could close a forwarder that is not kept."""
    try:
        made.start()
        kept[key] = made
    except BaseException:  # also a Ctrl-C
        made.close(0.0)
        raise
