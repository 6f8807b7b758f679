"""Damage in a queue's files, and the directory that keeps it for an operator.

A file of `lost/` has the lost offsets in its name and the damaged bytes as its contents. So a listing of the
directory is the report, and an operator deletes a file once it was read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cqueue.runtime import logs
from cqueue.spool.disk import Disk

_log = logs.logger(__name__)
_NAME: Final = re.compile(r"(\d{20})-(\d{20})")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a file. `offsets` are those of the messages that it costs."""

    path: Path
    text: str
    offsets: range = range(0)


class LostRanges:
    """The directory `lost` of a queue. A spool that is open only for reading adds nothing to it."""

    def __init__(self, directory: Path, disk: Disk, *, readonly: bool) -> None:
        self._directory = directory
        self._disk = disk
        self._readonly = readonly

    def add(self, finding: Finding, damaged: bytes = b"") -> None:
        """Keep the damaged bytes under the offsets that they cost, and log the range."""
        path = self._path(finding)
        if self._readonly or path.exists():
            return
        _tell(finding)
        try:
            self._keep(path, damaged)
        except OSError as exc:
            _log.warning("spool_lost_not_kept", path=str(path), error=str(exc))

    def set_aside(self, finding: Finding, payload: bytes) -> None:
        """As `add`, of a record that is whole and of no use: one that is not kept must not be passed over.

        Raises:
            OSError: the disk does not take it.
        """
        path = self._path(finding)
        if not path.exists():
            self._keep(path, payload)
            _tell(finding)

    def _path(self, finding: Finding) -> Path:
        return self._directory / f"{finding.offsets.start:020d}-{finding.offsets.stop:020d}"

    def _keep(self, path: Path, damaged: bytes) -> None:
        self._disk.make_directory(self._directory)
        os.close(self._disk.create(path, damaged))

    def ranges(self) -> list[range]:
        """Return the lost ranges that nobody has deleted yet, in order."""
        if not self._directory.is_dir():
            return []
        names = (_NAME.fullmatch(path.name) for path in sorted(self._directory.iterdir()))
        return [range(int(match[1]), int(match[2])) for match in names if match]


def _tell(finding: Finding) -> None:
    first, end = finding.offsets.start, finding.offsets.stop
    _log.error("spool_lost", path=str(finding.path), first=first, end=end, why=finding.text)
