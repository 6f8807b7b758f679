"""Noticing that code has changed, by looking: sizes and times of the `.py` files under a directory.

Looking twice a second costs less than a dependency would, and works on file systems that tell nobody
(containers with mounted source trees).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
