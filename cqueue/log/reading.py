"""The work loop of a subscription member: take partitions, read, call listeners, write positions.

One thread does all of this step by step, so at each step it is certain which partitions the member owns and
which records are done. The loop calls a listener only while all other members must take this one for alive.
If that is uncertain, the loop first renews the fences of all owned partitions, and drops those it has lost.
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
"""Seconds between checks of a paused subscription: with the reads of 1.5 s it resumes within 2 s."""


class Reading:
    """The work of one member.

    Args:
        held: the member's partitions, which `sharing` takes and releases.
        topics: of the records that listeners want; None for all.
        told: notifications of appends, for low latency.
        time_s: a monotonic clock.
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
        """Do the next piece of work; return the seconds until there may be more.

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
        """Read all partitions if a poll is due, otherwise those with notified appends."""
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
        """Queue records for the listeners."""
        for row, partition in found.records:
            wanted = self._topics is None or row.topic in self._topics
            record = LogRecord(self._member.key.log, partition, row) if wanted else None
            self._held.lanes.put(partition, row.id, record)
        if found.records:
            self._polls.found_some()

    # ── positions ──

    def checkpoint(self) -> None:
        """Write all positions that have moved, in one mutation.

        Raises:
            NotDone, OutcomeUnknown: another member may repeat records done since the last checkpoint.
        """
        now_s, held = self._time_s(), self._held
        lanes = list(held)
        if self._checkpoints.is_quiet_due(now_s):
            for lane in lanes:
                held.pass_quiet(lane)
        self._checkpoints.begun(now_s, left=sum(lane.done > held.upto(lane) for lane in lanes))
        held.change([held.moved(lane) for lane in lanes if held.upto(lane) > lane.row.position])

    def release_all(self) -> None:
        """Write the positions of all partitions, and release them.

        Raises:
            NotDone, OutcomeUnknown: others take over only when this member's heartbeat has expired.
        """
        self._held.change(self._held.release(self._held))
