"""The parent of `--processes N` and of `--watch`: what it is told by its children, it tells the world.

It counts nothing itself and knows no queue, so it needs no connection; it stays up whatever its children do.
It notices that code has changed by looking: once a second that costs less than a dependency would, and works
on file systems that tell nobody (containers with mounted source trees).
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

from prometheus_client import CollectorRegistry, Counter, Gauge

from cqueue.dispatcher import health, logs
from cqueue.dispatcher.daemon import Settings
from cqueue.dispatcher.health import Health
from cqueue.dispatcher.metrics import Families, Sum, added, exposition, packed
from cqueue.dispatcher.notify import Notifier
from cqueue.dispatcher.processes import Ended, Exit, Inbox, News, Process, Said, Supervisor
from cqueue.dispatcher.target import TargetError

CHILD_MODULE: Final = "cqueue.dispatcher.daemon"


class Fleet:
    """Several processes that do the same.

    Args:
        settings: what each of them does.
        count: how many.
        inbox: news of signals, and of children.
        watch: replace all when a `.py` file under this directory changes.
        notifier, health_address: as for `Daemon`.
    """

    def __init__(
        self,
        settings: Settings,
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
        self._files = None if watch is None else Files(watch)
        self._notifier = notifier or Notifier()
        self._address = health_address
        self._sum = Sum()
        self._mutex = threading.Lock()  # the threads of the health server add up what children counted
        self._registry = CollectorRegistry()
        self._restarts = Counter("cqueue_restarts", "Children that were replaced.", registry=self._registry)
        self._processes = Gauge("cqueue_processes", "Children that run.", registry=self._registry)

    def run(self) -> int:
        """Until all have ended; the exit code.

        Raises:
            TargetError: no child could be started at all; with what it said.
            ConfigError: the health port is taken.
        """
        with health.serving(self._address, self.health, self.exposition):
            logs.logger().info(
                logs.Event.STARTING, target=self._settings.target, processes=len(self._supervisor.slots)
            )
            while not self._supervisor.is_over():
                self._step()
        if self._supervisor.code == Exit.USAGE:
            raise TargetError(self._supervisor.failure)
        return self._supervisor.code

    def _child(self, index: int) -> Process:
        settings = self._settings
        if settings.core is not None:
            settings = replace(settings, core=settings.core + index)
        return Process(CHILD_MODULE, asdict(settings), self._inbox)

    def _step(self) -> None:
        """What is due, then all news, or a second of none; and systemd hears how it is."""
        if self._files is not None and (changed := self._files.changed()):
            self._supervisor.reload(files=[str(path) for path in changed[:MOST_NAMED]])
        self._supervisor.due()
        with suppress(queue.Empty):
            self._take(self._inbox.get(timeout=self._supervisor.patience_s()))
            while True:
                self._take(self._inbox.get_nowait())
        now = self.health()
        if now.ready:
            self._notifier.ready()
        if self._supervisor.stopping:
            self._notifier.stopping()
        self._notifier.alive()
        self._notifier.status(now.reason)

    def _take(self, news: News) -> None:
        """The supervisor acts on it; the counts of a child are kept, also when it has ended."""
        slot = self._supervisor.take(news)
        if slot is None:
            return
        with self._mutex:
            if isinstance(news, Ended):
                self._sum.gone(slot.index)
            elif isinstance(news, Said) and "metrics" in news.report:
                self._sum.put(slot.index, news.report["metrics"])
        if isinstance(news, Ended) and not self._supervisor.stopping:
            self._restarts.inc()

    # ── what the world asks ──

    def health(self) -> Health:
        """Of all together; the parent itself looks at them once a second."""
        stalled_s = time.monotonic() - self._supervisor.looked_s
        if stalled_s > health.STALLED_AFTER_S:
            return Health(alive=False, ready=False, reason=f"the parent has not moved for {stalled_s:.0f} s")
        return health.together(self._supervisor.healths())

    def exposition(self) -> bytes:
        """The text for Prometheus."""
        self._processes.set(len(self._supervisor.healths()))
        with self._mutex:
            own: Families = packed(self._registry.collect())
            return exposition(added([self._sum.families(), own]))


MOST_NAMED: Final = 5
"""Changed files in a line of the log."""
SKIPPED = frozenset({"__pycache__", "node_modules"})


class Files:
    """What the files under a directory looked like the last time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = stamps(root)

    def changed(self) -> list[Path]:
        """Files that came, went or changed since the last call, by name."""
        before, self._seen = self._seen, stamps(self._root)
        return sorted({path for path, *_ in before ^ self._seen})


def stamps(root: Path) -> set[tuple[Path, int, int]]:
    """Every `.py` file, with its time of change in ns and its size. Hidden directories are skipped."""
    found = set()
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".") and name not in SKIPPED]
        for path in (Path(directory, name) for name in files if name.endswith(".py")):
            with suppress(OSError):  # gone meanwhile, or a link to nowhere
                stat = path.stat()
                found.add((path, stat.st_mtime_ns, stat.st_size))
    return found
