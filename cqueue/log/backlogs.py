"""Keep records that wait for listeners, in order by partition; a failure delays only its own partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from cqueue.log.records import LogRecord
from cqueue.store.log_operations import PositionRow


@dataclass(slots=True)
class Waiting:
    """A record that waits, and how many listeners are done with it (`stage`).

    record: None once the record is done, or if no listener wants it.
    """

    id: int
    record: LogRecord | None
    stage: int = 0
    attempts: int = 0
    reason: str = ""  # why the record goes to the dead-letter log, once that is decided


@dataclass(slots=True)
class PartitionBacklog:
    """A partition that this member owns, and its waiting records.

    row: the stored position. done: the last id that is done; with nothing waiting, all up to it is.
    queued: the position up to which all records were queued here. A Ctrl-C may lose records that were read
    and not queued yet, so no position is written beyond it.
    """

    row: PositionRow
    done: int
    queued: int
    waiting: deque[Waiting] = field(default_factory=deque)
    until_s: float = 0.0  # after a failure: when the next attempt may begin
    alone_upto: int = 0  # after a failure: records up to this id are handed out one by one

    @property
    def partition(self) -> int:
        """Return the partition's number."""
        return self.row.partition

    def passed(self) -> None:
        """Remove the records at the front that are done or not wanted."""
        while self.waiting and self.waiting[0].record is None:
            self.done = max(self.done, self.waiting.popleft().id)

    def upto(self) -> int:
        """Return the highest position below all waiting records, at most `done`."""
        return min(self.done, min((one.id for one in self.waiting), default=self.done + 1) - 1)

    def chunk(self, size: int) -> list[Waiting]:
        """Return the next records to hand out together, in order."""
        chunk: list[Waiting] = []
        for one in self.waiting:
            if one.record is not None:
                chunk.append(one)
            if len(chunk) == size or (chunk and chunk[0].id <= self.alone_upto):
                break
        return chunk

    def finish(self, chunk: Iterable[Waiting]) -> None:
        """Note that these records are done."""
        for one in chunk:
            one.record = None
        self.passed()


class PartitionBacklogs:
    """The owned partitions of a member, served in turn."""

    def __init__(self) -> None:
        self.by_partition: dict[int, PartitionBacklog] = {}
        self._turns: deque[int] = deque()

    def __len__(self) -> int:
        """Return how many records wait."""
        return sum(len(backlog.waiting) for backlog in self.by_partition.values())

    def open(self, row: PositionRow) -> None:
        """Add a partition, or begin it again from another position."""
        self.by_partition[row.partition] = PartitionBacklog(row, row.position, row.position)
        if row.partition not in self._turns:
            self._turns.append(row.partition)

    def close(self, partition: int) -> None:
        """Remove a partition with its waiting records."""
        del self.by_partition[partition]
        self._turns.remove(partition)

    def put(self, partition: int, id_: int, record: LogRecord | None) -> None:
        """Add a record behind all that wait. record: None if no listener wants it."""
        backlog = self.by_partition.get(partition)
        if backlog is not None:
            backlog.waiting.append(Waiting(id_, record))
            if len(backlog.waiting) == 1:
                backlog.passed()

    def next(self, now_s: float) -> PartitionBacklog | None:
        """Return the next partition with records to hand out; the search continues behind it next time."""
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            self._turns.rotate(-1)
            backlog = self.by_partition[partition]
            if backlog.waiting and backlog.until_s <= now_s:
                return backlog
        return None

    def next_s(self) -> float | None:
        """Return when the first partition with waiting records may go on; None if none has any."""
        return min(
            (backlog.until_s for backlog in self.by_partition.values() if backlog.waiting), default=None
        )
