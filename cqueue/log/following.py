"""Reading partitions on and on: what followers and members of subscriptions have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import NotDone
from cqueue.log.bells import Told
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import Record, in_order
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.protocol.tail import Tail


class Found(NamedTuple):
    """Records that were read, and whether that is all there is for now."""

    records: list[Record]
    is_all: bool


class Following:
    """Some partitions, read up to the horizon again and again.

    spec: the log as it is configured now. told: of whoever wants records early; what is readable beyond the
    horizon is read as well then.
    """

    def __init__(
        self,
        driver: BlockingDriver,
        spec: Callable[[], LogSpec],
        positions: Mapping[int, int],
        *,
        told: Told | None = None,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._merge = Merge(spec(), dict(positions))
        self._told = told
        self._tail = Tail() if told is not None else None
        self._aim: tuple[int, int] | None = None  # (horizon, when it was) until all has been read up to it
        self._is_at_end = False  # all has been read up to some horizon

    @property
    def partitions(self) -> set[int]:
        """Those that are read."""
        return set(self._merge.sources)

    def open(self, partition: int, position: int) -> None:
        """Read this partition as well, or from another position."""
        self._merge.add(self._spec(), partition, position)
        self._is_at_end = False
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

    def read(self) -> Found:
        """What comes next.

        Raises:
            NotDone: Cassandra did not answer; reading again goes on.
        """
        spec, now_us = self._spec(), self._driver.clock.now_us()
        if self._aim is None:  # kept until it is reached: the horizon itself never is
            self._aim = (spec.horizon(now_us), now_us)
        stretches = self._driver.run(self._merge.more(spec, *self._aim))
        found = in_order(stretches or ())
        if self._tail is not None:
            found = self._tail.left(found, self.positions())
        if not self._merge.is_at(self._aim[0]):
            return Found(found, is_all=False)
        self._aim, self._is_at_end = None, True
        if self._told is not None:
            found += self._beyond(self._told.take(), self.partitions, lenient=bool(found))
        return Found(found, is_all=True)

    @property
    def is_told(self) -> bool:
        """Whether `read_told` may find something."""
        return bool(self._told) and self._is_at_end

    def read_told(self) -> Found:
        """What lies beyond the horizon in partitions of which it was told.

        Whoever has not read up to the horizon gets nothing: it comes there soon, and in order.

        Raises:
            NotDone: Cassandra did not answer.
        """
        if self._told is None or not self._is_at_end:
            return Found([], is_all=True)
        told = self._told.take() & self.partitions
        return Found(self._beyond(told, told), is_all=True)

    def _beyond(
        self, told: Collection[int], partitions: Collection[int], *, lenient: bool = False
    ) -> list[Record]:
        """What the tail finds. lenient: nothing if it fails, for the sake of what was found already."""
        if self._tail is None or not partitions:
            return []
        positions = {partition: self.position(partition) for partition in partitions}
        now_us = self._driver.clock.now_us()
        try:
            return self._driver.run(self._tail.read(self._spec(), positions, now_us, told))
        except NotDone:
            if lenient:
                return []
            raise
