"""Records that wait for listeners, in the order of each partition; one that failed holds up its own only."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from cqueue.log.records import LogRecord
from cqueue.store.subscriptions import PositionRow


@dataclass(slots=True)
class Waiting:
    """A record and how many listeners are done with it. record: None for one that nobody wants."""

    id: int
    record: LogRecord | None
    stage: int = 0
    attempts: int = 0
    reason: str = ""  # why it is to go to the dead-letter log, once that is decided


@dataclass(slots=True)
class Lane:
    """A partition that this member owns. row: as it is stored; done: up to where all is done."""

    row: PositionRow
    done: int
    waiting: deque[Waiting] = field(default_factory=deque)
    until_s: float = 0.0  # after a failure: not before
    alone_upto: int = 0  # after a failure: up to this id records go one by one

    @property
    def partition(self) -> int:
        """Its number."""
        return self.row.partition

    def passed(self) -> None:
        """Let go of what is done, or not wanted, at the front."""
        while self.waiting and self.waiting[0].record is None:
            self.done = max(self.done, self.waiting.popleft().id)

    def upto(self) -> int:
        """Up to where nothing waits, at most to the last record that is done."""
        return min(self.done, min((one.id for one in self.waiting), default=self.done + 1) - 1)

    def chunk(self, size: int) -> list[Waiting]:
        """The next records to hand out together, in order."""
        chunk: list[Waiting] = []
        for one in self.waiting:
            if one.record is not None:
                chunk.append(one)
            if len(chunk) == size or (chunk and chunk[0].id <= self.alone_upto):
                break
        return chunk

    def finish(self, chunk: Iterable[Waiting]) -> None:
        """They are done."""
        for one in chunk:
            one.record = None
        self.passed()


class Lanes:
    """The lanes of a member, each served in turn."""

    def __init__(self) -> None:
        self.by_partition: dict[int, Lane] = {}
        self._turns: deque[int] = deque()

    def __len__(self) -> int:
        """How many records wait."""
        return sum(len(lane.waiting) for lane in self.by_partition.values())

    def open(self, row: PositionRow) -> None:
        """Begin with a partition, or go on in it from another position."""
        self.by_partition[row.partition] = Lane(row, row.position)
        if row.partition not in self._turns:
            self._turns.append(row.partition)

    def close(self, partition: int) -> None:
        """Forget a partition and what waits in it."""
        del self.by_partition[partition]
        self._turns.remove(partition)

    def put(self, partition: int, id_: int, record: LogRecord | None) -> None:
        """One more record, after all that wait."""
        lane = self.by_partition.get(partition)
        if lane is not None:
            lane.waiting.append(Waiting(id_, record))
            if len(lane.waiting) == 1:
                lane.passed()

    def next(self, now_s: float) -> Lane | None:
        """A lane with something to do; the one after it is the first to be asked next time."""
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            self._turns.rotate(-1)
            lane = self.by_partition[partition]
            if lane.waiting and lane.until_s <= now_s:
                return lane
        return None

    def next_s(self) -> float | None:
        """When the first lane that waits after a failure goes on."""
        return min((lane.until_s for lane in self.by_partition.values() if lane.waiting), default=None)

    def among(self, partitions: Collection[int]) -> list[Lane]:
        """The lanes of these partitions."""
        return [self.by_partition[each] for each in sorted(partitions)]
