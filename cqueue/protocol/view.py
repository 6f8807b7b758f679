"""What one consumer remembers of a wide row. It may be out of date: only speed hangs on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cqueue.protocol import policy, shards
from cqueue.protocol.budget import TombstoneBudget
from cqueue.protocol.lease import Lease
from cqueue.protocol.spec import QueueSpec
from cqueue.store.operations import Head, MessageRow, WideRow

REMEMBERED_US = 250_000
"""A head is read again at least this often, for the sake of what others gave back, or let expire."""

RIVALS_US = 1_000_000
"""For so long after somebody else claimed, only a lock that is held makes sure that nobody will."""

CURRENT_US = 50_000
"""How far others can get in a wide row without crossing too much, in the time that we have not seen it."""

UNSEEN_US = 2_500_000
"""For longer than an idle consumer pauses nothing says that nobody else has claimed since a head was read."""

UNKNOWN_SIZE = 8 << 10
"""Bytes that a message is taken for before any was read."""
LARGE_SIZE = 256 << 10
"""Bytes that one is taken for at most where reads keep failing."""

TELLING_MESSAGES = 50
"""So many messages that are smaller than expected make for a new expectation."""

NEVER_US = 1 << 62

FIRST_PASS_GAP_US = 1_000_000
LONGEST_PASS_GAP_US = 60_000_000


class Ahead(NamedTuple):
    """Messages of one priority behind `after` that were read ahead of their claim, by a read of that time.

    whole: there are no more of them.
    damaged_to: the end of the last row among them that cannot be read; 0 if there is none.
    """

    priority: int
    after: int
    rows: list[MessageRow]
    began_us: int
    whole: bool = False
    damaged_to: int = 0


def fence_of(head: Head) -> int | None:
    """The fence that stands; None where nobody has claimed yet."""
    return head.lock.fence if head.lock is not None else None


@dataclass(slots=True)
class Sizes:
    """How large the messages of a queue are, about, by priority: to bound reads by bytes."""

    means: dict[int, float] = field(default_factory=dict)

    def saw(self, priority: int, size: int, messages: int) -> None:
        """So many were read, and are so large on average. A few small ones say little, a large one much."""
        mean = self.means.get(priority, UNKNOWN_SIZE)
        weight = 1.0 if size > mean else min(1.0, messages / TELLING_MESSAGES)
        self.means[priority] = mean + (size - mean) * weight

    def doubt(self, priorities: Iterable[int]) -> None:
        """A read of some of these failed: perhaps it was too large."""
        for priority in priorities:
            mean = self.means.get(priority, UNKNOWN_SIZE)
            self.means[priority] = max(mean, min(2 * mean, LARGE_SIZE), UNKNOWN_SIZE)

    def within(self, priority: int, budget: int) -> int:
        """How many messages that is, about."""
        return int(budget / self.means.get(priority, UNKNOWN_SIZE))


@dataclass(slots=True)
class Passed:
    """How far the pass before retirement has come, by priority, without finding anything alive."""

    upto: dict[int, int] = field(default_factory=dict)
    quarantine: bool = False  # it has passed over rows in quarantine

    def restart(self) -> None:
        """Begin anew."""
        self.upto.clear()
        self.quarantine = False


@dataclass(slots=True)
class Floors:
    """From where on an open wide row is read, by priority; whole passes come at growing intervals."""

    by_priority: dict[int, int] = field(default_factory=dict)
    pass_at_us: int = 0  # when the next whole pass is due
    _gap_us: int = FIRST_PASS_GAP_US

    def start_pass(self, now_us: int) -> None:
        """Read everything from the start, and again after a while."""
        self.by_priority.clear()
        self.pass_at_us = now_us + self._gap_us
        self._gap_us = min(LONGEST_PASS_GAP_US, self._gap_us * 2)


@dataclass(slots=True)
class KnownHead:
    """The head of a wide row as we know it, and what was read by it: good while its fence stands."""

    head: Head | None = None  # as last read, or left by our last claim
    fence: int | None = None  # of the head that we go by: while it stands, nobody has claimed since
    locked: bool = False  # and we keep the lock
    ahead: Ahead | None = None  # read before it is asked for
    read_us: int = 0  # when it was read last
    whole: bool = False  # a claim has read it, and saw it whole
    rival_us: int = 0  # when somebody else claimed here, as far as we have seen

    def saw(self, head: Head, now_us: int) -> None:
        """A head was read. A fence that is not the one that we know says when somebody else claimed."""
        if fence_of(head) != self.fence:
            self.rival_us = max(self.rival_us, fence_of(head) or 0)
            self.fence, self.ahead, self.locked = None, None, False
        self.head, self.read_us, self.whole = head, now_us, False

    def forget(self) -> None:
        """It is about to change, or is somebody else's: the next claim reads it."""
        self.head, self.fence, self.locked, self.ahead = None, None, False, None

    def wrote(self, head: Head, *, whole: bool) -> None:
        """A mutation of ours stands, and has left this head. whole: no part of it is older than the rest."""
        self.head, self.fence, self.whole = head, fence_of(head), whole
        self.locked = head.lock is not None and bool(head.lock.until_ms)

    def is_remembered(self, now_us: int) -> bool:
        """Whether the head need not be read: it is as our last claim left it, and was read a moment ago.

        Where others claim too it would often turn out to be another one by now, unless we keep the lock.
        """
        return self.whole and now_us - self.read_us < REMEMBERED_US and self.expects_no_rival(now_us)

    def expects_no_rival(self, now_us: int) -> bool:
        """Whether nobody else is likely to claim here: nobody has done so for a while."""
        return self.locked or now_us - self.rival_us >= RIVALS_US


