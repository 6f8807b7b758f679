"""Read beyond the stable horizon, for readers that want records early rather than in order.

Records beyond the horizon are incomplete: one may become readable after later ones. So each read goes back
over the last records found, and hands out only new ones. No guarantee depends on that: the reader later reads
every record up to the horizon, and skips those that were handed out early.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Mapping
from types import MappingProxyType

from cqueue import ids
from cqueue.log.protocol.merge import Merge
from cqueue.log.protocol.source import Record, in_order
from cqueue.log.protocol.spec import LogSpec
from cqueue.protocol.spec import Proto

BACK_ROWS = 256
"""Records of one partition that a read goes back over at most; later stragglers come with the horizon."""
BACK_BYTES = 64 << 10
"""Bytes that a read goes back over, about, where records are large."""


class EarlyRecords:
    """The records beyond the horizon that were handed out, by partition.

    given: the ids of those that were handed out before.
    """

    def __init__(self, given: Mapping[int, list[int]] = MappingProxyType({})) -> None:
        self._given = {partition: some.copy() for partition, some in given.items()}
        self._back_rows: dict[int, int] = {}

    def given(self) -> dict[int, list[int]]:
        """Return the ids that were handed out, in order."""
        return {partition: some.copy() for partition, some in self._given.items()}

    def read(
        self, spec: LogSpec, positions: Mapping[int, int], began_us: int, hinted: Collection[int] = ()
    ) -> Proto[list[Record]]:
        """Return the readable records behind these positions that were not handed out yet.

        hinted: partitions with notified appends. One statement asks all others without records together.

        Raises:
            NotDone: a read failed; nothing is handed out.
        """
        merge = Merge(spec, {each: self._after(each, position) for each, position in positions.items()})
        for partition, source in merge.sources.items():
            source.quiet = partition not in hinted and partition not in self._given
            source.limit += self._back_rows.get(partition, 0)
        found: list[Record] = []
        end = ids.highest_at(began_us + spec.skew_us)  # a writer's clock may be ahead
        while (more := (yield from merge.more(spec, end, began_us))) is not None:
            for stretch in more:
                rows = BACK_BYTES * stretch.size // (len(stretch.page.data) + 1)
                self._back_rows[stretch.partition] = max(1, min(BACK_ROWS, rows))
            found += self._new(in_order(more))
        for row, partition in found:
            insort(self._given.setdefault(partition, []), row.id)
        return found

    def _after(self, partition: int, position: int) -> int:
        """Return the id to read behind: some records back, or `position` if that is nearer."""
        given = self._given.get(partition, [])
        back = self._back_rows.get(partition, BACK_ROWS)
        return max(position, given[-back] - 1) if len(given) > back else position

    def _new(self, found: list[Record]) -> list[Record]:
        given = {partition: set(some[-BACK_ROWS - 1 :]) for partition, some in self._given.items()}
        return [one for one in found if one.row.id not in given.get(one.partition, ())]

    def left(self, found: list[Record], positions: Mapping[int, int]) -> list[Record]:
        """Return those of the records up to the horizon that were not handed out early.

        positions: up to which all records were found; ids up to there are forgotten.
        """
        given = {partition: set(some) for partition, some in self._given.items()}
        for partition, some in self._given.items():
            del some[: bisect_right(some, positions[partition])]
        self._given = {partition: some for partition, some in self._given.items() if some}
        return [one for one in found if one.row.id not in given.get(one.partition, ())]

    def forget(self, partition: int) -> None:
        """Forget what was handed out of a partition."""
        self._given.pop(partition, None)
