"""A queue's files after a crash: its segments, and which offsets are damaged, missing or torn.

Nothing here changes a file. `StoredQueue` does, and may be cut off at any point and begin again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from cqueue.spool import segment as segments
from cqueue.spool.damage import Finding
from cqueue.spool.record import Scan
from cqueue.spool.segment import Segment


def examine(directory: Path) -> list[tuple[Segment, Scan | None]]:
    """Return the segments in the order of their offsets, each with its scan if it has no footer.

    Files of other names are left alone.
    """
    found = []
    names = directory.iterdir() if directory.is_dir() else ()
    for path in sorted(path for path in names if segments.NAME.fullmatch(path.name)):
        try:
            found.append(segments.load(path))
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


def torn_bytes(segment: Segment, scan: Scan) -> int:
    """Return how many bytes an unsealed segment has behind its last record, without zeros at their end."""
    with segment.path.open("rb") as file:
        file.seek(scan.end_position)
        return len(file.read().rstrip(b"\0"))
