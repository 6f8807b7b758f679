"""Reading partitions on and on: what followers and members of subscriptions have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import NotDone
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import Record, in_order
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.protocol.tail import Tail


class Found(NamedTuple):
    """Records that were read, and whether that is all there is for now."""

    records: list[Record]
    is_all: bool


class Following:
    """Some partitions, read up to the horizon again and again; with a tail, beyond it as well.

    spec: the log as it is configured now.
    """

    def __init__(
        self,
        driver: BlockingDriver,
        spec: Callable[[], LogSpec],
        positions: Mapping[int, int],
        *,
        low_latency: bool = False,
    ) -> None:
        self._driver = driver
        self._spec = spec
        self._merge = Merge(spec(), dict(positions))
        self._tail = Tail() if low_latency else None
        self._aim: tuple[int, int] | None = None  # (horizon, when it was) until all has been read up to it

    @property
    def partitions(self) -> set[int]:
        """Those that are read."""
        return set(self._merge.sources)

    def open(self, partition: int, position: int) -> None:
        """Read this partition as well, or from another position."""
        self._merge.add(self._spec(), partition, position)
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
        self._aim = None
        return Found(found + self._beyond(spec, now_us, lenient=bool(found)), is_all=True)

    def _beyond(self, spec: LogSpec, now_us: int, *, lenient: bool) -> list[Record]:
        """What the tail finds. lenient: nothing if it fails, for the sake of what was found already."""
        if self._tail is None:
            return []
        try:
            return self._driver.run(self._tail.read(spec, self.positions(), now_us))
        except NotDone:
            if lenient:
                return []
            raise
