"""The parent of `--processes N` and `--watch`: supervises the children, and answers probes and scrapes.

The parent knows no queue, so it needs no connection, and it stays up whatever its children do. It finds
changed code by looking at each event, and at least once a second. That costs less than a dependency would,
and works on file systems without notifications, such as source trees mounted into containers.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from cqueue.dispatcher.application.import_string import TargetError
from cqueue.dispatcher.service import health, logs
from cqueue.dispatcher.service.daemon import DaemonSettings
from cqueue.dispatcher.service.health import Health
from cqueue.dispatcher.service.metrics import ChildMetrics, added, exposition, packed
from cqueue.dispatcher.service.supervisor import (
    ChildProcess,
    Ended,
    Exit,
    Inbox,
    Notice,
    Reported,
    Supervisor,
)
from cqueue.dispatcher.service.systemd import Notifier

CHILD_MODULE: Final = "cqueue.dispatcher.service.daemon"
"""Module that a child process runs."""


class ParentProcess:
    """Supervises several processes that do the same.

    Args:
        settings: what each child does.
        count: how many children.
        inbox: events of signals and of children.
        watch: replace all children when a `.py` file under this directory changes.
        notifier, health_address: as for `Daemon`.
    """

    def __init__(
        self,
        settings: DaemonSettings,
        count: int,
        inbox: Inbox,
        *,
        watch: Path | None = None,
        notifier: Notifier | None = None,
        health_address: tuple[str, int] | None = None,
    ) -> None:
        self._supervisor = Supervisor(
            self._child,
            count,
            grace_s=settings.grace_s,
            drain=settings.drain,
            patient=watch is not None,
        )
        self._inbox = inbox
        self._settings = settings
        self._watched = watch
        self._stamps = set() if watch is None else file_stamps(watch)
        self._notifier = notifier or Notifier()
        self._address = health_address
        self._sum = ChildMetrics()
        self._mutex = threading.Lock()  # threads of the health server read the children's metrics

    def run(self) -> int:
        """Supervise until all children have ended; return the exit code.

        Raises:
            TargetError: no child could be started at all; the text is the child's.
            ConfigError: the health port is taken.
        """
        with health.serving(self._address, self.health, self.exposition):
            logs.logger().info(
                logs.DaemonEvent.STARTING, target=self._settings.target, processes=len(self._supervisor.slots)
            )
            while not self._supervisor.is_over():
                self._step()
        if self._supervisor.code == Exit.USAGE:
            raise TargetError(self._supervisor.failure)
        return self._supervisor.code

    def _child(self, index: int) -> ChildProcess:
        settings = self._settings
        if settings.core is not None:
            settings = replace(settings, core=settings.core + index)
        return ChildProcess(CHILD_MODULE, asdict(settings), self._inbox)

    def _step(self) -> None:
        """Do what is due, then handle all events, or wait a second for one; and tell systemd the state."""
        if self._watched is not None:
            before, self._stamps = self._stamps, file_stamps(self._watched)
            if changed := sorted({path for path, *_ in before ^ self._stamps}):
                self._supervisor.reload(files=[str(path) for path in changed[:MOST_NAMED]])
        self._supervisor.due()
        with suppress(queue.Empty):
            wait_s = min(self._supervisor.patience_s(), self._notifier.alive_every_s)
            self._take(self._inbox.get(timeout=wait_s))
            while True:
                self._take(self._inbox.get_nowait())
        self._notifier.tell(self.health(), stopping=self._supervisor.stopping)

    def _take(self, notice: Notice) -> None:
        """Hand an event to the supervisor, and keep the child's metrics, also when the child has ended."""
        slot = self._supervisor.take(notice)
        if slot is None:
            return
        with self._mutex:
            if isinstance(notice, Ended):
                self._sum.gone(slot.index)
            elif isinstance(notice, Reported) and "metrics" in notice.report:
                self._sum.put(slot.index, notice.report["metrics"])

    # ── probes and metrics ──

    def health(self) -> Health:
        """Return the health of all children together; dead if the parent itself has stalled."""
        stalled_s = time.monotonic() - self._supervisor.looked_s
        if stalled_s > health.STALLED_AFTER_S:
            return Health(alive=False, ready=False, reason=f"the parent has not moved for {stalled_s:.0f} s")
        return health.together(self._supervisor.healths())

    def exposition(self) -> bytes:
        """Return the text for Prometheus."""
        deaths, count = self._supervisor.deaths, len(self._supervisor.healths())
        restarts = CounterMetricFamily("cqueue_restarts", "Children that died and were replaced.", deaths)
        processes = GaugeMetricFamily("cqueue_processes", "Children that run.", count)
        with self._mutex:
            return exposition(added([self._sum.families(), packed([restarts, processes])]))


MOST_NAMED: Final = 5
"""Changed files that a log line names."""
SKIPPED = frozenset({"__pycache__", "node_modules"})
"""Directories without source code of the application."""


def file_stamps(root: Path) -> set[tuple[Path, int, int]]:
    """Return every `.py` file with its time of change in ns and its size. Hidden directories are skipped."""
    found = set()
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".") and name not in SKIPPED]
        for path in (Path(directory, name) for name in files if name.endswith(".py")):
            with suppress(OSError):  # gone meanwhile, or a link to nowhere
                stat = path.stat()
                found.add((path, stat.st_mtime_ns, stat.st_size))
    return found
