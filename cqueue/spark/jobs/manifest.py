"""The manifests of an archive: one for each run that added something, numbered without gaps.

A log that was quiet for half its ttl gets one without files: else, once its ttl has passed, a run could not
tell whether records had come and expired.

A manifest is the run's commit. It says what its files will be called before they get these names, so that
any later run can finish the run; and as only one run can create a manifest of a number, of two runs at
the same time one adds its files and the other none. Files that stand in no manifest belong to nothing.

    <archive>/day=2026-01-31/00000007-00000.parquet     data, which any reader of Parquet finds
    <archive>/_cqueue/manifest-00000007.json            what run 7 added
    <archive>/_cqueue/staging/00000007-…/               what it has written and not yet moved
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from cqueue.errors import BadInput, NotDone, OutcomeUnknown, unknown_if_not_done
from cqueue.spark.jobs.files import CONTROL, Files

FORMAT = 1
STAGING = f"{CONTROL}/staging"
_NAME = re.compile(r"manifest-(\d{8})\.json")


@dataclass(frozen=True, slots=True)
class Part:
    """One data file: where it is written, what it is called then, its day, rows, bytes and SHA-256 in hex."""

    staged: str
    path: str
    day: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The records that one run added: all of a log with `since` <= time < `until`.

    Attributes:
        number: from 1 on.
        log: the log's name, with what tells it from another of that name.
        since: None for the first run: from the earliest record that there was.
        gap: whether records from `since` on may have been forgotten by the log before this run read it.
    """

    number: int
    log: str
    since: datetime | None
    until: datetime
    gap: bool
    parts: tuple[Part, ...] = ()

    def to_json(self) -> str:
        """Return the manifest as it is stored."""
        rows = sum(part.rows for part in self.parts)
        fields = {**asdict(self), "format": FORMAT, "rows": rows}
        times = {"since": self.since and self.since.isoformat(), "until": self.until.isoformat()}
        return json.dumps({**fields, **times}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse a stored manifest.

        Raises:
            BadInput: the text is no manifest, or one of a newer version of this library.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            if found["format"] != FORMAT:
                raise BadInput(f"the manifest has format {found['format']}; this version knows {FORMAT}")
            since = found["since"]
            return cls(
                int(found["number"]),
                str(found["log"]),
                since and datetime.fromisoformat(since),
                datetime.fromisoformat(found["until"]),
                bool(found["gap"]),
                tuple(Part(**part) for part in found["parts"]),
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise BadInput(f"a manifest cannot be read: {exc}") from exc


def load(files: Files) -> list[Manifest]:
    """Load all manifests in order.

    Raises:
        BadInput: one is missing, or cannot be read.
    """
    numbers = [int(found[1]) for name in files.names(CONTROL) if (found := _NAME.fullmatch(name))]
    if numbers != list(range(1, len(numbers) + 1)):
        raise BadInput(f"{files.root} lacks manifests: there are {numbers}")
    return [Manifest.from_json(files.read(_path(number))) for number in numbers]


def commit(files: Files, manifest: Manifest) -> None:
    """Make the run count, and give its files their names.

    Raises:
        NotDone: another run has committed meanwhile; what this one wrote is deleted.
        OutcomeUnknown: the run may count; the next one finishes it, or begins where it began.
    """
    path, text = _path(manifest.number), manifest.to_json()
    if not files.create(path, text) and _stored(files, path) != text:  # else a repeat met its own first try
        for staging in {part.staged.rpartition("/day=")[0] for part in manifest.parts}:
            files.delete(staging)
        raise NotDone(f"another run added to {files.root} meanwhile; this one added nothing. Run it again.")
    with unknown_if_not_done(f"the run is added to {files.root}, and the next one names its files"):
        finish(files, manifest)


def _stored(files: Files, path: str) -> str:
    try:
        return files.read(path)
    except BadInput as exc:
        raise OutcomeUnknown(f"this run or another one added to {files.root}: {exc}. Run it again.") from exc


def finish(files: Files, manifest: Manifest, *, strict: bool = True) -> int:
    """Give files of a committed run their names, where that was not done; return how many.

    Raises:
        BadInput: with `strict`, a file is gone.
    """
    moved = 0
    for part in manifest.parts:
        if files.exists(part.path) or not (strict or files.exists(part.staged)):
            continue
        if files.move(part.staged, part.path):
            moved += 1
        elif strict and not files.exists(part.path):
            raise BadInput(f"{files.full(part.path)} is gone, and its manifest says that it is there")
    return moved


def clear_staging(files: Files, last: int) -> None:
    """Delete the staged files of runs up to this number: those are moved, or will never count.

    What cannot be deleted is left to the next run.
    """
    with suppress(NotDone):
        for name in files.names(STAGING):
            number = name.partition("-")[0]
            if number.isdigit() and int(number) <= last:
                files.delete(f"{STAGING}/{name}")


def _path(number: int) -> str:
    return f"{CONTROL}/manifest-{number:08d}.json"
