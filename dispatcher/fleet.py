"""The parent of `--processes N` and of `--watch`: what it is told by its children, it tells the world.

It counts nothing itself and knows no queue, so it needs no connection; it stays up whatever its children do.
It notices that code has changed by looking: twice a second that costs less than a dependency would, and works
on file systems that tell nobody (containers with mounted source trees).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from cqueue.dispatcher import health, logs
from cqueue.dispatcher.daemon import Settings
from cqueue.dispatcher.health import Health
from cqueue.dispatcher.metrics import Families, Sum, added, exposition, packed
from cqueue.dispatcher.notify import Notifier
from cqueue.dispatcher.processes import Audience, Changed, Child, Exit, Inbox, Process, Supervisor
from cqueue.dispatcher.target import TargetError

CHILD_MODULE: Final = "cqueue.dispatcher.daemon"


class Fleet(Audience):
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
        patient = watch is not None
        self._supervisor = Supervisor(
            self._child,
            count,
            inbox,
            audience=self,
            grace_s=settings.grace_s,
            drain=settings.drain,
            patient=patient,
        )
        self._inbox = inbox
        self._settings = settings
        self._directory = watch
        self._notifier = notifier or Notifier()
        self._address = health_address
        self._sum = Sum()
        self._healths: dict[int, Health] = {}
        self._mutex = threading.Lock()  # the threads of the health server look at what children said
        self._moved_s = time.monotonic()
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
            if self._directory is not None:
                files = Files(self._directory)
                threading.Thread(target=self._look, args=(files,), name="cqueue-watch", daemon=True).start()
            logs.logger().info(
                logs.Event.STARTING, target=self._settings.target, processes=len(self._supervisor.slots)
            )
            code = self._supervisor.run()
        if code == Exit.USAGE:
            raise TargetError(self._supervisor.failure)
        return code

    def _child(self, index: int) -> Child:
        settings = self._settings
        if settings.core is not None:
            settings = replace(settings, core=settings.core + index)
        return Process(CHILD_MODULE, asdict(settings), self._inbox)

    def _look(self, files: Files) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_EVERY_S):
            if changed := files.changed():
                self._inbox.put(Changed(tuple(map(str, changed))))

    # ── what children say ──

    def heard(self, index: int, report: dict[str, Any]) -> None:
        """Keep what it says of its health and its counts."""
        if "alive" not in report:
            return
        with self._mutex:
            self._healths[index] = Health(report["alive"], report["ready"], str(report.get("reason", "")))
            self._sum.put(index, report.get("metrics") or [])

    def gone(self, index: int) -> None:
        """Keep its counts; unless all are to end, another one comes in its place."""
        with self._mutex:
            self._healths.pop(index, None)
            self._sum.gone(index)
        if self._supervisor.stopping is None:
            self._restarts.inc()

    def looked(self) -> None:
        """Tell systemd how it is."""
        self._moved_s = time.monotonic()
        now = self.health()
        if now.ready:
            self._notifier.ready()
        if self._supervisor.stopping is not None:
            self._notifier.stopping()
        self._notifier.alive()
        self._notifier.status(now.reason)

    # ── what the world asks ──

    def health(self) -> Health:
        """Of all together; the parent itself looks at them once a second."""
        stalled_s = time.monotonic() - self._moved_s
        if stalled_s > health.STALLED_AFTER_S:
            return Health(alive=False, ready=False, reason=f"the parent has not moved for {stalled_s:.0f} s")
        with self._mutex:
            return health.together({str(index): one for index, one in sorted(self._healths.items())})

    def exposition(self) -> bytes:
        """The text for Prometheus."""
        with self._mutex:
            self._processes.set(len(self._healths))
            own: Families = packed(self._registry.collect())
            return exposition(added([self._sum.families(), own]))


LOOK_EVERY_S = 0.5
SKIPPED = frozenset({"__pycache__", "node_modules"})

Stamp = tuple[int, int]


class Files:
    """What the files under a directory looked like the last time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = dict(stamps(root))

    def changed(self) -> list[Path]:
        """Files that came, went or changed since the last call, by name."""
        before, self._seen = self._seen, dict(stamps(self._root))
        paths = before.keys() | self._seen.keys()
        return sorted(path for path in paths if before.get(path) != self._seen.get(path))


def stamps(root: Path) -> Iterator[tuple[Path, Stamp]]:
    """Every `.py` file, with its time of change in ns and its size. Hidden directories are skipped."""
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".") and name not in SKIPPED]
        for name in files:
            path = Path(directory, name)
            if name.endswith(".py") and (stamp := _stamp(path)) is not None:
                yield path, stamp


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:  # gone meanwhile, or a link to nowhere
        return None
    return found.st_mtime_ns, found.st_size
