"""What a member of a subscription does from moment to moment: take partitions, read, hand out, check in.

One thread does all of this, a step at a time, so that at every step it is known what is held and what is
done. It never calls a listener unless others must take this member for alive; where it cannot be sure, it
first renews the fences of all it holds, and what it has lost is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from cqueue import ids
from cqueue.drive.blocking import BlockingDriver
from cqueue.errors import LogNotFound, PositionExpired
from cqueue.log.bells import Told
from cqueue.log.delivery import Delivery
from cqueue.log.lanes import Lane, Lanes
from cqueue.log.member import Member, View
from cqueue.log.positions import EARLIEST
from cqueue.log.protocol.definition import PAUSED, Origin, definition_of, origin_of
from cqueue.log.protocol.following import Following, Found
from cqueue.log.protocol.members import assigned
from cqueue.log.protocol.progress import NOBODY, change, changed, taken
from cqueue.log.protocol.spec import LogSpec
from cqueue.log.records import LogRecord
from cqueue.store.subscriptions import PositionChange, PositionRow, SubscriptionKey

PAUSED_S: Final = 0.5
QUIET_CHECKPOINT_S: Final = 60.0
"""A partition without records moves on so often, or sooner where records do not live long: its position
must not become older than what the log remembers."""

Report = Callable[[str, int, int], None]
"""Told of: "acquired", "checkpoint", "released" or "lost"; the partition; the position."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to look and to check in."""

    shortest_poll_s: float = 0.1
    longest_poll_s: float = 2.0
    checkpoint_s: float = 1.0
    checkpoint_records: int = 1000
    buffer: int = 1000


