"""Rebalance a subscription's partitions: take over those assigned to this member, and release the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cqueue.errors import LogNotFound, PositionExpired
from cqueue.log.member import Member, Membership
from cqueue.log.owned_partitions import OwnedPartitions
from cqueue.log.positions import EARLIEST
from cqueue.log.protocol.members import assigned
from cqueue.log.protocol.progress import NOBODY, changed, taken
from cqueue.log.protocol.subscription_definition import (
    PAUSED,
    Origin,
    begins_at,
    definition_of,
    origin_of,
)


class Rebalancer:
    """Takes over the partitions that are assigned to this member, and releases those of other members.

    partitions: those that this member can read; None for all. on_expired: "error", or "earliest" for a
    position that the log no longer remembers. paused: whether listener calls are paused.
    """

    def __init__(
        self, member: Member, owned: OwnedPartitions, *, partitions: Collection[int] | None, on_expired: str
    ) -> None:
        self.paused = False
        self._member = member
        self._owned = owned
        self._partitions = partitions
        self._on_expired = on_expired
        self._seen: Membership | None = None  # the last one acted on
        self._id: str | None = None  # of the subscription

    def follow(self) -> None:
        """Act on the last read of the subscription.

        Raises:
            LogNotFound: the subscription has been deleted, and perhaps made again.
            NotDone, OutcomeUnknown: some partitions are not yet taken or released; the next call goes on.
            PositionExpired: a position is forgotten, and `on_expired` is "error".
        """
        membership = self._member.membership
        if membership is None or membership is self._seen:
            return
        member, rows = self._member, membership.rows
        definition, now_us = definition_of(rows), member.driver.clock.now_us()
        origin = definition and origin_of(member.key, definition, now_us, member.driver.report)
        if definition is None or origin is None or self._id not in {None, origin.id}:
            raise LogNotFound(f"subscription {member.key.name!r} has been deleted")
        self._id, self._owned.config = origin.id, definition.config
        for row in rows.positions.values():
            self._owned.adopt(row)
        for partition, fence in rows.lost.items():
            self._owned.lose(partition, fence)
        self.paused = definition.state == PAUSED
        readable = range(member.spec().partitions) if self._partitions is None else self._partitions
        mine = assigned(member.key, member.name, membership.alive, readable)
        self._release(membership, mine)
        self._acquire(
            membership, [each for each in mine - rows.lost.keys() if each not in self._owned], origin
        )
        self._seen = membership

    def check_remembered(self, position: int, partition: int) -> None:
        """Check that a read from this position on, which has just ended, can have found all records.

        Raises:
            PositionExpired: some may be forgotten, and `on_expired` is "error".
        """
        self._begin(partition, position, self._member.driver.clock.now_us())

    def _release(self, membership: Membership, mine: set[int]) -> None:
        """Release partitions of other members, also those taken by a mutation that seemed to fail."""
        leaving = [backlog for backlog in self._owned if backlog.partition not in mine]
        now_us = self._member.driver.clock.now_us()
        stray = [
            changed(row, now_us, row.position, NOBODY)
            for partition, row in membership.rows.positions.items()
            if row.owner == self._member.name and partition not in self._owned and partition not in mine
        ]
        self._owned.change(self._owned.release(leaving) + stray)

    def _acquire(self, membership: Membership, wanted: Iterable[int], origin: Origin) -> None:
        """Take over assigned partitions that have no owner, or a dead one."""
        alive = {row.member for row in membership.alive} - {self._member.name}
        now_us, changes, rows = self._member.driver.clock.now_us(), [], membership.rows.positions
        for partition in sorted(wanted):
            row = rows.get(partition)
            if row is None or row.owner not in alive:
                lenient, spec = self._on_expired == EARLIEST, self._member.spec()
                position = begins_at(spec, origin, membership.rows, partition, now_us, lenient=lenient)
                at = self._begin(partition, position, now_us)
                changes.append(taken(row, partition, now_us, at, self._member.name))
        self._owned.change(changes)

    def _begin(self, partition: int, position: int, now_us: int) -> int:
        """Return the id behind which reading begins.

        Raises:
            PositionExpired: records behind the position may be forgotten.
        """
        spec = self._member.spec()
        if self._on_expired != EARLIEST and spec.has_forgotten(position, now_us):
            raise PositionExpired(
                f"partition {partition} of log {spec.name!r}: the subscription's position is older than "
                "what the log remembers; seek, or give on_expired='earliest'"
            )
        return spec.going_on(position, now_us)
