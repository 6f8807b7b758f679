"""Reading partitions on and on: what followers and members of subscriptions have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from cqueue.errors import NotDone
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import Record, in_order
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.protocol.tail import Tail
from cqueue.protocol.spec import Proto
from cqueue.store.operations import Now


class Found(NamedTuple):
    """Records that were read, and whether that is all there is for now."""

    records: list[Record]
    is_all: bool


class Following:
    """Some partitions, read up to the horizon again and again; with `early`, beyond it as well.

    is_at_end: all has been read up to some horizon, and beyond it there may be more.
    """

    def __init__(self, spec: LogSpec, positions: Mapping[int, int], *, early: bool = False) -> None:
        self.is_at_end = False
        self._merge = Merge(spec, dict(positions))
        self._tail = Tail() if early else None
        self._aim: tuple[int, int] | None = None  # (horizon, when it was) until all has been read up to it

    def __contains__(self, partition: int) -> bool:
        return partition in self._merge.sources

    def open(self, spec: LogSpec, partition: int, position: int) -> None:
        """Read this partition as well, or from another position."""
        self._merge.add(spec, partition, position)
        self.is_at_end = False
        if self._tail is not None:
            self._tail.forget(partition)

    def close(self, partition: int) -> None:
        """Read it no more."""
        del self._merge.sources[partition]
        if self._tail is not None:
            self._tail.forget(partition)

    def position(self, partition: int) -> int:
        """Up to where all is stable and has been handed out."""
        return self._merge.sources[partition].handed_out

    def positions(self) -> dict[int, int]:
        """The position of every partition."""
        return {partition: self.position(partition) for partition in self._merge.sources}

    def read(self, spec: LogSpec, told: Collection[int] = ()) -> Proto[Found]:
        """What comes next. told: partitions that are said to have something beyond the horizon.

        Raises:
            NotDone: Cassandra did not answer; reading again goes on.
        """
        if self._aim is None:  # kept until it is reached: the horizon itself never is
            now_us = yield from Now()
            self._aim = (spec.horizon(now_us), now_us)
        found = in_order((yield from self._merge.more(spec, *self._aim)) or ())
        if self._tail is not None:
            found = self._tail.left(found, self.positions())
        if not self._merge.is_at(self._aim[0]):
            return Found(found, is_all=False)
        self._aim, self.is_at_end = None, True
        try:
            found += yield from self._beyond(spec, self.positions(), told)
        except NotDone:
            if not found:
                raise
        return Found(found, is_all=True)

    def read_told(self, spec: LogSpec, told: Collection[int]) -> Proto[Found]:
        """What lies beyond the horizon in partitions that are said to have something there.

        Whoever has not read up to the horizon gets nothing: it comes there soon, and in order.

        Raises:
            NotDone: Cassandra did not answer.
        """
        some = [partition for partition in told if partition in self and self.is_at_end]
        positions = {partition: self.position(partition) for partition in some}
        return Found((yield from self._beyond(spec, positions, told)), is_all=True)

    def _beyond(
        self, spec: LogSpec, positions: Mapping[int, int], told: Collection[int]
    ) -> Proto[list[Record]]:
        if self._tail is None or not positions:
            return []
        now_us = yield from Now()
        return (yield from self._tail.read(spec, positions, now_us, told))
