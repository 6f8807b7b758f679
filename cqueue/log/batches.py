"""What one round of a scan has found: columns of several partitions, in order, and only what is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cqueue.protocol.columns import PartitionStretch
from cqueue.store.record_columns import RecordColumns


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in order, and the partition of each."""

    columns: RecordColumns
    partitions: list[int]

    def __len__(self) -> int:
        return len(self.partitions)

    def first(self, count: int) -> Batch:
        """The first so many."""
        return self if count >= len(self) else self.chosen(list(range(count)))

    def of_topics(self, topics: Iterable[str]) -> Batch:
        """Those of some topics."""
        wanted = {topic.encode() for topic in topics}
        places = [place for place, topic in enumerate(self.columns.topics) if topic in wanted]
        return self.chosen(places)

    def behind(self, first: Mapping[int, int]) -> Batch:
        """Those above an id of their partition."""
        pairs = zip(self.columns.ids, self.partitions, strict=True)
        return self.chosen([place for place, (id_, partition) in enumerate(pairs) if id_ > first[partition]])

    def chosen(self, places: list[int]) -> Batch:
        """The records at these places, in their order."""
        if len(places) == len(self) and places == list(range(len(self))):
            return self
        return Batch(self.columns.chosen(places), list(map(self.partitions.__getitem__, places)))


def in_order(found: Iterable[PartitionStretch], *, reverse: bool) -> Batch:
    """One batch of all of them, in the order of ids."""
    columns, partitions = RecordColumns(), list[int]()
    for partition, stretch in found:
        columns.extend(*stretch)
        partitions += [partition] * (stretch.stop - stretch.start)
    batch = Batch(columns, partitions)
    if len(set(partitions)) <= 1:
        return batch
    # Stretches are in order, and sorting finds that out: it merges.
    return batch.chosen(sorted(range(len(batch)), key=columns.ids.__getitem__, reverse=reverse))
