"""Keep the partitions that a subscription member owns: their stored rows, reads and finished records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from cqueue.errors import LogNotFound
from cqueue.log.backlogs import PartitionBacklog, PartitionBacklogs
from cqueue.log.member import Member
from cqueue.log.protocol.following import Following
from cqueue.log.protocol.progress import NOBODY, change, changed
from cqueue.store.log_operations import PositionChange, PositionRow

Report = Callable[[str, int, int], None]
"""Called with "acquired", "checkpoint", "released" or "lost", the partition, and the position."""


class OwnedPartitions:
    """The partitions that one member owns. Not thread-safe.

    beyond_horizon: records beyond the stable horizon are read as well. config: of the subscription's
    definition, as last acted on.
    """

    def __init__(self, member: Member, report: Report, *, beyond_horizon: bool) -> None:
        self.backlogs = PartitionBacklogs()
        self.following = Following(member.spec(), {}, beyond_horizon=beyond_horizon)
        self.member = member
        self.config = ""
        self._report = report
        self._trust_period: int | None = None  # in which all ownership was confirmed

    def __contains__(self, partition: int) -> bool:
        return partition in self.backlogs.by_partition

    def __iter__(self) -> Iterator[PartitionBacklog]:
        return iter(list(self.backlogs.by_partition.values()))

    def is_trusted(self) -> bool:
        """Return whether no other member can have taken over a partition since `is_confirmed` found out."""
        trust_period = self.member.trust_period()
        return trust_period is not None and trust_period == self._trust_period

    def is_confirmed(self) -> bool:
        """Return whether no other member can have taken over a partition; if that is uncertain, find out.

        After False a partition chosen earlier may be lost, so the caller chooses again.

        Raises:
            NotDone, OutcomeUnknown: the ownership is still uncertain.
        """
        if self.is_trusted():
            return True
        self.member.heartbeat()
        trust_period = self.member.trust_period()
        self.change([self.moved(backlog) for backlog in self])
        self._trust_period = trust_period
        return False

    # ── positions ──

    def upto(self, backlog: PartitionBacklog) -> int:
        """Return the position to write: up to it no record waits, or may still become readable."""
        return max(backlog.row.position, min(backlog.upto(), backlog.queued))

    def pass_quiet(self, backlog: PartitionBacklog) -> None:
        """Advance a partition without waiting records to where it has been read."""
        if not backlog.waiting:
            backlog.done = max(backlog.done, backlog.queued)

    def moved(self, backlog: PartitionBacklog, owner: str | None = None) -> PositionChange:
        """Return the change that writes the current position under a new fence. owner: None for the same."""
        now_us = self.member.driver.clock.now_us()
        return changed(backlog.row, now_us, self.upto(backlog), backlog.row.owner if owner is None else owner)

    def release(self, backlogs: Iterable[PartitionBacklog]) -> list[PositionChange]:
        """Return the changes that write these partitions' positions and release them."""
        leaving = list(backlogs)
        for backlog in leaving:
            self.pass_quiet(backlog)
        return [self.moved(backlog, NOBODY) for backlog in leaving]

    def change(self, changes: list[PositionChange]) -> None:
        """Write position changes in one mutation, and note the rows that are stored then.

        Raises:
            LogNotFound: the subscription has been deleted, and perhaps made again.
            NotDone, OutcomeUnknown: the positions may be changed or not.
        """
        if not changes:
            return
        found = self.member.driver.run(change(self.member.key, self.config, changes))
        for wanted in changes:
            stored = found[wanted.row.partition]
            if stored is not None:
                self._note(stored, wanted)
            elif wanted.row.partition in self:
                raise LogNotFound(f"subscription {self.member.key.name!r} has been deleted")

    def _note(self, stored: PositionRow, wanted: PositionChange) -> None:
        if stored.partition in self:
            if wanted.row.owner == NOBODY:
                self._drop(stored, "released")
            else:
                self.adopt(stored)
        elif stored.owner == self.member.name and stored == wanted.row:
            self._open(stored)

    def adopt(self, stored: PositionRow) -> None:
        """Compare an owned partition with its stored row, which may be outdated but is never wrong."""
        backlog = self.backlogs.by_partition.get(stored.partition)
        if backlog is None or stored.fence <= backlog.row.fence:
            return
        if stored.owner != self.member.name:
            self._drop(stored, "lost")
        elif stored.generation != backlog.row.generation:
            self._open(stored)  # an operator moved the position
        else:
            backlog.row = stored
            self._report("checkpoint", stored.partition, stored.position)

    def lose(self, partition: int, fence: int | None) -> None:
        """Note a damaged position. Keep the partition if its fence is intact: a checkpoint mends the row."""
        backlog = self.backlogs.by_partition.get(partition)
        if backlog is not None and backlog.row.fence != fence:
            self._drop(backlog.row._replace(position=self.upto(backlog)), "lost")

    def _open(self, row: PositionRow) -> None:
        self.following.open(self.member.spec(), row.partition, row.position)
        self.backlogs.open(row)
        self._report("acquired", row.partition, row.position)

    def _drop(self, stored: PositionRow, why: str) -> None:
        self.backlogs.close(stored.partition)
        self.following.close(stored.partition)
        self._report(why, stored.partition, stored.position)
