"""All servers are started and warmed up; then the rounds go in turn.

The pace of a virtual machine changes from minute to minute, by more than the peers differ. So each of them
has its first round in the same minutes as the others, and its second one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.peers.catalog import Entry
from benchmarks.peers.workload import (
    Latency,
    Peer,
    PeerError,
    Round,
    Row,
    SelfMeasuring,
    Workload,
    latency_of,
    summarize,
)

Say = Callable[[str], None]

_NOT_A_DISK = {"tmpfs", "ramfs", "devtmpfs"}


def measure_all(entries: Iterable[Entry], workload: Workload, where: Path, say: Say) -> list[Row]:
    """Measure all peers; return a row for each, also for those that are skipped or fail."""
    stands = [Stand(entry, workload, where, say) for entry in entries]
    try:
        for stand in stands:
            stand.go("start and warm up", stand.begin)
        for number in range(workload.rounds):
            # The order changes from round to round: a stand may leave work behind that slows the next one.
            for stand in stands if number % 2 == 0 else reversed(stands):
                stand.go(f"round {number + 1} of {workload.rounds}", stand.round)
        for stand in stands:
            stand.go("latency", stand.latency)
        return [stand.row() for stand in stands]
    finally:
        _end(stands)


def _end(stands: list[Stand]) -> None:
    """Stop all of them, whatever comes between."""
    interruption: BaseException | None = None
    for stand in reversed(stands):
        try:
            stand.end()
        except BaseException as exc:  # noqa: BLE001 - raised again below
            interruption = exc
            stand.end()
    if interruption is not None:
        raise interruption


class Stand:
    """A peer that is measured. One that fails is left out from then on, and the others go on."""

    def __init__(self, entry: Entry, workload: Workload, where: Path, say: Say) -> None:
        self._entry = entry
        self._workload = workload
        self._where = where
        self._say = say
        self._messages = workload.few if entry.slow else workload.messages
        self._directory: Path | None = None
        self._peer: Peer | SelfMeasuring | None = None
        self._versions: dict[str, str] = {}
        self._rounds: list[Round] = []
        self._latency: Latency | None = None
        self._missing = entry.missing()
        self._failure = ""
        if self._missing:
            say(f"{entry.key}: skipped; to measure it: {self._missing}")

    def go(self, what: str, step: Callable[[], None]) -> None:
        """Take a step, if those before it went well."""
        if self._missing or self._failure:
            return
        self._say(f"{self._entry.key}: {what}")
        try:
            step()
        except Exception as exc:  # noqa: BLE001 - one that fails must not cost the figures of the others
            self._failure = str(exc) or type(exc).__name__
            self._say(f"{self._entry.key}: failed: {self._failure}")

    def begin(self) -> None:
        """Start the server, and warm it up."""
        self._directory = Path(tempfile.mkdtemp(prefix=f"cqueue-peers-{self._entry.key}-", dir=self._where))
        self._directory.chmod(0o755)  # PostgreSQL runs as another user
        self._peer = peer = self._entry.make(self._directory)
        peer.start()
        if isinstance(peer, SelfMeasuring):
            peer.ready()
            return
        left = peer.warm_up
        while left > 0:
            some = min(left, self._workload.messages)
            peer.enqueue(some, self._workload.size)
            peer.drain(some)
            left -= some

    def round(self) -> None:
        """Send and drain all messages of one round."""
        peer, messages = self._peer, self._messages
        if isinstance(peer, SelfMeasuring):
            self._rounds.append(peer.round(self._workload))
        elif peer is not None:
            took_s = peer.enqueue(messages, self._workload.size), peer.drain(messages)
            self._rounds.append(Round(*[messages / one_s for one_s in took_s]))

    def latency(self) -> None:
        """Send one by one while a consumer waits; and ask for the versions."""
        peer, of = self._peer, self._workload
        if isinstance(peer, SelfMeasuring):
            self._latency = peer.measured_latency(of)
        elif peer is not None:
            self._latency = latency_of(peer.latency(of.rate, of.seconds, of.size))
        if peer is not None:
            self._versions = peer.versions()

    def row(self) -> Row:
        """Return the figures of the peer, or why there are none."""
        key, title, peer = self._entry.key, self._entry.title, self._peer
        if peer is None or self._latency is None or self._failure:
            failed = not self._missing
            return Row(key=key, title=title, reason=self._missing or self._failure, failed=failed)
        return Row(
            key=key,
            title=title,
            durability=peer.durability,
            client=peer.client,
            versions=self._versions,
            figures=summarize(self._messages, self._rounds, self._latency),
        )

    def end(self) -> None:
        """Stop the server, delete its data."""
        try:
            if self._peer is not None:
                self._peer.stop()
        except Exception as exc:  # noqa: BLE001 - the others are to be stopped as well
            self._say(f"{self._entry.key}: could not be stopped: {exc}")
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


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
