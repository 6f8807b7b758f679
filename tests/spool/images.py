"""Images of a spool's directory as a crash leaves them, and what may be read out of them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from cqueue.spool import Spool
from cqueue.spool.disk import Disk

TOPIC = "mail"


@dataclass(frozen=True)
class Reading:
    """What an open found: payloads by offset, the ranges that it reported lost, and the end."""

    records: dict[int, bytes]
    lost: list[range]
    end: int

    def reported(self, offset: int) -> bool:
        return any(offset in span for span in self.lost)


class UnsyncedDisk(Disk):
    """A disk that does not wait: recovery changes the same bytes, and a test opens it thousands of times."""

    def sync(self, handle: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def payloads(count: int) -> list[bytes]:
    """Messages of different lengths, each of which says which it is."""
    return [f"{number}:".encode() + b"x" * (number * 7 % 23) for number in range(count)]


def crashed(root: Path, written: list[bytes], **options: object) -> Path:
    """Return the directory of a process that stored these messages and then was gone."""
    image = root.with_name(root.name + "-image")
    with Spool(root, disk_reserve=0, **{"segment_bytes": 4096, **options}) as spool:
        for payload in written:
            spool.append(TOPIC, payload).result(10)
        shutil.copytree(root, image)
    return image


def only_segment(root: Path) -> Path:
    """Return the one segment of the queue."""
    (path,) = root.glob("*/*/*.seg")
    return path


def read_back(root: Path) -> Reading:
    """Open the spool, read everything, and close it."""
    with Spool(root, disk=UnsyncedDisk(), disk_reserve=0, segment_bytes=4096) as spool:
        found = {one.offset: one.payload for one in spool.records(TOPIC)}
        (status,) = spool.status() or [None]
        return Reading(found, status.lost if status else [], status.end if status else 0)


def check(reading: Reading, written: list[bytes], *, synced: int) -> None:
    """Raise unless what was synced is there or reported, and everything that is there was written.

    Offsets that are missing must be reported as lost; only the unsynced end may be cut without.
    """
    for offset, payload in reading.records.items():
        assert written[offset] == payload, f"offset {offset} was invented: {payload!r}"
    for offset in range(max(synced, reading.end)):
        known = offset in reading.records or reading.reported(offset)
        assert known, f"offset {offset} is missing and not reported; the end is {reading.end}"
