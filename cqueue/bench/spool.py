"""The spool beside persist-queue and SQLite, at each durability, and beside the disk itself.

All of them append the same messages to the same disk, in turn, round after round. The floor is one file with
nothing but the bytes: `write`, and `fdatasync` where the others sync.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, Final

from cqueue._version import __version__
from cqueue.bench import host
from cqueue.bench.setup import Progress, seconds_of, silent
from cqueue.runtime import process
from cqueue.spool import Spool

TOPIC: Final = "bench"
TOGETHER: Final = 64
"""Messages of one sync where they are stored together."""
AHEAD: Final = 64
"""Appends under way where they do not wait for the disk."""
ONES: Final = 300
"""Messages that are synced one by one, of a round: each waits for the disk."""
LOOK_S: Final = 0.0005
"""Seconds of each sleep of the thread that is watched for stalls."""
STALL_S: Final = 2.0
BUSY: Final = 1000
"""Messages every 10 ms while it is watched."""
ROUNDS: Final = 5

Run = Callable[[Path, list[bytes]], None]
"""Appends messages in a new directory, and returns when they are as durable as they get."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure.

    messages: of one round, where several are synced together. size: bytes of one. directory: on the disk.
    """

    messages: int = 100_000
    size: int = 100
    rounds: int = ROUNDS
    directory: Path = Path("/var/tmp")  # nosec B108  # noqa: S108 - only a parent; not /tmp, which is memory on many machines


def spool(asked: Asked, progress: Progress = silent) -> dict[str, Any]:
    """Messages a second of each at each durability, recovery, and the longest stall: medians."""
    began = host.cpu_time()
    runs = dict(_runs())
    found: dict[str, list[float]] = {name: [] for name in runs}
    recovered: list[float] = []
    stalls: dict[str, list[float]] = {"idle": [], "flushing": []}
    body = bytes(asked.size)
    for turn in range(asked.rounds):
        for name, run in runs.items():
            found[name].append(_timed(asked.directory, run, [body] * _count(name, asked)))
        recovered.append(_recovery(asked.directory, [body] * asked.messages))
        stalls["idle"].append(_stall_ms(asked.directory, None))
        stalls["flushing"].append(_stall_ms(asked.directory, [body] * BUSY))
        progress((turn + 1) / asked.rounds)
    rates: dict[str, dict[str, float]] = {}
    for name, values in found.items():
        durability, _, of = name.partition(" ")
        rates.setdefault(durability, {})[of] = round(median(values), 1)
    return {
        "bench": "spool",
        **{f"{name}_per_s": values for name, values in rates.items()},
        "recovered_per_s": round(median(recovered), 1),
        "stall_ms": {name: round(median(values), 2) for name, values in stalls.items()},
        "rounds": asked.rounds,
        "messages": asked.messages,
        "size": asked.size,
        "version": __version__,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "client_cores": process.usable_cores(),
        "stolen_percent": host.stolen_percent(began, host.cpu_time()),
        **({} if _has_peer() else {"missing": "persist-queue: pip install persist-queue"}),
    }


def _runs() -> Iterator[tuple[str, Run]]:
    """By durability and name; what is compared stands together, so that both meet the same minute."""
    for name, together, ahead in (("each", 1, AHEAD), (f"every-{TOGETHER}", TOGETHER, 1)):
        yield f"{name} disk", partial(_to_disk, together=together)
        yield f"{name} spool", partial(_to_spool, fsync="always", together=together)
        yield f"{name} spool-ahead", partial(_to_spool, fsync="always", together=together, ahead=ahead)
        yield f"{name} sqlite", partial(_to_sqlite, synchronous="FULL", together=together)
        if _has_peer():
            yield f"{name} persist-queue", partial(_to_peer, together=together)
    for name, fsync, synchronous in (("interval", "interval:100ms", "NORMAL"), ("os", "os", "OFF")):
        yield f"{name} disk", partial(_to_disk, together=None)
        yield f"{name} spool", partial(_to_spool, fsync=fsync, together=TOGETHER, ahead=AHEAD)
        yield f"{name} sqlite", partial(_to_sqlite, synchronous=synchronous, together=TOGETHER)
        if _has_peer():
            yield f"{name} persist-queue", _to_peer_files


def _count(name: str, asked: Asked) -> int:
    """Return the messages of a round: fewer where they are slow."""
    if name.startswith("each"):
        return ONES
    return max(1, asked.messages // 10) if name.endswith("persist-queue") else asked.messages


def _timed(parent: Path, run: Run, bodies: list[bytes]) -> float:
    """Messages a second."""
    with _directory(parent) as directory:
        return len(bodies) / seconds_of(run, directory, bodies)


@contextmanager
def _directory(parent: Path) -> Iterator[Path]:
    with TemporaryDirectory(dir=parent, prefix="cqueue-bench-") as name:
        yield Path(name)


# ── what is compared ──


def _to_disk(directory: Path, bodies: list[bytes], together: int | None) -> None:
    """The floor: bytes into a file that has its space. together: messages of one sync; None: of none."""
    step = together or TOGETHER
    file = os.open(directory / "file", os.O_CREAT | os.O_WRONLY)
    try:
        os.posix_fallocate(file, 0, max(1, sum(map(len, bodies))))
        os.fsync(file)
        for start in range(0, len(bodies), step):
            os.write(file, b"".join(bodies[start : start + step]))
            if together:
                os.fdatasync(file)
    finally:
        os.close(file)


def _to_spool(directory: Path, bodies: list[bytes], fsync: str, together: int, ahead: int = 0) -> None:
    """Append `together` messages at a time; wait for each append when `ahead` others have begun."""
    with Spool(directory / "spool", fsync=fsync) as target:
        pending = deque[Any]()
        for start in range(0, len(bodies), together):
            some = bodies[start : start + together]
            pending.append(target.append_many(TOPIC, some) if together > 1 else target.append(TOPIC, *some))
            while len(pending) > ahead:
                pending.popleft().result()
        for future in pending:
            future.result()


def _to_sqlite(directory: Path, bodies: list[bytes], synchronous: str, together: int) -> None:
    """A table, with the write-ahead log; FULL syncs it at each commit, NORMAL at checkpoints, OFF never."""
    with closing(sqlite3.connect(directory / "db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={synchronous}")
        db.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, body BLOB)")
        for start in range(0, len(bodies), together):
            db.execute("BEGIN")
            db.executemany(
                "INSERT INTO queue (body) VALUES (?)", [(body,) for body in bodies[start : start + together]]
            )
            db.execute("COMMIT")


def _to_peer(directory: Path, bodies: list[bytes], together: int) -> None:
    """Append to persist-queue on SQLite, which syncs at each commit; commit every `together` messages."""
    from persistqueue import FIFOSQLiteQueue  # noqa: PLC0415 - a peer; only if it is installed

    queue = FIFOSQLiteQueue(str(directory / "peer"), auto_commit=together == 1)
    try:
        for place, body in enumerate(bodies, 1):
            queue.put(body)
            if together > 1 and place % together == 0:
                queue.task_done()
        if together > 1:
            queue.task_done()
    finally:
        queue.close()


def _to_peer_files(directory: Path, bodies: list[bytes]) -> None:
    """Append to persist-queue on files, which flushes each put and syncs none."""
    from persistqueue import Queue  # noqa: PLC0415 - as above

    queue = Queue(str(directory / "peer"))
    for body in bodies:
        queue.put(body)


def _has_peer() -> bool:
    return importlib.util.find_spec("persistqueue") is not None


# ── the spool alone ──


def _recovery(parent: Path, bodies: list[bytes]) -> float:
    """Records a second of an open that has to read all of them, as after a crash without its index."""
    with _directory(parent) as directory:
        _to_spool(directory, bodies, "os", TOGETHER)
        for index in (directory / "spool").rglob("index"):
            index.unlink()
        begin = time.perf_counter()
        with Spool(directory / "spool") as target:
            if len(target.pull(TOPIC, 0, len(bodies) - 1, 1)) != 1:
                raise AssertionError("the last record was not read back")
            return len(bodies) / (time.perf_counter() - begin)


def _stall_ms(parent: Path, bodies: list[bytes] | None) -> float:
    """The longest time by which a thread that wants to run is late, while another one appends and syncs.

    bodies: appended every 10 ms; None: nothing is, which shows what the machine does to it.
    """
    ended = Event()
    with (
        _directory(parent) as directory,
        Spool(directory / "spool", fsync="interval:100ms") as target,
        ThreadPoolExecutor(1) as pool,
    ):
        writer = pool.submit(_append_until, target, bodies, ended)
        try:
            longest_s = _longest_gap_s(STALL_S)
        finally:
            ended.set()
        writer.result()
        return longest_s * 1000


def _append_until(target: Spool, bodies: list[bytes] | None, ended: Event) -> None:
    """Append until the end; what could not be appended raises."""
    pending = deque[Any]()
    while not ended.wait(0.01):
        if bodies is not None:
            pending.append(target.append_many(TOPIC, bodies))
        while pending and pending[0].done():
            pending.popleft().result()
    for future in pending:
        future.result()


def _longest_gap_s(seconds: float) -> float:
    longest_s, before = 0.0, time.perf_counter()
    end = before + seconds
    while before < end:
        time.sleep(LOOK_S)
        now = time.perf_counter()
        longest_s, before = max(longest_s, now - before - LOOK_S), now
    return longest_s