class Reading:
    """The partitions of one member.

    Args:
        spec: the log as it is configured now.
        partitions: which of them this member would read; None for all.
        topics: which records it wants; None for all.
        told: of appends, for records beyond the horizon; None: what is stable is early enough.
        on_expired: "error", or "earliest" for a position that the log no longer remembers.
        time_s: a clock that only runs forward.
    """

    def __init__(
        self,
        driver: BlockingDriver,
        key: SubscriptionKey,
        member: Member,
        delivery: Delivery,
        *,
        spec: Callable[[], LogSpec],
        partitions: Collection[int] | None = None,
        topics: frozenset[str] | None = None,
        on_expired: str = "error",
        pace: Pace | None = None,
        told: Told | None = None,
        report: Report = lambda *_: None,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lanes = Lanes()
        self._driver = driver
        self._key = key
        self._member = member
        self._delivery = delivery
        self._spec = spec
        self._partitions = partitions
        self._topics = topics
        self._on_expired = on_expired
        self._pace = pace or Pace()
        self._report = report
        self._time_s = time_s
        self._following = Following(spec(), {}, early=told is not None)
        self._told = Told(lambda: None) if told is None else told
        self._seen = 0  # the number of the last view that was followed
        self._spell: int | None = None  # the one in which all that is held was confirmed
        self._paused = False
        self._since = 0  # records done since the last checkpoint
        self._checked_s = time_s()
        self._quiet_s = self._checked_s + self._quiet_for_s()
        self._poll_s = self._pace.shortest_poll_s
        self._next_poll_s = 0.0

    # ── a step ──

    def step(self) -> float:
        """Do what is next; after how many seconds there may be more to do.

        Raises:
            NotDone, OutcomeUnknown: Cassandra did not answer; the next step goes on.
            PositionExpired: a position is forgotten, and `on_expired` is "error".
        """
        view = self._member.view
        if view is not None and view.number != self._seen:
            self._follow(view)
        if self._is_due():
            self.checkpoint()
        if self._paused:
            return PAUSED_S
        lane = self.lanes.next(self._time_s())
        if lane is None:
            return self._read()
        if self._is_confirmed():
            self._hand_out(lane)
        return 0.0

    def _hand_out(self, lane: Lane) -> None:
        chunk = lane.chunk(self._delivery.chunk_size)
        self._delivery.deliver(lane, chunk, self._time_s())
        self._since += sum(one.record is None for one in chunk)

    def _is_confirmed(self) -> bool:
        """Whether nobody can have taken over what is held; if that is not sure, find out first."""
        spell = self._member.spell()
        if spell is not None and spell == self._spell:
            return True
        if spell is None:
            self._member.beat()
            spell = self._member.spell()
        now_us = self._now_us()
        self._change([changed(lane.row, now_us, self._upto(lane), lane.row.owner) for lane in self._all()])
        self._spell = spell
        return False  # what was chosen may be gone: choose again

    def _all(self) -> Iterable[Lane]:
        return list(self.lanes.by_partition.values())

    def _now_us(self) -> int:
        return self._driver.clock.now_us()

    # ── reading ──

    def _read(self) -> float:
        now_s = self._time_s()
        wait_s = self._next_poll_s - now_s
        if not self.lanes.by_partition or len(self.lanes) >= self._pace.buffer:
            wait_s = self._pace.longest_poll_s
        elif wait_s <= 0:
            wait_s = self._poll(now_s)
        elif self._told.has_any and self._following.is_at_end:
            wait_s = 0.0
            self._put(self._driver.run(self._following.read_told(self._spec(), self._told.take())))
        retry_s = self.lanes.next_s()
        return wait_s if retry_s is None else max(0.0, min(wait_s, retry_s - now_s))

    def _poll(self, now_s: float) -> float:
        """Read on; where nothing new was found, wait longer and longer."""
        found = self._driver.run(self._following.read(self._spec(), self._told.take()))
        self._put(found)
        if not found.is_all:
            return 0.0
        wait_s, self._poll_s = self._poll_s, min(self._poll_s * 2, self._pace.longest_poll_s)
        self._next_poll_s = now_s + wait_s
        return wait_s

    def _put(self, found: Found) -> None:
        """Let what was read wait for listeners."""
        for row, partition in found.records:
            wanted = self._topics is None or row.topic in self._topics
            record = LogRecord(self._key.log, partition, row) if wanted else None
            self.lanes.put(partition, row.id, record)
        if found.records:
            self._poll_s = self._pace.shortest_poll_s

    # ── partitions come and go ──

    def _follow(self, view: View) -> None:
        """Do what a look shows."""
        definition = definition_of(view.rows)
        if definition is None:
            raise LogNotFound(f"subscription {self._key.name!r} has been deleted")
        for partition, row in view.rows.positions.items():
            if partition in self.lanes.by_partition:
                self._adopt(row)
        for partition, fence in view.rows.lost.items():
            self._lose(partition, fence)
        self._paused = definition.state == PAUSED
        mine = self._assigned(view)
        self._release(view, mine)
        wanted = mine - self.lanes.by_partition.keys() - view.rows.lost.keys()
        origin = origin_of(self._key, definition, self._now_us(), self._driver.report)
        self._acquire(view, wanted, origin)
        self._seen = view.number

    def _lose(self, partition: int, fence: int | None) -> None:
        """A position cannot be read. Where only the position is wrong, the next checkpoint mends it."""
        lane = self.lanes.by_partition.get(partition)
        if lane is not None and lane.row.fence != fence:
            self._drop(lane.row._replace(position=self._upto(lane)), "lost")

    def _assigned(self, view: View) -> set[int]:
        every = range(self._spec().partitions)
        readable = every if self._partitions is None else self._partitions
        return assigned(self._key, self._member.name, view.alive, readable)

    def _release(self, view: View, mine: set[int]) -> None:
        """Give back what is another's now; also what was taken here by a mutation that seemed to fail."""
        held, now_us = self.lanes.by_partition, self._now_us()
        leaving = [lane for partition, lane in held.items() if partition not in mine]
        stray = [
            row
            for partition, row in view.rows.positions.items()
            if row.owner == self._member.name and partition not in held and partition not in mine
        ]
        for lane in leaving:
            self._passed(lane)
        self._change(
            [changed(lane.row, now_us, self._upto(lane), NOBODY) for lane in leaving]
            + [changed(row, now_us, row.position, NOBODY) for row in stray]
        )

    def _acquire(self, view: View, wanted: Iterable[int], origin: Origin) -> None:
        """Take what is mine by now, and nobody's, or that of one who is dead."""
        alive = {row.member for row in view.alive} - {self._member.name}
        now_us, changes = self._now_us(), []
        for partition in sorted(wanted):
            row = view.rows.positions.get(partition)
            if row is None or row.owner not in alive:
                at = self._begin(partition, origin.of(partition) if row is None else row.position, now_us)
                changes.append(taken(row, partition, now_us, at, self._member.name))
        self._change(changes)

    def _begin(self, partition: int, position: int | None, now_us: int) -> int:
        """Where to begin; None: at the earliest record.

        Raises:
            PositionExpired: records behind the position may be forgotten.
        """
        spec = self._spec()
        earliest = ids.lowest_at(spec.oldest_us(now_us)) - 1
        if position is None:
            return earliest
        forgets = spec.ttl_s and spec.oldest_us(now_us) > spec.created_ms * 1000
        if position < earliest and forgets and self._on_expired != EARLIEST:
            raise PositionExpired(
                f"partition {partition} of log {spec.name!r}: the subscription's position is older than "
                "what the log remembers; seek, or give on_expired='earliest'"
            )
        return max(position, earliest)

    # ── positions ──

    def _is_due(self) -> bool:
        now_s = self._time_s()
        if now_s >= self._quiet_s:
            return True
        late = now_s - self._checked_s >= self._pace.checkpoint_s
        return bool(self._since) and (late or self._since >= self._pace.checkpoint_records)

    def _quiet_for_s(self) -> float:
        ttl_s = self._spec().ttl_s
        return min(QUIET_CHECKPOINT_S, ttl_s / 3) if ttl_s else QUIET_CHECKPOINT_S

    def checkpoint(self) -> None:
        """Write down how far everything is done; with all of it in one mutation.

        Raises:
            NotDone, OutcomeUnknown: what was done since the last time may be done again by another.
        """
        now_s, now_us = self._time_s(), self._now_us()
        quiet = now_s >= self._quiet_s
        changes: list[PositionChange] = []
        for lane in self._all():
            if quiet:
                self._passed(lane)
            upto = self._upto(lane)
            if upto > lane.row.position:
                changes.append(changed(lane.row, now_us, upto, lane.row.owner))
        early = sum(lane.done > self._upto(lane) for lane in self._all())
        self._checked_s, self._since = now_s, early
        self._quiet_s = now_s + self._quiet_for_s() if quiet else self._quiet_s
        self._change(changes)

    def _upto(self, lane: Lane) -> int:
        """The position to write down: nothing up to it waits, or may still come."""
        return max(lane.row.position, min(lane.upto(), self._following.position(lane.partition)))

    def _passed(self, lane: Lane) -> None:
        """Where nothing waits, all is done up to where the partition has been read."""
        if not lane.waiting:
            lane.done = max(lane.done, self._following.position(lane.partition))

    def release_all(self) -> None:
        """Check in, and give everything back.

        Raises:
            NotDone, OutcomeUnknown: others take over when this member is dead to them.
        """
        for lane in self._all():
            self._passed(lane)
        now_us = self._now_us()
        self._change([changed(lane.row, now_us, self._upto(lane), NOBODY) for lane in self._all()])

    def _change(self, changes: list[PositionChange]) -> None:
        """Change positions, and take note of what stands then."""
        if not changes:
            return
        found = self._driver.run(change(self._key, changes))
        for wanted in changes:
            stored = found[wanted.row.partition]
            if stored is not None:
                self._note(stored, wanted)

    def _note(self, stored: PositionRow, wanted: PositionChange) -> None:
        partition = stored.partition
        if partition in self.lanes.by_partition:
            if wanted.row.owner == NOBODY:
                self._drop(stored, "released")
            else:
                self._adopt(stored)
        elif stored.owner == self._member.name and wanted.row.owner == stored.owner and stored == wanted.row:
            self._open(stored, "acquired")

    def _adopt(self, stored: PositionRow) -> None:
        """Compare what is held with what is stored; what is stored is older at times, never wrong."""
        lane = self.lanes.by_partition[stored.partition]
        if stored.fence <= lane.row.fence:
            return
        if stored.owner != self._member.name:
            self._drop(stored, "lost")
        elif stored.generation != lane.row.generation:
            self._open(stored, "acquired")  # moved by hand
        else:
            lane.row = stored
            self._report("checkpoint", stored.partition, stored.position)

    def _open(self, row: PositionRow, why: str) -> None:
        self._following.open(self._spec(), row.partition, row.position)
        self.lanes.open(row)
        self._poll_s, self._next_poll_s = self._pace.shortest_poll_s, 0.0
        self._report(why, row.partition, row.position)

    def _drop(self, stored: PositionRow, why: str) -> None:
        self.lanes.close(stored.partition)
        self._following.close(stored.partition)
        self._report(why, stored.partition, stored.position)
