"""Reading beyond the horizon, for those who would rather have records early than all of them in order.

What is beyond the horizon is not complete: a record may become readable after later ones. So each read goes
back over the last ones that were found, and hands out only what was not there before. Nothing rests on
that: whoever reads up to the horizon finds every record, and asks here which ones have been handed out.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Mapping

from cqueue import ids
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import Record, in_order
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.spec import Proto

BACK_ROWS = 256
BACK_BYTES = 64 << 10
"""How far a read goes back over records of one partition that have been handed out: so many, or bytes."""


class Tail:
    """Which records beyond the horizon have been handed out, by partition."""

    def __init__(self) -> None:
        self._given: dict[int, list[int]] = {}
        self._back_rows: dict[int, int] = {}

    def read(
        self, spec: LogSpec, positions: Mapping[int, int], began_us: int, told: Collection[int] = ()
    ) -> Proto[list[Record]]:
        """What can be read behind these positions and was not handed out yet.

        told: partitions that are said to have something new; others without records are asked together.

        Raises:
            NotDone: a read failed; nothing is handed out.
        """
        merge = Merge(spec, {each: self._after(each, position) for each, position in positions.items()})
        for partition, source in merge.sources.items():
            source.quiet = partition not in told and partition not in self._given
        found: list[Record] = []
        end = ids.highest_at(began_us + spec.skew_us)  # the clock of whoever appended may be ahead
        while (more := (yield from merge.more(spec, end, began_us))) is not None:
            for stretch in more:
                self._back_rows[stretch.partition] = BACK_BYTES * stretch.size // (len(stretch.page.data) + 1)
            found += self._new(in_order(more))
        for row, partition in found:
            insort(self._given.setdefault(partition, []), row.id)
        return found

    def _after(self, partition: int, position: int) -> int:
        """Where to read from: not every record since `position` is read again."""
        given = self._given.get(partition, [])
        back = max(1, min(BACK_ROWS, self._back_rows.get(partition, BACK_ROWS)))
        return max(position, given[-back] - 1) if len(given) > back else position

    def _new(self, found: list[Record]) -> list[Record]:
        given = {partition: set(some[-BACK_ROWS - 1 :]) for partition, some in self._given.items()}
        return [one for one in found if one.row.id not in given.get(one.partition, ())]

    def left(self, found: list[Record], positions: Mapping[int, int]) -> list[Record]:
        """Of records up to the horizon those that were not handed out early.

        positions: up to where all has been found; what lies there is forgotten here.
        """
        given = {partition: set(some) for partition, some in self._given.items()}
        for partition, some in self._given.items():
            del some[: bisect_right(some, positions[partition])]
        self._given = {partition: some for partition, some in self._given.items() if some}
        return [one for one in found if one.row.id not in given.get(one.partition, ())]

    def forget(self, partition: int) -> None:
        """Begin anew with a partition."""
        self._given.pop(partition, None)
