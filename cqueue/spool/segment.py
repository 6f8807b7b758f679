"""A segment: a file that one process fills once, and that is sealed before the next one is used.

A segment that a dead process left open is sealed behind its last whole record and never appended to again.
So no new record can be mistaken for the rest of a torn one.
"""

from __future__ import annotations

import os
import re
import struct
import time
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from google_crc32c import extend, value

from cqueue.spool import record
from cqueue.spool.disk import Disk
from cqueue.spool.record import Scan, SpoolRecord

_HEADER: Final = struct.Struct("<8s16sQQI20x")
_FOOTER: Final = struct.Struct("<8sQQQI4x")
_CHECKED: Final = 40
"""Bytes of a header that its checksum covers."""
FIRST_POSITION: Final = _HEADER.size
OVERHEAD: Final = _HEADER.size + _FOOTER.size
NAME: Final = re.compile(r"(\d{20})-([0-9a-f]{32})\.seg")
_READ_BYTES: Final = 256 * 1024
"""Bytes of one read: enough for 2,000 small records."""
PULL_BYTES: Final = 16 * 1024 * 1024
"""Bytes at which a reader gets no further record at once: a batch of the largest must fit in memory."""
ZEROS_AHEAD: Final = 256 * 1024
"""Bytes of zeros written behind the records, so that most syncs change no metadata of the file system.

The first write into reserved space makes ext4 and XFS commit their journal at the next fdatasync. A write
over zeros does not: a sync of 8 KiB takes a fifth less. Of writes of that size one in 30 carries the zeros.
"""
_MARKS: Final = 100
"""Places of a segment that are remembered, those last used: more than readers of it are behind each other."""
_SMALL_BYTES: Final = ZEROS_AHEAD // 8
"""Bytes of the largest write that carries zeros. For larger ones bandwidth counts, and not the journal."""


@dataclass(slots=True)
class Segment:
    """A file, and what is known about it.

    `positions` is empty once it is sealed: a reader finds a record from the last one that was read before it,
    or from the first. A scan of a damaged file fills it again, with 0 for each record that is lost.
    """

    path: Path
    first: int
    salt: int
    end: int
    end_position: int
    newest_ms: int
    positions: array[int]
    handle: int = -1
    capacity: int = 0
    zeroed: int = 0  # position up to which zeros were written over the reserved space
    marks: dict[int, int] = field(default_factory=dict)  # positions by offset, where reads have ended

    def room(self, size: int) -> bool:
        """Whether records of that many bytes fit."""
        return self.end_position + size + _FOOTER.size <= self.capacity

    def append(self, disk: Disk, payloads: Sequence[bytes], now_ms: int, *, ahead: int = 0) -> None:
        """Write the payloads behind the last record, now and then with zeros behind them.

        On an error the segment is as it was. A file that was deleted takes nothing: no reader would find it.
        """
        if not os.fstat(self.handle).st_nlink:
            raise FileNotFoundError(f"{self.path} was deleted")
        data = record.encode(payloads, first=self.end, now_ms=now_ms, salt=self.salt)
        stop = self.end_position + len(data)
        zeros = b""
        if stop > self.zeroed and len(data) <= _SMALL_BYTES:
            self.zeroed = min(stop + ahead, self.capacity)
            zeros = bytes(self.zeroed - stop)
        disk.write(self.handle, data + zeros, self.end_position)
        self.positions.extend(record.positions(payloads, self.end_position))
        self.end_position = stop
        self.end, self.newest_ms = self.end + len(payloads), now_ms

    def seal(self, disk: Disk) -> None:
        """Cut the file behind its last record, and write the footer."""
        if self.handle < 0:
            self.handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        disk.cut(self.handle, self.end_position)
        parts = (b"CQSEALED", self.end, self.end_position, self.newest_ms)
        footer = _FOOTER.pack(*parts, extend(self.salt, _FOOTER.pack(*parts, 0)[:32]))
        disk.write(self.handle, footer, self.end_position)
        disk.sync(self.handle)
        self.release()
        self.positions = array("I")

    def release(self) -> None:
        """Close the file, which is only read from now on."""
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1

    def near(self, offset: int) -> tuple[int, int]:
        """Return the offset and the position of a record from which a reader finds that of this offset.

        The position is 0 if the record is lost.
        """
        positions, marks = self.positions, self.marks
        if positions:
            return offset, positions[offset - self.first]
        at = max((mark for mark in marks if mark <= offset), default=self.first)
        return at, marks.get(at, FIRST_POSITION)

    def read(self, offset: int, count: int) -> list[SpoolRecord]:
        """Return up to `count` records from the offset on, and about `PULL_BYTES` at most.

        They end at the first that is not whole; there is none if one before the offset is not.
        """
        found: list[SpoolRecord] = []
        at, position = self.near(offset)
        size, start = _READ_BYTES, position
        while position and len(found) < count and at < self.end and position < start + PULL_BYTES:
            data = self._bytes(position, min(position + size, self.end_position))
            wanted = offset - at if at < offset else count - len(found)
            part, taken = record.decode(data, first=at, salt=self.salt, count=wanted)
            if not part and position + size >= self.end_position:
                break
            # A record may be longer than what was read of it.
            size = _READ_BYTES if part else size * 4
            position += taken
            if at < offset:
                start = position
            else:
                found += part
            at += len(part)
        if found:  # the next read begins at the end, or, if this cannot be forwarded, at its beginning
            used = {offset: start, at: position}
            older = [mark for mark in self.marks.items() if mark[0] not in used]
            self.marks = dict([*older, *used.items()][-_MARKS:])
        return found

    def _bytes(self, start: int, stop: int) -> bytes:
        # Read, not memory-mapped: a sector that the disk cannot read is an error here, and SIGBUS there.
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def scan(self) -> Scan:
        """Read the whole file, and find its records.

        Records that the footer or the writer promises and that are not found at the end are damage, too.
        """
        end, end_position = self.end, self.end_position  # before the file: the writer may append meanwhile
        data = self.path.read_bytes()[:end_position]
        found = record.scan(data, first=self.first, salt=self.salt, start=FIRST_POSITION)
        if found.next_offset < end:
            lost = range(found.next_offset, end)
            found.damage.append(record.Damage(lost, found.end_position, end_position))
            found.positions.extend(bytes(len(lost)))
            found.end_position = end_position
        return found


