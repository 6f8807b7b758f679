"""A queue's files after a crash: its segments, and which offsets are damaged, missing or torn.

Nothing here changes a file. `StoredQueue` does, and may be cut off at any point and begin again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cqueue.spool import segment as segments
from cqueue.spool.damage import Finding
from cqueue.spool.record import Scan
from cqueue.spool.segment import Segment


@dataclass(frozen=True, slots=True)
class Found:
    """A segment, and the scan of one that has no footer."""

    segment: Segment
    scan: Scan | None


def examine(directory: Path) -> list[Found]:
    """Read what all segments of the queue say, in the order of their offsets."""
    found = []
    for path in sorted(directory.glob("*.seg")):
        try:
            found.append(Found(*segments.load(path)))
        except FileNotFoundError:  # deleted by the process that writes, while this one only looks
            continue
    return found


def gaps(found: Sequence[Segment], progress: int) -> list[Finding]:
    """Return the offsets that no segment has, though they are not consumed."""
    if not found:
        return []
    between = [(left, left.end, right.first) for left, right in pairwise(found)]
    missing = [(found[0], progress, found[0].first), *between]
    return [
        Finding(segment.path, "no segment has these offsets", range(max(first, progress), end))
        for segment, first, end in missing
        if end > max(first, progress)
    ]


def damage(segment: Segment, scan: Scan) -> list[tuple[Finding, bytes]]:
    """Return what the scan found damaged, with the bytes."""
    data = segment.path.read_bytes() if scan.damage else b""
    return [
        (
            Finding(segment.path, f"damaged at bytes {one.start} to {one.stop}", one.offsets),
            data[one.start : one.stop],
        )
        for one in scan.damage
    ]


def torn_tail(found: Found) -> Finding | None:
    """Return what an unsealed segment has behind its last record, unless it is zeros only."""
    if found.scan is None:
        return None
    with found.segment.path.open("rb") as file:
        file.seek(found.scan.end_position)
        torn = len(file.read().rstrip(b"\0"))
    if not torn:
        return None
    return Finding(found.segment.path, f"{torn} bytes behind offset {found.segment.end - 1} are no record")
