"""Measure one after the other: never two servers at a time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.peers.catalog import Entry
from benchmarks.peers.workload import Figures, Peer, PeerError, Row, SelfMeasuring, Workload, summarize

Say = Callable[[str], None]

_NOT_A_DISK = {"tmpfs", "ramfs", "devtmpfs"}


def measure_all(entries: Iterable[Entry], workload: Workload, where: Path, say: Say) -> list[Row]:
    """A row for each, also for those that are skipped or fail."""
    return [_row(entry, workload, where, say) for entry in entries]


def _row(entry: Entry, workload: Workload, where: Path, say: Say) -> Row:
    if todo := entry.missing():
        say(f"{entry.key}: skipped; to measure it: {todo}")
        return Row(key=entry.key, title=entry.title, reason=todo)
    directory = Path(tempfile.mkdtemp(prefix=f"cqueue-peers-{entry.key}-", dir=where))
    directory.chmod(0o755)  # PostgreSQL runs as another user
    try:
        return _measured(entry, workload, directory, lambda what: say(f"{entry.key}: {what}"))
    except Exception as exc:  # noqa: BLE001 - one that fails must not cost the figures of the others
        say(f"{entry.key}: failed: {exc}")
        reason = str(exc) or type(exc).__name__
        return Row(key=entry.key, title=entry.title, reason=reason, failed=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measured(entry: Entry, workload: Workload, directory: Path, say: Say) -> Row:
    peer = entry.make(directory)
    try:
        say("start")
        peer.start()
        figures = _own(peer, workload, say) if isinstance(peer, SelfMeasuring) else _ours(peer, workload, say)
        return Row(
            key=entry.key,
            title=entry.title,
            durability=peer.durability,
            client=peer.client,
            versions=peer.versions(),
            figures=figures,
        )
    finally:
        peer.stop()


def _own(peer: SelfMeasuring, workload: Workload, say: Say) -> Figures:
    say("its own benchmarks")
    return peer.measure(workload)


def _ours(peer: Peer, workload: Workload, say: Say) -> Figures:
    say("warm up")
    left = peer.warm_up
    while left > 0:
        some = min(left, workload.messages)
        peer.enqueue(some, workload.size)
        peer.drain(some)
        left -= some
    enqueues_s, drains_s = [], []
    for number in range(1, workload.rounds + 1):
        say(f"round {number} of {workload.rounds}")
        enqueues_s.append(peer.enqueue(workload.messages, workload.size))
        drains_s.append(peer.drain(workload.messages))
    say("latency")
    latencies_s = peer.latency(workload.rate, workload.seconds, workload.size)
    return summarize(workload.messages, enqueues_s, drains_s, latencies_s)


def file_system(path: Path) -> str:
    """The type of the file system that holds a path, e.g. ext4.

    Raises:
        PeerError: it is memory, where a sync costs nothing.
    """
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holders = [(point, kind) for point, kind in mounts if path.resolve().is_relative_to(point)]
    _, kind = max(holders, key=lambda holder: len(holder[0]), default=("", "unknown"))
    if kind in _NOT_A_DISK:
        raise PeerError(f"{path} is in memory ({kind}), where a sync costs nothing: name a disk with --dir")
    return kind