def create(disk: Disk, directory: Path, first: int, size: int) -> Segment:
    """Create an empty segment for offsets from `first` on, with its space reserved."""
    identity = uuid.uuid4()
    now_ms = time.time_ns() // 1_000_000
    path = directory / f"{first:020d}-{identity.hex}.seg"
    handle = disk.create(path, _header(identity, first, now_ms), size=size)
    return Segment(
        path=path,
        first=first,
        salt=value(identity.bytes),
        end=first,
        end_position=FIRST_POSITION,
        newest_ms=now_ms,
        positions=array("I"),
        handle=handle,
        capacity=size,
    )


def _header(identity: uuid.UUID, first: int, now_ms: int) -> bytes:
    parts = (b"CQSPOOL1", identity.bytes, first, now_ms)
    return _HEADER.pack(*parts, value(_HEADER.pack(*parts, 0)[:_CHECKED]))


def load(path: Path) -> tuple[Segment, Scan | None]:
    """Return the segment of a file, by its footer, or without a footer by a scan, which is returned too.

    Name and header hold the same. The name counts, since a rename is never torn.
    """
    first, salt = int(path.name[:20]), value(bytes.fromhex(path.name[21:-4]))
    footer = _read_footer(path, salt, first)
    if footer is not None:
        end, end_position, newest_ms = footer
        return Segment(path, first, salt, end, end_position, newest_ms, positions=array("I")), None
    data = path.read_bytes()
    found = record.scan(data, first=first, salt=salt, start=FIRST_POSITION)
    last = next((at for at in reversed(found.positions) if at), 0)
    newest_ms = record.appended_ms(data, last) if last else int(path.stat().st_mtime * 1000)
    return Segment(
        path, first, salt, found.next_offset, found.end_position, newest_ms, positions=found.positions
    ), found


def _read_footer(path: Path, salt: int, first: int) -> tuple[int, int, int] | None:
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END) - _FOOTER.size
        if at < FIRST_POSITION:
            return None
        file.seek(at)
        data = file.read(_FOOTER.size)
    magic, end, end_position, newest_ms, checksum = _FOOTER.unpack(data)
    if magic != b"CQSEALED" or end_position != at or end < first or extend(salt, data[:32]) != checksum:
        return None
    return end, end_position, newest_ms


def header_is_whole(segment: Segment) -> bool:
    """Whether the header is undamaged and says what the name says."""
    with segment.path.open("rb") as file:
        data = file.read(_HEADER.size)
    if len(data) < _HEADER.size:
        return False
    magic, identity, first, _, checksum = _HEADER.unpack(data)
    named = (segment.first, segment.salt)
    return magic == b"CQSPOOL1" and (first, value(identity)) == named and value(data[:_CHECKED]) == checksum
