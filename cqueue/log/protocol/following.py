"""Read partitions for ever: the part that followers and members of subscriptions share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from cqueue.errors import NotDone
from cqueue.log.protocol.early_records import EarlyRecords
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import Record, Source, in_order
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.spec import Proto
from cqueue.store.operations import Now


class ReadResult(NamedTuple):
    """Records that were read. is_all: there are no others for now."""

    records: list[Record]
    is_all: bool


class Following:
    """Some partitions, read up to the stable horizon again and again.

    beyond_horizon: read beyond the horizon as well. is_at_end: the last read reached the horizon of its time.
    early: what `early` gave where this one goes on.
    """

    def __init__(
        self,
        spec: LogSpec,
        positions: Mapping[int, int],
        *,
        beyond_horizon: bool = False,
        early: Mapping[int, list[int]] = MappingProxyType({}),
    ) -> None:
        self.is_at_end = False
        self._merge = Merge(spec, dict(positions))
        self._held: dict[int, Source] = {}
        self._early = EarlyRecords(early) if beyond_horizon else None
        self._goal: tuple[int, int] | None = None  # (horizon, its time) that a read is still on the way to

    def __contains__(self, partition: int) -> bool:
        return partition in self._merge.sources or partition in self._held

    @property
    def reading(self) -> list[int]:
        """Return the partitions that are not on hold."""
        return list(self._merge.sources)

    def open(self, spec: LogSpec, partition: int, position: int) -> None:
        """Add a partition, or read it from another position."""
        self._held.pop(partition, None)
        self._merge.add(spec, partition, position)
        self.is_at_end = False
        if self._early is not None:
            self._early.forget(partition)

    def close(self, partition: int) -> None:
        """Stop reading a partition."""
        del (self._held if partition in self._held else self._merge.sources)[partition]
        if self._early is not None:
            self._early.forget(partition)

    def hold(self, partitions: Collection[int]) -> None:
        """Read these partitions no further for now, and go on where others were on hold."""
        for partition in self._held.keys() - set(partitions):
            self._merge.sources[partition] = self._held.pop(partition)
            self.is_at_end = False
        for partition in self._merge.sources.keys() & set(partitions):
            self._held[partition] = self._merge.sources.pop(partition)

    def position(self, partition: int) -> int:
        """Return the position up to which all records are stable and were handed out."""
        return (self._held if partition in self._held else self._merge.sources)[partition].handed_out

    def positions(self) -> dict[int, int]:
        """Return the position of every partition."""
        return {partition: self.position(partition) for partition in (*self._merge.sources, *self._held)}

    def early(self) -> dict[int, list[int]]:
        """Return the ids beyond the positions that were handed out, by partition."""
        return {} if self._early is None else self._early.given()

    def read(self, spec: LogSpec, hinted: Collection[int] = ()) -> Proto[ReadResult]:
        """Return the next records. hinted: partitions in which an append beyond the horizon was notified.

        Raises:
            NotDone: Cassandra did not answer; the next call goes on.
        """
        if self._goal is None:  # fixed until it is reached, because the horizon itself moves on
            now_us = yield from Now()
            self._goal = (spec.horizon(now_us), now_us)
        found = in_order((yield from self._merge.more(spec, *self._goal)) or ())
        if self._early is not None:
            found = self._early.left(found, self.positions())
        if not self._merge.is_at(self._goal[0]):
            return ReadResult(found, is_all=False)
        self._goal, self.is_at_end = None, True
        try:
            found += yield from self._beyond(spec, self.reading, hinted)
        except NotDone:
            if not found:
                raise
        return ReadResult(found, is_all=True)

    def read_hinted(self, spec: LogSpec, hinted: Collection[int]) -> Proto[ReadResult]:
        """Return records beyond the horizon in notified partitions.

        A reader that has not reached the horizon gets nothing: it will read these records soon, in order.

        Raises:
            NotDone: Cassandra did not answer.
        """
        some = [partition for partition in hinted if partition in self._merge.sources and self.is_at_end]
        return ReadResult((yield from self._beyond(spec, some, hinted)), is_all=True)

    def _beyond(
        self, spec: LogSpec, partitions: Collection[int], hinted: Collection[int]
    ) -> Proto[list[Record]]:
        if self._early is None or not partitions:
            return []
        positions = {partition: self.position(partition) for partition in partitions}
        now_us = yield from Now()
        return (yield from self._early.read(spec, positions, now_us, hinted))
