"""The work loop of a subscription member: take partitions, read, call listeners, write positions.

One thread does all of this step by step, so at each step it is certain which partitions the member owns and
which records are done. The loop calls a listener only while all other members must take this one for alive.
If that is uncertain, the loop first renews the fences of all owned partitions, and drops those it has lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cqueue.log.backlogs import PartitionBacklog
from cqueue.log.listeners import ListenerCalls
from cqueue.log.member_options import CheckpointTimer, MemberOptions, PollTimer
from cqueue.log.notifier import AppendHints
from cqueue.log.owned_partitions import OwnedPartitions
from cqueue.log.protocol.following import ReadResult
from cqueue.log.rebalancer import Rebalancer
from cqueue.log.records import LogRecord
from cqueue.runtime.waiting import Event

PAUSED_S: Final = 0.5
"""Seconds between checks of a paused subscription: with the reads of 1.5 s it resumes within 2 s."""


class MemberLoop:
    """The work of one member.

    Args:
        owned: the member's partitions, which `rebalancer` takes and releases.
        topics: of the records that listeners want; None for all.
        hints: notifications of appends, for low latency.
        time_s: a monotonic clock.

    Attributes:
        stopping: set once no further listener call should be made.
    """

    def __init__(
        self,
        owned: OwnedPartitions,
        rebalancer: Rebalancer,
        calls: ListenerCalls,
        *,
        topics: frozenset[str] | None,
        options: MemberOptions,
        hints: AppendHints,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stopping = Event()
        self._member = owned.member
        self._owned = owned
        self._rebalancer = rebalancer
        self._calls = calls
        self._topics = topics
        self._options = options
        self._hints = hints
        self._time_s = time_s
        self._polls = PollTimer(options)
        self._checkpoints = CheckpointTimer(options, owned.member.spec, time_s())

    # ── a step ──

    def step(self) -> float:
        """Do the next piece of work; return the seconds until there may be more.

        Raises:
            NotDone, OutcomeUnknown: Cassandra did not answer; the next step goes on.
            PositionExpired: a position is forgotten, and `on_expired` is "error".
        """
        self._rebalancer.follow()
        if self._checkpoints.is_due(self._time_s()):
            self.checkpoint()
        if self._rebalancer.paused:
            return PAUSED_S
        backlog = self._owned.backlogs.next(self._time_s())
        if backlog is None:
            return self._read()
        if self._owned.is_confirmed():
            self._hand_out(backlog)
        return 0.0

    def _hand_out(self, backlog: PartitionBacklog) -> None:
        chunk = backlog.chunk(self._calls.chunk_size)
        self._calls.deliver(backlog, chunk, self._time_s(), self._may_call)
        self._checkpoints.since += sum(one.record is None for one in chunk)

    def _may_call(self) -> bool:
        return not self.stopping.is_set() and self._owned.is_trusted()

    # ── reading ──

    def _read(self) -> float:
        now_s, backlogs = self._time_s(), self._owned.backlogs
        is_full = len(backlogs) >= self._options.buffer
        # What waits now has failed, and must not hold up the other partitions.
        self._owned.following.hold([each.partition for each in self._owned if is_full and each.waiting])
        wait_s = self._read_on(now_s) if self._owned.following.reading else self._options.longest_poll_s
        retry_s = backlogs.next_s()
        return wait_s if retry_s is None else max(0.0, min(wait_s, retry_s - now_s))

    def _read_on(self, now_s: float) -> float:
        """Read all partitions if a poll is due, otherwise those with notified appends."""
        following, spec = self._owned.following, self._member.spec()
        rest_s = self._polls.rest_s(now_s)
        if rest_s <= 0 or not following.is_at_end:
            furthest_back = min((following.position(each), each) for each in following.reading)
            found = self._member.driver.run(following.read(spec, self._hints.take()))
            self._rebalancer.check_remembered(*furthest_back)
            self._put(found)
            if not found.is_all:
                return 0.0
            self._polls.done(now_s)
            return 0.0 if found.records else self._polls.rest_s(now_s)
        if hinted := self._hints.take():
            self._put(self._member.driver.run(following.read_hinted(spec, hinted)))
            return 0.0
        return rest_s

    def _put(self, found: ReadResult) -> None:
        """Queue records for the listeners."""
        for row, partition in found.records:
            wanted = self._topics is None or row.topic in self._topics
            record = LogRecord(self._member.key.log, partition, row) if wanted else None
            self._owned.backlogs.put(partition, row.id, record)
        for backlog in self._owned:  # only now: see `PartitionBacklog.queued`
            backlog.queued = self._owned.following.position(backlog.partition)
        if found.records:
            self._polls.found_some()

    # ── positions ──

    def checkpoint(self) -> None:
        """Write all positions that have moved, in one mutation.

        Raises:
            NotDone, OutcomeUnknown: another member may repeat records done since the last checkpoint.
        """
        now_s, owned = self._time_s(), self._owned
        backlogs = list(owned)
        if self._checkpoints.is_quiet_due(now_s):
            for backlog in backlogs:
                owned.pass_quiet(backlog)
        moving = [backlog for backlog in backlogs if owned.upto(backlog) > backlog.row.position]
        left = sum(backlog.done > owned.upto(backlog) for backlog in backlogs)
        self._checkpoints.begun(now_s, left=left + len(moving))  # all, in case that the change fails
        owned.change([owned.moved(backlog) for backlog in moving])
        self._checkpoints.since = left

    def release_all(self) -> None:
        """Write the positions of all partitions, and release them.

        Raises:
            NotDone, OutcomeUnknown: others take over only when this member's heartbeat has expired.
        """
        self._owned.change(self._owned.release(self._owned))