@dataclass(slots=True)
class Reading:
    """What one consumer knows of the messages of a wide row: how to read them, and where it has."""

    budget: TombstoneBudget
    sizes: Sizes = field(default_factory=Sizes)  # a registry's views share them
    looked_us: dict[int, int] = field(default_factory=dict)  # by priority: when the last look-back was made
    swept_us: dict[int, int] = field(default_factory=dict)  # by priority: when a sweep last came to its end
    passed: Passed = field(default_factory=Passed)
    floors: Floors = field(default_factory=Floors)  # of an open wide row


@dataclass(slots=True, eq=False)
class RowView:
    """One wide row in a consumer's memory: which it is, what is known of it, and when to look there again."""

    wide_row: WideRow
    end_us: int
    priorities: set[int]
    reading: Reading
    known: KnownHead = field(default_factory=KnownHead)
    finished: list[Lease] = field(default_factory=list)  # all acked: slots to be freed
    claims: int = 0
    foreign: bool = False  # another worker looks at it first
    retired: bool = False
    probed_us: int = 0  # when a search looked for work here
    seen_us: int = 0  # when a claim of ours read the head that left nothing behind
    rest_until_us: int = 0  # nothing to do before

    @property
    def open(self) -> bool:
        """Whether this is an open wide row."""
        return policy.has_no_cursor(self.wide_row)

    def is_current(self, now_us: int) -> bool:
        """Whether the boundary that we know is likely to be where it is now, or not far away.

        Else a read from there might cross all that others have taken, and acked, since then: of what our
        last claim left there, or what was sent since.
        """
        unseen_us = now_us - self.known.read_us
        if self.known.locked or unseen_us < CURRENT_US:
            return True
        alone = not self.foreign and self.known.expects_no_rival(now_us)
        return bool(self.seen_us) and unseen_us < UNSEEN_US and alone

    def retire_at_us(self, spec: QueueSpec) -> int:
        """From when on the wide row may be retired: nothing acknowledged can land in it any more.

        Not as long as a data centre that was given up in a hurry may bring back what it acknowledged.
        """
        if not policy.rows_may_go(spec):
            return NEVER_US
        return policy.nothing_lands_from_us(spec, self.end_us, open_=self.open)


def view_of(
    spec: QueueSpec, wide_row: WideRow, priorities: frozenset[int], sizes: Sizes | None = None
) -> RowView:
    """A fresh view."""
    end_us = shards.end_us(spec, wide_row)
    reading = Reading(TombstoneBudget(wide_row.time_shard * 1000, end_us), sizes or Sizes())
    return RowView(wide_row, end_us, set(priorities), reading)
