"""The writing side of a queue: the calls by which the writer thread fills its active segment.

Every entry gets exactly one of three answers: it is stored, it is not stored, or that is unknown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from cqueue.errors import SpoolFailed, SpoolFull
from cqueue.runtime import logs
from cqueue.spool import segment as segments
from cqueue.spool.disk import Disk
from cqueue.spool.intake import Entry
from cqueue.spool.options import SpoolOptions
from cqueue.spool.segment import Segment
from cqueue.spool.stored_queue import StoredQueue

_log = logs.logger(__name__)
_WRITE_BYTES: Final = 1024 * 1024
"""Bytes encoded and written at once, at most: a millisecond, after which other threads get the GIL."""


class QueueWriter:
    """The segments that a queue fills one after the other. Only the writer thread calls it."""

    def __init__(self, queue: StoredQueue, options: SpoolOptions, disk: Disk) -> None:
        self.queue = queue
        self._options = options
        self._disk = disk
        self._ahead = segments.ZEROS_AHEAD if options.fsync == "always" else 0
        self._active: Segment | None = None
        self._next = queue.end
        self._waiting: list[Entry] = []  # written, and done once they are synced
        self._synced_end = queue.end
        self.in_doubt: list[range] = []  # acknowledged, and lost perhaps by a failed fsync

    def write(self, entries: Sequence[Entry]) -> None:
        """Write the entries in order. Those that cannot be stored fail; the others wait for `sync`."""
        left = deque(entries)
        while left:
            if self.in_doubt:
                left.popleft().fail(self._tell_doubt())
                continue
            try:
                segment = self._segment_for(left[0].size)
            except OSError as exc:
                for entry in left:
                    entry.fail(SpoolFull(f"the spool takes nothing more: {exc}"))
                return
            self._append(segment, _batch(left, segment))

    def _segment_for(self, size: int) -> Segment:
        self.queue.check()
        if self._active is not None and not self._active.room(size):
            self.seal()
        if self._active is None:
            self._check_reserve()
            path = self.queue.directory
            self._disk.make_directory(path)
            self.queue.reserve_progress()
            self._active = segments.create(self._disk, path, self._next, self._options.segment_bytes)
            self.queue.segments = [*self.queue.segments, self._active]
        return self._active

    def _check_reserve(self) -> None:
        root = next(path for path in (self.queue.directory, *self.queue.directory.parents) if path.exists())
        free, takes, kept = self._disk.free(root), self._options.segment_bytes, self._options.disk_reserve
        if free - takes < kept:
            raise OSError(
                f"a segment takes {takes:,} bytes, {free:,} are free, and disk_reserve keeps {kept:,}"
            )

    def _append(self, segment: Segment, entries: list[Entry]) -> None:
        payloads = list(chain.from_iterable(entry.payloads for entry in entries))
        first = self._next
        try:
            segment.append(self._disk, payloads, time.time_ns() // 1_000_000, ahead=self._ahead)
        except OSError as exc:
            self._cut(entries, len(payloads), exc)
            return
        self._next = segment.end
        for entry in entries:
            entry.offsets = range(first, first + len(entry.payloads))
            first += len(entry.payloads)
        if self._options.fsync == "always":
            self._waiting += entries
        else:
            self.queue.publish(segment.end)
            for entry in entries:
                entry.done()

    def _cut(self, entries: list[Entry], count: int, cause: OSError) -> None:
        """Seal the segment before a write that failed. If that works, nothing of the write can come back."""
        in_doubt = range(self._next, self._next + count)
        if self.seal():
            error: SpoolFull | SpoolFailed = SpoolFull(f"the disk took nothing of it: {cause}")
        else:
            self._next = in_doubt.stop
            error = SpoolFailed(f"the disk failed, and could not be told to forget it: {cause}", in_doubt)
        for entry in entries:
            entry.fail(error)

    def sync(self) -> None:
        """Make all that was written durable; its callers learn of a failure."""
        segment = self._active
        if segment is not None and self._synced_end != segment.end:
            self._make_durable(segment, lambda: self._disk.sync(segment.handle))

    def seal(self) -> bool:
        """Seal the active segment, so that the next write begins another; return False if that failed."""
        segment, self._active = self._active, None
        if segment is None:
            return True
        return self._make_durable(segment, lambda: self._finish(segment))

    def _finish(self, segment: Segment) -> None:
        segment.seal(self._disk)
        if segment.end == segment.first:
            self.queue.segments = [one for one in self.queue.segments if one is not segment]
            self._disk.remove(segment.path)

    def _make_durable(self, segment: Segment, action: Callable[[], None]) -> bool:
        waiting, self._waiting = self._waiting, []
        try:
            action()
        except OSError as exc:
            self._give_up(segment, waiting, exc)
            return False
        self._synced_end = segment.end
        self.queue.publish(segment.end)
        for entry in waiting:
            entry.done()
        return True

    def _give_up(self, segment: Segment, waiting: list[Entry], cause: OSError) -> None:
        """Give up a segment whose fsync failed.

        The kernel may have dropped the pages, so a second fsync would prove nothing.
        """
        in_doubt = range(self._synced_end, segment.end)
        _log.error(
            "spool_sync_failed",
            path=str(segment.path),
            first=in_doubt.start,
            end=in_doubt.stop,
            error=str(cause),
        )
        self._active, self._synced_end = None, segment.end
        segment.release()
        for entry in waiting:
            entry.fail(SpoolFailed(f"fsync failed: {cause}; these offsets may be stored", entry.offsets))
        if in_doubt and self._options.fsync != "always":
            self.in_doubt.append(in_doubt)

    def _tell_doubt(self) -> SpoolFailed:
        doubt = self.in_doubt.pop()
        text = f"not stored, and told late: an fsync failed, so {doubt} were acknowledged and may be lost"
        return SpoolFailed(text, doubt)

    def expire(self, now_ms: int) -> None:
        """Delete the segments that are consumed, or too old, from the first on."""
        queue, gone = self.queue, 0
        for segment in queue.segments:
            is_in_doubt = segment.end > queue.end  # its fsync failed, and nothing was stored behind it
            if segment is self._active or is_in_doubt or not self._may_go(segment, gone, now_ms):
                break
            if segment.end > queue.progress.offset:
                lost = range(queue.progress.offset, segment.end)
                _log.warning("spool_expired_unconsumed", topic=queue.topic, first=lost.start, end=lost.stop)
                queue.commit(segment.end)
            gone += 1
        removed, queue.segments = queue.segments[:gone], queue.segments[gone:]
        for segment in removed:
            self._disk.remove(segment.path)

    def _may_go(self, segment: Segment, index: int, now_ms: int) -> bool:
        retention, age_ms = self._options.retention, now_ms - segment.newest_ms
        is_consumed = segment.end <= self.queue.progress.offset
        was_ahead = age_ms < 0 and any(one.newest_ms <= now_ms for one in self.queue.segments[index + 1 :])
        if is_consumed and was_ahead:  # the clock: else this would hold up what is behind it until then
            age_ms = -age_ms
        is_old = retention is None or age_ms >= retention.total_seconds() * 1000
        return is_old and (is_consumed or self._options.expire_unconsumed)


def _batch(left: deque[Entry], segment: Segment) -> list[Entry]:
    """Take the entries that fit into the segment and into one write, at least one."""
    batch = [left.popleft()]
    size = batch[0].size
    while left and size + left[0].size <= _WRITE_BYTES and segment.room(size + left[0].size):
        size += left[0].size
        batch.append(left.popleft())
    return batch
