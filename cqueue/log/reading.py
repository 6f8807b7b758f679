"""What a member of a subscription does from moment to moment: take partitions, read, hand out, check in.

One thread does all of this, a step at a time, so that at every step it is known what is held and what is
done. It never calls a listener unless others must take this member for alive; where it cannot be sure, it
first renews the fences of all it holds, and what it has lost is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cqueue.log.bells import Told
from cqueue.log.delivery import Delivery
from cqueue.log.held import Held
from cqueue.log.lanes import Lane
from cqueue.log.pace import Checkpoints, Pace, Polls
from cqueue.log.protocol.following import Found
from cqueue.log.records import LogRecord
from cqueue.log.sharing import Sharing

PAUSED_S: Final = 0.5


class Reading:
    """The work of one member.

    Args:
        held: its partitions; `sharing` takes them and gives them back.
        topics: which records it wants; None for all.
        told: of appends, if records are read early.
        time_s: a clock that only runs forward.
    """

    def __init__(
        self,
        held: Held,
        sharing: Sharing,
        delivery: Delivery,
        *,
        topics: frozenset[str] | None,
        pace: Pace,
        told: Told,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._member = held.member
        self._held = held
        self._sharing = sharing
        self._delivery = delivery
        self._topics = topics
        self._pace = pace
        self._told = told
        self._time_s = time_s
        self._polls = Polls(pace)
        self._checkpoints = Checkpoints(pace, held.member.spec, time_s())

    # ── a step ──

    def step(self) -> float:
        """Do what is next; after how many seconds there may be more to do.

        Raises:
            NotDone, OutcomeUnknown: Cassandra did not answer; the next step goes on.
            PositionExpired: a position is forgotten, and `on_expired` is "error".
        """
        self._sharing.follow()
        if self._checkpoints.is_due(self._time_s()):
            self.checkpoint()
        if self._sharing.paused:
            return PAUSED_S
        lane = self._held.lanes.next(self._time_s())
        if lane is None:
            return self._read()
        if self._held.is_confirmed():
            self._hand_out(lane)
        return 0.0

    def _hand_out(self, lane: Lane) -> None:
        chunk = lane.chunk(self._delivery.chunk_size)
        self._delivery.deliver(lane, chunk, self._time_s())
        self._checkpoints.since += sum(one.record is None for one in chunk)

    # ── reading ──

    def _read(self) -> float:
        now_s, lanes = self._time_s(), self._held.lanes
        if not lanes.by_partition or len(lanes) >= self._pace.buffer:
            wait_s = self._pace.longest_poll_s
        else:
            wait_s = self._read_on(now_s)
        retry_s = lanes.next_s()
        return wait_s if retry_s is None else max(0.0, min(wait_s, retry_s - now_s))

    def _read_on(self, now_s: float) -> float:
        """Read all partitions if it is time for that, or those of which it was told."""
        following, spec = self._held.following, self._member.spec()
        rest_s = self._polls.rest_s(now_s)
        if rest_s <= 0 or not following.is_at_end:
            found = self._member.driver.run(following.read(spec, self._told.take()))
            self._put(found)
            if not found.is_all:
                return 0.0
            self._polls.done(now_s)
            return 0.0 if found.records else self._polls.rest_s(now_s)
        if self._told.has_any:
            self._put(self._member.driver.run(following.read_told(spec, self._told.take())))
            return 0.0
        return rest_s

    def _put(self, found: Found) -> None:
        """Let what was read wait for listeners."""
        for row, partition in found.records:
            wanted = self._topics is None or row.topic in self._topics
            record = LogRecord(self._member.key.log, partition, row) if wanted else None
            self._held.lanes.put(partition, row.id, record)
        if found.records:
            self._polls.found_some()

    # ── positions ──

    def checkpoint(self) -> None:
        """Write down how far everything is done; with all of it in one mutation.

        Raises:
            NotDone, OutcomeUnknown: what was done since the last time may be done again by another.
        """
        now_s, held = self._time_s(), self._held
        lanes = list(held)
        if self._checkpoints.is_quiet_due(now_s):
            for lane in lanes:
                held.pass_quiet(lane)
        self._checkpoints.begun(now_s, left=sum(lane.done > held.upto(lane) for lane in lanes))
        held.change([held.moved(lane) for lane in lanes if held.upto(lane) > lane.row.position])

    def release_all(self) -> None:
        """Check in, and give everything back.

        Raises:
            NotDone, OutcomeUnknown: others take over when this member is dead to them.
        """
        self._held.change(self._held.release(self._held))
