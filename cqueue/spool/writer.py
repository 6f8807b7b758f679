"""The one thread that writes: it takes all entries of the callers, and syncs them with one call a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cqueue.errors import SpoolFailed
from cqueue.runtime import logs
from cqueue.runtime.sequences import grouped
from cqueue.runtime.waiting import Thread
from cqueue.spool.disk import Disk
from cqueue.spool.intake import Entry, Intake
from cqueue.spool.options import SpoolOptions
from cqueue.spool.queue_writer import QueueWriter
from cqueue.spool.stored_queue import StoredQueue

_log = logs.logger(__name__)
EXPIRY_S: Final = 10.0
"""Seconds between two looks for consumed segments: space comes back soon, and a look costs microseconds."""


class Writer:
    """The writer thread: runs until the intake is closed, and then stores and seals all that was admitted.

    Args:
        options, disk, intake: of the spool.
        release: lets another process open the spool; called when this thread writes nothing any more.
    """

    def __init__(
        self,
        options: SpoolOptions,
        disk: Disk,
        intake: Intake,
        release: Callable[[], None],
    ) -> None:
        self._release = release
        self._options = options
        self._disk = disk
        self._intake = intake
        self._queues: dict[StoredQueue, QueueWriter] = {}
        self._interval_s = options.interval_s
        self._written: set[QueueWriter] = set()  # to be synced when the interval is over
        self._next_sync = self._next_expiry = 0.0
        self._thread = Thread(target=self._run, name="cqueue-spool", daemon=True)

    def start(self, queues: list[StoredQueue]) -> None:
        """Start the thread, and delete old segments of the queues that exist already."""
        for queue in queues:
            self._writer_of(queue)
        self._expire(time.monotonic())
        self._thread.start()

    def join(self) -> None:
        """Wait until everything is stored. The intake is closed by then.

        Raises:
            SpoolFailed: an fsync failed behind messages that were acknowledged, and no append told it.
        """
        self._thread.join()
        self._release()  # again for a writer that has died, whose spool can be read until it is closed
        for writer in self._queues.values():
            for doubt in writer.in_doubt:
                raise SpoolFailed(f"an fsync failed: {doubt} of {writer.queue.topic} may be lost", doubt)

    def _run(self) -> None:
        entries: list[Entry] = []
        try:
            while not self._intake.is_drained():
                entries = self._intake.take(self._patience_s())
                self._round(entries)
            for queue in self._queues.values():
                queue.seal()
            self._release()
        except BaseException as exc:  # noqa: BLE001  # whatever it was, no caller may wait for ever
            _log.error("spool_writer_died", error=logs.describe(exc), **logs.trace(exc, is_final=True))
            self._intake.close()
            for entry in [*entries, *self._intake.take(0)]:
                if not entry.future.done():
                    entry.fail(
                        SpoolFailed(f"the writer of the spool died: {logs.describe(exc)}", entry.offsets)
                    )

    def _patience_s(self) -> float:
        """Return the seconds to wait for entries: until the next sync or expiry."""
        due = min(self._next_expiry, self._next_sync) if self._written else self._next_expiry
        return max(due - time.monotonic(), 0)

    def _round(self, entries: list[Entry]) -> None:
        """Write, sync what is due, expire what is due."""
        for queue, part in grouped((entry.queue, entry) for entry in entries).items():
            writer = self._writer_of(queue)
            writer.write([one for one in part if one.future.set_running_or_notify_cancel()])
            self._intake.settle(queue, part)
            if self._options.fsync == "always":
                writer.sync()  # comes last, so that no more work keeps the callers from the GIL
            elif self._interval_s is not None:
                self._written.add(writer)
        now = time.monotonic()
        if self._written and now >= self._next_sync:
            self._sync_all(now)
        if now >= self._next_expiry:
            self._expire(now)

    def _writer_of(self, queue: StoredQueue) -> QueueWriter:
        if queue not in self._queues:
            self._queues[queue] = QueueWriter(queue, self._options, self._disk)
        return self._queues[queue]

    def _sync_all(self, now: float) -> None:
        for writer in self._written:
            writer.sync()
        self._written.clear()
        self._next_sync = now + (self._interval_s or 0)

    def _expire(self, now: float) -> None:
        for queue, writer in self._queues.items():
            try:
                writer.expire(time.time_ns() // 1_000_000)
            except (OSError, SpoolFailed) as exc:
                _log.warning("spool_not_expired", topic=queue.topic, error=str(exc))
            self._intake.settle(queue)
        self._next_expiry = now + EXPIRY_S
