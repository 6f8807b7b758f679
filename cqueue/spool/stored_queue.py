"""A queue of the spool as its readers see it: segments, end and progress.

The writer thread puts segments and end in place; any thread reads and commits. A reader takes the end first
and the segments after it, so it always sees the segments that reach up to that end.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cqueue.errors import BadInput, Closed, SpoolFailed
from cqueue.runtime import logs
from cqueue.runtime.waiting import Condition
from cqueue.spool import progress, recovery
from cqueue.spool import segment as segments
from cqueue.spool.damage import Finding, LostRanges
from cqueue.spool.disk import Disk
from cqueue.spool.level import Level
from cqueue.spool.progress import Progress
from cqueue.spool.record import Scan, SpoolRecord
from cqueue.spool.segment import Segment

_log = logs.logger(__name__)
_LOST: Final = "lost"


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue of the spool; offsets `first` to `end` are on the disk, from `progress` on not consumed."""

    topic: str
    queue_id: int
    first: int
    progress: int
    end: int
    bytes: int
    segments: int
    # Ranges of offsets that are damaged or missing, until somebody deletes their files in `lost/`.
    lost: list[range]
    # When the oldest message that is not consumed was appended, in ms since 1970; None if there is none.
    oldest_ms: int | None


class StoredQueue:
    """The files of one queue.

    check: raises `OSError` if the spool's directory is no longer the one that was opened.
    """

    def __init__(
        self,
        directory: Path,
        key: tuple[str, int],
        disk: Disk,
        check: Callable[[], object],
        *,
        readonly: bool,
    ) -> None:
        self.directory = directory
        self.check = check
        self.topic, self.queue_id = key
        self.changed = Condition()
        self.lost = LostRanges(directory / _LOST, disk, readonly=readonly)
        self.progress = Progress(directory / "progress", disk)
        self.segments: list[Segment] = []
        self.end = 0
        self._committing = Condition()
        self._closed = False
        self._load(disk, readonly=readonly)

    def _load(self, disk: Disk, *, readonly: bool) -> None:
        found = recovery.examine(self.directory)
        # Beside an empty segment that a failed creation left, a reader sees the one of the same first offset.
        self.segments = [segment for segment, _ in found if not readonly or segment.end > segment.first]
        if found and not self.progress.is_known:
            # What was consumed is unknown, so everything that is there comes again.
            self.progress.offset = self.first
        consumed = self.progress.offset
        if not readonly:
            with contextlib.suppress(OSError):  # the next open tries again
                for leftover in self.directory.glob("*.new"):
                    disk.remove(leftover)
            self.segments = [segment for segment, scan in found if self._repair(segment, scan, disk)]
        for finding in recovery.gaps(self.segments, consumed):
            self.lost.add(finding)
        # Behind all that was consumed: else a new message would get an offset that nobody reads any more.
        self.end = max(self.segments[-1].end if self.segments else 0, consumed)

    def _repair(self, segment: Segment, scan: Scan | None, disk: Disk) -> bool:
        """Seal an unsealed segment behind its last record; delete one without any, and return False.

        If the disk refuses, the segment is read as it is, and the next open tries again.
        """
        if scan is not None:
            if torn := recovery.torn_bytes(segment, scan):
                why = f"{torn} bytes behind offset {segment.end - 1} are no record"
                _log.warning("spool_tail_cut", path=str(segment.path), why=why)
            self._report(segment, scan)
        try:
            if segment.end == segment.first:
                disk.remove(segment.path)
            elif scan is not None:
                segment.seal(disk)
        except OSError as exc:
            _log.warning("spool_not_sealed", path=str(segment.path), error=str(exc))
            segment.release()
        return segment.end > segment.first

    def _report(self, segment: Segment, scan: Scan) -> None:
        """Keep the damaged ranges that were not consumed."""
        for finding, data in recovery.damage(segment, scan):
            if finding.offsets.stop > self.progress.offset:
                self.lost.add(finding, data)

    @property
    def first(self) -> int:
        """The first offset that is still on the disk."""
        return self.segments[0].first if self.segments else self.end

    def pull(self, offset: int, max_count: int) -> list[SpoolRecord]:
        """Return up to `max_count` records from the offset on, fewer if they are large, one at least.

        Lost offsets are left out.
        """
        end, found, size = self.end, list[SpoolRecord](), 0
        held = self.segments
        at = max(bisect.bisect_right(held, offset, key=lambda one: one.first) - 1, 0)
        for segment in held[at:]:
            offset = max(offset, segment.first)
            stop = min(segment.end, end)
            try:
                while offset < stop and len(found) < max_count and size < segments.PULL_BYTES:
                    part = self._read(segment, offset, min(max_count - len(found), stop - offset))
                    found += part
                    size += sum(len(one.payload) for one in part)
                    offset = part[-1].offset + 1 if part else offset + 1
            except FileNotFoundError:
                if not self.directory.exists():
                    raise  # not lost: it may have been moved, or be on a disk that is not mounted
                self.check()  # nor if another spool stands in its place
                self._report_missing(segment)
        return found

    def _read(self, segment: Segment, offset: int, count: int) -> list[SpoolRecord]:
        _, position = segment.near(offset)
        if not position:
            return []  # lost, and reported
        if part := segment.read(offset, count):
            return part
        self._rescan(segment)
        return segment.read(offset, count)

    def _report_missing(self, segment: Segment) -> None:
        """Report a segment whose file is gone, unless it was deleted because it is consumed or expired.

        The writer takes such a segment from the list before it deletes the file.
        """
        lost = range(max(segment.first, self.progress.offset), segment.end)
        if lost and segment in self.segments:
            self.lost.add(Finding(segment.path, "the file is gone", lost))

    def _rescan(self, segment: Segment) -> None:
        """Find out what is damaged, and where the records behind it are."""
        is_open, held = segment.handle >= 0, segment.positions  # first: the writer may seal it meanwhile
        scan = segment.scan()
        self._report(segment, scan)
        if not is_open:
            segment.positions = scan.positions
        elif held:  # the writer adds to these
            for lost in scan.damage:
                for offset in lost.offsets:
                    held[offset - segment.first] = 0

    def wait(self, offset: int, timeout_s: float) -> bool:
        """Return whether the offset was appended, after at most `timeout_s`."""
        with self.changed:
            return self.changed.wait_for(lambda: self.end > offset, timeout_s)

    def publish(self, end: int) -> None:
        """Let readers see everything before `end`."""
        with self.changed:
            self.end = end
            self.changed.notify_all()

    def reserve_progress(self) -> None:
        """Take the space of the progress, so that commits go on once records have filled the disk."""
        with self._committing:
            self.progress.reserve()

    def commit(self, offset: int) -> None:
        """Write down that everything before the offset is consumed; never goes back."""
        if offset > self.end:
            raise BadInput(f"{self.topic}: offset {offset} was never appended; the end is {self.end}")
        with self._committing:
            if self._closed:
                raise Closed(f"{self.topic}: the spool is closed")
            if offset <= self.progress.offset:
                return
            try:
                self.check()
            except OSError as exc:
                raise SpoolFailed(f"{self.topic}: {offset} is not committed: {exc}") from exc
            try:
                self.progress.commit(offset)
            except OSError as exc:
                raise SpoolFailed(
                    f"{self.topic}: it is unknown whether {offset} is committed: {exc}"
                ) from exc

    def is_committing(self) -> bool:
        """Return whether this thread commits: in a signal handler, the code that it interrupted."""
        return self._committing.is_held()

    def close(self) -> None:
        """Close the progress, behind a commit of another thread, and refuse later ones."""
        with self._committing:
            self._closed = True
            self.progress.close()

    def backlog(self) -> Level:
        """Return what is stored and not consumed.

        Where a sealed segment is consumed in part, its records count as equally large.
        """
        consumed, held = self.progress.offset, self.segments
        size = 0
        for segment in held:
            left = segment.end - max(consumed, segment.first)
            if left > 0:
                at, position = segment.near(segment.end - left)
                behind = segment.end_position - (position or segments.FIRST_POSITION)
                size += behind * left // (segment.end - at)
        return Level(size, max(held[-1].end - consumed, 0) if held else 0)

    def status(self) -> QueueStatus:
        """Return where the queue stands."""
        consumed = self.progress.offset
        size = 0
        for segment in self.segments:
            with contextlib.suppress(FileNotFoundError):
                size += segment.path.stat().st_blocks * 512
        return QueueStatus(
            topic=self.topic,
            queue_id=self.queue_id,
            first=self.first,
            progress=consumed,
            end=self.end,
            bytes=size,
            segments=len(self.segments),
            lost=self.lost.ranges(),
            oldest_ms=self._oldest_ms(consumed),
        )

    def _oldest_ms(self, consumed: int) -> int | None:
        """Return when the first record from there on was appended; if unreadable, its segment's newest."""
        try:
            oldest = self.pull(consumed, 1)
        except OSError:  # told where it is read; a status shows all other queues as well
            return next((segment.newest_ms for segment in self.segments if segment.end > consumed), None)
        return oldest[0].appended_ms if oldest else None

    def verify(self) -> list[Finding]:
        """Read every byte, and return what is wrong."""
        held = self.segments
        findings = recovery.gaps(held, self.progress.offset)
        for segment in held:
            findings += _wrong_with(segment)
        path = self.directory / "progress"
        findings += [Finding(path, f"slot {slot} is damaged") for slot in progress.read(path).damaged]
        return findings


def _wrong_with(segment: Segment) -> list[Finding]:
    """Read a whole segment, and return what is wrong with it; nothing if it was consumed and deleted."""
    try:
        is_whole, scan = segments.header_is_whole(segment), segment.scan()
    except FileNotFoundError:
        return []
    except OSError as exc:
        return [Finding(segment.path, f"the disk cannot read it: {exc}", range(segment.first, segment.end))]
    header = [] if is_whole else [Finding(segment.path, "the header is damaged; the name says the same")]
    return header + [finding for finding, _ in recovery.damage(segment, scan)]
