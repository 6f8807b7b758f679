"""Keep the partitions that a subscription member owns: their stored rows, reads and finished records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cqueue.log.lanes import Lane, Lanes
from cqueue.log.member import Member
from cqueue.log.protocol.following import Following
from cqueue.log.protocol.progress import NOBODY, change, changed
from cqueue.store.subscriptions import PositionChange, PositionRow

Report = Callable[[str, int, int], None]
"""Called with "acquired", "checkpoint", "released" or "lost", the partition, and the position."""


class Held:
    """The partitions that one member owns. Not thread-safe.

    early: records beyond the stable horizon are read as well.
    """

    def __init__(self, member: Member, report: Report, *, early: bool) -> None:
        self.lanes = Lanes()
        self.following = Following(member.spec(), {}, early=early)
        self.member = member
        self._report = report
        self._spell: int | None = None  # the spell in which the ownership of all partitions was confirmed

    def __contains__(self, partition: int) -> bool:
        return partition in self.lanes.by_partition

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self.lanes.by_partition.values()))

    def is_confirmed(self) -> bool:
        """Return whether no other member can have taken over a partition; if that is uncertain, find out.

        After False a partition chosen earlier may be lost, so the caller chooses again.

        Raises:
            NotDone, OutcomeUnknown: the ownership is still uncertain.
        """
        spell = self.member.spell()
        if spell is not None and spell == self._spell:
            return True
        if spell is None:
            self.member.beat()
            spell = self.member.spell()
        self.change([self.moved(lane) for lane in self])
        self._spell = spell
        return False

    # ── positions ──

    def upto(self, lane: Lane) -> int:
        """Return the position to write: up to it no record waits, or may still become readable."""
        return max(lane.row.position, min(lane.upto(), self.following.position(lane.partition)))

    def pass_quiet(self, lane: Lane) -> None:
        """Advance a partition without waiting records to where it has been read."""
        if not lane.waiting:
            lane.done = max(lane.done, self.following.position(lane.partition))

    def moved(self, lane: Lane, owner: str | None = None) -> PositionChange:
        """Return the change that writes the current position under a new fence. owner: None for the same."""
        now_us = self.member.driver.clock.now_us()
        return changed(lane.row, now_us, self.upto(lane), lane.row.owner if owner is None else owner)

    def release(self, lanes: Iterable[Lane]) -> list[PositionChange]:
        """Return the changes that write these partitions' positions and release them."""
        leaving = list(lanes)
        for lane in leaving:
            self.pass_quiet(lane)
        return [self.moved(lane, NOBODY) for lane in leaving]

    def change(self, changes: list[PositionChange]) -> None:
        """Write position changes in one mutation, and note the rows that are stored then.

        Raises:
            NotDone, OutcomeUnknown: the positions may be changed or not.
        """
        if not changes:
            return
        found = self.member.driver.run(change(self.member.key, changes))
        for wanted in changes:
            stored = found[wanted.row.partition]
            if stored is not None:
                self._note(stored, wanted)

    def _note(self, stored: PositionRow, wanted: PositionChange) -> None:
        if stored.partition in self:
            if wanted.row.owner == NOBODY:
                self._drop(stored, "released")
            else:
                self.adopt(stored)
        elif stored.owner == self.member.name and wanted.row.owner == stored.owner and stored == wanted.row:
            self._open(stored)

    def adopt(self, stored: PositionRow) -> None:
        """Compare an owned partition with its stored row, which may be outdated but is never wrong."""
        lane = self.lanes.by_partition.get(stored.partition)
        if lane is None or stored.fence <= lane.row.fence:
            return
        if stored.owner != self.member.name:
            self._drop(stored, "lost")
        elif stored.generation != lane.row.generation:
            self._open(stored)  # an operator moved the position
        else:
            lane.row = stored
            self._report("checkpoint", stored.partition, stored.position)

    def lose(self, partition: int, fence: int | None) -> None:
        """Note a damaged position. Keep the partition if its fence is intact: a checkpoint mends the row."""
        lane = self.lanes.by_partition.get(partition)
        if lane is not None and lane.row.fence != fence:
            self._drop(lane.row._replace(position=self.upto(lane)), "lost")

    def _open(self, row: PositionRow) -> None:
        self.following.open(self.member.spec(), row.partition, row.position)
        self.lanes.open(row)
        self._report("acquired", row.partition, row.position)

    def _drop(self, stored: PositionRow, why: str) -> None:
        self.lanes.close(stored.partition)
        self.following.close(stored.partition)
        self._report(why, stored.partition, stored.position)
