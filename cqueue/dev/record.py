"""The record of a cluster in its directory, and the lock that lets one command at a time change it."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from cqueue.dev.paths import command
from cqueue.dev.settings import Settings
from cqueue.errors import ConfigError, DevError

RECORD = "cluster.json"
LOCK = "lock"

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one cluster, from its first start to `wipe`."""

    cluster_name: str  # unique, so that clusters never gossip with each other
    addresses: tuple[str, ...]  # of node 1, 2, …
    settings: Settings
    formed: bool = False  # True once a start has succeeded; before that there is nothing to keep


def load(directory: Path) -> Record | None:
    """The cluster of this directory, None if there is none.

    Raises:
        DevError: the record cannot be read.
    """
    path = directory / RECORD
    try:
        stored = json.loads(path.read_text())
        return Record(
            cluster_name=stored["cluster_name"],
            addresses=tuple(stored["addresses"]),
            settings=Settings(**stored["settings"]),
            formed=stored["formed"],
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as exc:
        raise DevError(f"{path} cannot be read: {exc}. {command('wipe', directory)} starts afresh.") from exc


def save(directory: Path, record: Record) -> None:
    """Store the record; a reader sees the old or the new one, never half of it."""
    path = directory / RECORD
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(record), indent=1))
    fresh.replace(path)


@contextmanager
def locked(directory: Path, limit: timedelta) -> Iterator[None]:
    """Let no other command change the cluster of `directory` meanwhile; the lock dies with us.

    Raises:
        DevError: another command keeps it beyond `limit`, or the directory cannot be written, now or later.
    """
    deadline = time.monotonic() + limit.total_seconds()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / LOCK).open("a") as file:
            while not _try_lock(file.fileno()):
                if time.monotonic() >= deadline:
                    raise DevError(f"Another `cqueue` command works in {directory}. Wait for it to end.")
                time.sleep(_POLL_SECONDS)
            yield
    except OSError as exc:
        raise DevError(
            f"Cannot work in {directory}: {exc}. Mend that, or choose another place with --dir."
        ) from exc


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
